//! Requests that can be cancelled, and downloads that go on where they broke off.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use ureq::config::RedirectAuthHeaders;

use crate::hub::Endpoint;
use crate::part::{Part, Wanted};
use crate::{Event, FileRecord, HubSettings, Phase, RemoteError, Watch, disk, progress};

/// How much of a body is read at once.
const PIECE: usize = 256 << 10;

/// The longest wait between two attempts, also when the server asks for more.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// Why an attempt brought nothing usable.
pub(crate) enum Fault {
    /// It may work a little later.
    Later {
        /// What happened.
        reason: String,
        /// How long the server asks to wait.
        after: Option<Duration>,
        /// Whether something was gained, so that the count of attempts starts anew.
        gained: bool,
    },
    /// It will not work.
    Final(RemoteError),
}

impl From<RemoteError> for Fault {
    fn from(error: RemoteError) -> Self {
        Fault::Final(error)
    }
}

fn later(reason: impl ToString, gained: bool) -> Fault {
    Fault::Later { reason: reason.to_string(), after: None, gained }
}

enum Piece {
    Head(ureq::http::response::Parts),
    Data(Vec<u8>),
    End,
    Broken(String),
}

/// A response whose body arrives piece by piece.
pub(crate) struct Answer {
    head: ureq::http::response::Parts,
    body: Receiver<Piece>,
    stall: Duration,
}

/// Speaks to one server.
pub(crate) struct Client<'a> {
    agent: ureq::Agent,
    settings: &'a HubSettings,
}

impl<'a> Client<'a> {
    pub(crate) fn new(settings: &'a HubSettings, endpoint: &Endpoint<'_>) -> Self {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // No step down to an open connection on the way.
            .https_only(endpoint.secure)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("surefoot/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(settings.stall))
            // The reading thread of an answer that nobody waits for any more ends by this.
            .timeout_per_read(Some(settings.stall))
            .timeout_per_write(Some(settings.stall));
        if endpoint.near {
            // A server on this machine is not reached through a proxy.
            config = config.proxy(None);
        }
        Client { agent: config.build().new_agent(), settings }
    }

    /// Asks, on a thread of its own, so that a silent server holds neither a deadline nor a cancellation.
    fn ask(&self, url: &str, headers: &[(&'static str, String)], watch: Watch<'_>) -> Result<Answer, Fault> {
        let mut request = self.agent.get(url);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(token) = &self.settings.token {
            request = request.header("authorization", token.header());
        }
        let (sender, body) = sync_channel(8);
        std::thread::spawn(move || {
            let response = match request.call() {
                Ok(response) => response,
                Err(e) => return drop(sender.send(Piece::Broken(e.to_string()))),
            };
            let (head, body) = response.into_parts();
            let mut reader = body.into_reader();
            let mut said = sender.send(Piece::Head(head));
            let mut piece = vec![0; PIECE];
            // A receiver that is gone is no longer interested.
            while said.is_ok() {
                said = match reader.read(&mut piece) {
                    Ok(0) => return drop(sender.send(Piece::End)),
                    Ok(n) => sender.send(Piece::Data(piece[..n].to_vec())),
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(()),
                    Err(e) => return drop(sender.send(Piece::Broken(e.to_string()))),
                };
            }
        });
        // Connecting, sending and the first line may each take as long as a stall.
        match wait(&body, self.settings.stall * 3, watch)? {
            Piece::Head(head) => Ok(Answer { head, body, stall: self.settings.stall }),
            Piece::Broken(reason) => Err(later(reason, false)),
            Piece::Data(_) | Piece::End => Err(later("the connection ended before an answer", false)),
        }
    }

    /// A small answer as a whole.
    pub(crate) fn get(&self, url: &str, name: &str, limit: usize, watch: Watch<'_>) -> Result<Vec<u8>, RemoteError> {
        self.repeat(url, name, watch, || {
            let mut answer = self.ask(url, &[], watch)?;
            if answer.status() != 200 {
                return Err(answer.refusal(url));
            }
            let mut body = Vec::new();
            while let Some(piece) = answer.next(watch)? {
                body.extend_from_slice(&piece);
                if body.len() > limit {
                    let reason = format!("needed at most {limit} bytes, got more");
                    return Err(Fault::Final(RemoteError::BadAnswer { url: url.to_string(), reason }));
                }
            }
            match answer.content_length() {
                Some(length) if length != body.len() as u64 => {
                    Err(later(format!("needed {length} bytes, got {}", body.len()), false))
                }
                _ => Ok(body),
            }
        })
    }

    /// Attempts until one succeeds, a final fault comes, or too many in a row gained nothing.
    fn repeat<T>(
        &self,
        url: &str,
        name: &str,
        watch: Watch<'_>,
        mut attempt: impl FnMut() -> Result<T, Fault>,
    ) -> Result<T, RemoteError> {
        let mut vain = 0;
        loop {
            watch.check()?;
            let (reason, after) = match attempt() {
                Ok(value) => return Ok(value),
                Err(Fault::Final(error)) => return Err(error),
                Err(Fault::Later { reason, after, gained }) => {
                    vain = if gained { 1 } else { vain + 1 };
                    (reason, after)
                }
            };
            if vain >= self.settings.attempts {
                return Err(RemoteError::Unreachable { url: url.to_string(), attempts: vain, reason });
            }
            let own = self.settings.backoff.saturating_mul(1 << (vain - 1).min(10));
            let wait = after.unwrap_or(own).min(LONGEST_WAIT);
            watch.tell(&Event::Retrying { file: name, reason: &reason, wait });
            watch.sleep(wait)?;
        }
    }

    /// Fetches a file into a `.part` beside its place; what an earlier attempt or process left there is built on when the
    /// server still has the same file.
    pub(crate) fn download(&self, file: &Wanted<'_>, watch: Watch<'_>) -> Result<FileRecord, RemoteError> {
        let part = Part::of(file);
        let mut built_on = part.have()? > 0;
        loop {
            // Only bytes beyond all that was there before count as gained, so that attempts come to an end.
            let mut best = part.have()?;
            self.repeat(file.url, file.name, watch, || self.attempt(file, &part, &mut best, watch))?;
            let got = disk::hash(file.folder, &part.name, watch)?;
            match file.sha256 {
                Some(needed) if needed != got.sha256 => {
                    part.discard()?;
                    // Bytes of an earlier attempt may be of another file: once more from the start, and no more than once.
                    if !std::mem::replace(&mut built_on, false) {
                        return Err(RemoteError::WrongFile {
                            file: file.name.to_string(),
                            what: "SHA-256",
                            needed: needed.to_string(),
                            got: got.sha256,
                        });
                    }
                }
                _ => {
                    part.finish(&file.folder.join(file.name))?;
                    return Ok(FileRecord { file: file.name.to_string(), ..got });
                }
            }
        }
    }

    fn attempt(&self, file: &Wanted<'_>, part: &Part, best: &mut u64, watch: Watch<'_>) -> Result<(), Fault> {
        let mut have = part.have()?;
        let tag = part.tag();
        // Without a mark of the server's version or a hash to compare with, old bytes cannot be trusted.
        let trusted = tag.is_some() || file.sha256.is_some();
        if (have > 0 && !trusted) || file.size_bytes.is_some_and(|size| have > size) {
            part.discard()?;
            have = 0;
        }
        if have > 0 && file.size_bytes == Some(have) {
            return Ok(());
        }
        let mut headers = vec![("accept-encoding", "identity".to_string())];
        if have > 0 {
            headers.push(("range", format!("bytes={have}-")));
            headers.extend(tag.clone().map(|tag| ("if-range", tag)));
        }
        let mut answer = self.ask(file.url, &headers, watch)?;
        let total = match (answer.status(), answer.content_range()) {
            (200, _) => {
                part.start(answer.strong_tag())?;
                have = 0;
                answer.content_length()
            }
            (206, Some((start, total))) if have > 0 && start == have && answer.strong_tag() == tag => Some(total),
            (206 | 416, _) => {
                part.discard()?;
                return Err(later("the file on the server changed, starting again", false));
            }
            _ => return Err(answer.refusal(file.url)),
        };
        if let (Some(needed), Some(got)) = (file.size_bytes, total)
            && needed != got
        {
            part.discard()?;
            return Err(Fault::Final(wrong_size(file, needed, got)));
        }
        let total = total.or(file.size_bytes);
        let ended = receive(&mut answer, part, &mut have, total, file, watch);
        let gained = have > *best;
        *best = have.max(*best);
        match (ended, total) {
            (Err(Fault::Later { reason, after, .. }), _) => Err(Fault::Later { reason, after, gained }),
            (Err(fault), _) => Err(fault),
            (Ok(()), Some(total)) if have < total => {
                Err(later(format!("the connection ended after {have} of {total} bytes"), gained))
            }
            (Ok(()), _) => Ok(()),
        }
    }
}

/// Appends the body to the part, down to the disk, however it ends; `have` counts.
fn receive(
    answer: &mut Answer,
    part: &Part,
    have: &mut u64,
    total: Option<u64>,
    file: &Wanted<'_>,
    watch: Watch<'_>,
) -> Result<(), Fault> {
    let mut out = File::options().append(true).open(&part.path).map_err(RemoteError::io("write", &part.path))?;
    let ended = loop {
        match answer.next(watch) {
            Ok(None) => break Ok(()),
            Ok(Some(piece)) => {
                out.write_all(&piece).map_err(RemoteError::io("write", &part.path))?;
                *have += piece.len() as u64;
                watch.bytes(Phase::Download, file.name, *have, total);
            }
            Err(fault) => break Err(fault),
        }
        if let Some(total) = total
            && *have > total
        {
            part.discard()?;
            return Err(Fault::Final(wrong_size(file, total, *have)));
        }
    };
    out.sync_all().map_err(RemoteError::io("sync", &part.path))?;
    ended
}

fn wrong_size(file: &Wanted<'_>, needed: u64, got: u64) -> RemoteError {
    let (needed, got) = (needed.to_string(), got.to_string());
    RemoteError::WrongFile { file: file.name.to_string(), what: "size", needed, got }
}

/// Waits for something from the reading thread, but not longer than the server may be silent.
fn wait(body: &Receiver<Piece>, stall: Duration, watch: Watch<'_>) -> Result<Piece, Fault> {
    let started = Instant::now();
    loop {
        watch.check()?;
        match body.recv_timeout(progress::TICK) {
            Ok(piece) => return Ok(piece),
            Err(RecvTimeoutError::Disconnected) => return Err(later("the connection was lost", false)),
            Err(RecvTimeoutError::Timeout) if started.elapsed() > stall => {
                return Err(later(format!("the server was silent for {} s", stall.as_secs_f64()), false));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

impl Answer {
    fn status(&self) -> u16 {
        self.head.status.as_u16()
    }

    /// The next piece of the body; none at its end.
    fn next(&mut self, watch: Watch<'_>) -> Result<Option<Vec<u8>>, Fault> {
        match wait(&self.body, self.stall, watch)? {
            Piece::Data(piece) => Ok(Some(piece)),
            Piece::Head(_) | Piece::End => Ok(None),
            Piece::Broken(reason) => Err(later(reason, false)),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    /// First byte and whole size from `bytes FIRST-LAST/SIZE`.
    fn content_range(&self) -> Option<(u64, u64)> {
        let (range, size) = self.header("content-range")?.trim().strip_prefix("bytes ")?.split_once('/')?;
        Some((range.split_once('-')?.0.trim().parse().ok()?, size.trim().parse().ok()?))
    }

    /// The mark of the file's version; a weak one does not promise equal bytes and counts as none.
    fn strong_tag(&self) -> Option<String> {
        self.header("etag").map(str::trim).filter(|t| t.starts_with('"') && t.ends_with('"')).map(str::to_string)
    }

    /// What a status other than the wanted one means.
    fn refusal(&self, url: &str) -> Fault {
        let status = self.status();
        if matches!(status, 408 | 425 | 429 | 500..=599) {
            let after = self.header("retry-after").and_then(|s| s.trim().parse().ok()).map(Duration::from_secs);
            return Fault::Later { reason: format!("status {status}"), after, gained: false };
        }
        Fault::Final(RemoteError::Refused { url: url.to_string(), status })
    }
}
