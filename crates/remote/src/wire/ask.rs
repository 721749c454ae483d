//! One request and its answer: with a deadline, a limit, and attempts again where that is harmless.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Client, Method, Response, redirect};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Secret, Site, WireError, shown, tls_config};

/// The longest wait between two attempts that the server can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// How long a server may take and how often it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How long a connection may take to come about.
    pub connect: Duration,
    /// How long one answer may take, all attempts together; always finite.
    pub deadline: Duration,
    /// At most this many attempts, where asking again is harmless.
    pub attempts: u32,
    /// The wait after the first failed attempt; doubles with each. The server's own wish goes before.
    pub backoff: Duration,
    /// How many bytes an answer may have.
    pub max_answer_bytes: usize,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connect: Duration::from_secs(10),
            deadline: Duration::from_secs(600),
            attempts: 5,
            backoff: Duration::from_secs(1),
            max_answer_bytes: 64 << 20,
        }
    }
}

impl Patience {
    /// Checks every range.
    pub(crate) fn check(&self) -> Result<(), WireError> {
        let bad = |reason: &str| Err(WireError::BadSetting { setting: "patience", reason: reason.to_owned() });
        match self {
            p if p.deadline.is_zero() || p.connect.is_zero() => bad("needed deadlines above 0 s"),
            p if p.deadline > Duration::from_secs(7 * 24 * 3600) => bad("needed a deadline of at most a week"),
            p if p.attempts == 0 => bad("needed at least 1 attempt, got 0"),
            p if p.max_answer_bytes == 0 => bad("needed at least 1 byte for an answer, got 0"),
            _ => Ok(()),
        }
    }
}

/// When a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Whenever it failed: what it does a second time leaves no mark.
    Harmless,
    /// Only when the server cannot have acted on it: no connection came about, or it said that it did not begin.
    IfUnsent,
}

/// Why an attempt brought nothing.
enum Fault {
    /// It may work a little later.
    Later { reason: String, after: Option<Duration>, unsent: bool },
    /// It will not work.
    Final(WireError),
}

/// A way to one server.
#[derive(Clone)]
pub(crate) struct Line {
    client: Client,
    secret: Option<Secret>,
    patience: Patience,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("secret", &self.secret).field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Line {
    pub(crate) fn new(site: &Site, secret: Option<Secret>, patience: Patience) -> Result<Line, WireError> {
        patience.check()?;
        Ok(Line { client: client(site, patience.connect)?, secret, patience })
    }

    /// Asks and takes the whole answer.
    ///
    /// - Holds: ends by the deadline; an answer that broke off is dropped whole before the next attempt.
    pub(crate) async fn ask(
        &self,
        method: Method,
        url: &str,
        body: Option<&[u8]>,
        repeat: Repeat,
    ) -> Result<Vec<u8>, WireError> {
        let end = Instant::now() + self.patience.deadline;
        let mut doing = "waiting for an answer".to_owned();
        let mut attempt = 1;
        loop {
            let late =
                |doing: String| WireError::Deadline { url: url.to_owned(), deadline: self.patience.deadline, doing };
            let (reason, after, unsent) = match timeout_at(end, self.attempt(&method, url, body)).await {
                Err(_) => return Err(late(doing)),
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(Fault::Final(error))) => return Err(error),
                Ok(Err(Fault::Later { reason, after, unsent })) => (reason, after, unsent),
            };
            if attempt >= self.patience.attempts || (repeat == Repeat::IfUnsent && !unsent) {
                return Err(WireError::Unreachable { url: url.to_owned(), attempts: attempt, reason });
            }
            let own = self.patience.backoff.saturating_mul(1 << (attempt - 1).min(10));
            let wait = after.unwrap_or(own).min(LONGEST_WAIT);
            doing = format!("waiting to ask again after: {reason}");
            if Instant::now() + wait >= end {
                return Err(late(doing));
            }
            sleep(wait).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, method: &Method, url: &str, body: Option<&[u8]>) -> Result<Vec<u8>, Fault> {
        let mut request = self.client.request(method.clone(), url);
        if let Some(secret) = &self.secret {
            request = request.header(AUTHORIZATION, secret.header());
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_vec());
        }
        let response = request.send().await.map_err(|e| {
            let unsent = e.is_connect();
            Fault::Later { reason: self.reason(e), after: None, unsent }
        })?;
        let status = response.status().as_u16();
        let after = retry_after(response.headers());
        let body = self.body(url, response).await;
        if (200..300).contains(&status) {
            return body;
        }
        let body = body.unwrap_or_default();
        if matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504) {
            let said = self.said(&body);
            let reason = if said.is_empty() { format!("status {status}") } else { format!("status {status}: {said}") };
            return Err(Fault::Later { reason, after, unsent: status == 429 });
        }
        // What a server says to a refused secret may hold the secret in another form.
        let said = if matches!(status, 401 | 403) { String::new() } else { self.said(&body) };
        Err(Fault::Final(WireError::Refused { url: url.to_owned(), status, said }))
    }

    async fn body(&self, url: &str, mut response: Response) -> Result<Vec<u8>, Fault> {
        let mut body = Vec::new();
        let broken = |e| Fault::Later { reason: self.reason(e), after: None, unsent: false };
        while let Some(piece) = response.chunk().await.map_err(broken)? {
            if body.len() + piece.len() > self.patience.max_answer_bytes {
                let limit = self.patience.max_answer_bytes;
                return Err(Fault::Final(WireError::TooLong { url: url.to_owned(), limit }));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    /// What happened, in words, down to its cause.
    fn reason(&self, error: reqwest::Error) -> String {
        let error = error.without_url();
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(e) = cause {
            text = format!("{text}: {e}");
            cause = e.source();
        }
        self.hide(&text)
    }

    /// The message in the body of a refusal.
    fn said(&self, body: &[u8]) -> String {
        let text = String::from_utf8_lossy(&body[..body.len().min(64 << 10)]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let message = [&json["error"]["message"], &json["message"], &json["detail"], &json["error"]];
        let found = message.into_iter().find(|v| !v.is_null());
        let said = match found {
            Some(serde_json::Value::String(said)) => said.clone(),
            Some(other) => other.to_string(),
            None => text.into_owned(),
        };
        shown(&self.hide(&said))
    }

    fn hide(&self, text: &str) -> String {
        self.secret.as_ref().map_or_else(|| text.to_owned(), |s| s.hide(text))
    }
}

/// A client that follows nobody elsewhere and asks no proxy about this machine.
pub(crate) fn client(site: &Site, connect: Duration) -> Result<Client, WireError> {
    let mut builder = Client::builder()
        .tls_backend_preconfigured(tls_config()?)
        .https_only(site.secure)
        // A redirect could carry the secret and the question to another host.
        .redirect(redirect::Policy::none())
        .connect_timeout(connect)
        .user_agent(concat!("surefoot/", env!("CARGO_PKG_VERSION")));
    if site.near {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|e| WireError::Machine { action: "prepare a connection", reason: e.to_string() })
}

/// How long the server asks to wait; only seconds are read, since a date would be compared with another clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse::<u64>().ok()?;
    Some(Duration::from_secs(seconds))
}
