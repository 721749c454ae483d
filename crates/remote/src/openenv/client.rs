//! A session with a server.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::seen::read;
use super::socket::Socket;
use super::{Code, OpenEnvError, Schemas, Seen, Tool};
use crate::wire::{Line, Patience, Repeat, Seam, Secret, Site, WireError, shown};

/// How to play.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// Over a WebSocket: an environment of our own.
    #[default]
    WebSocket,
    /// Over HTTP: the one environment of a server that keeps one.
    Http,
}

/// Which server, and how to play.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenEnvSettings {
    /// Where it is, as `https://host`.
    pub address: String,
    /// How to play.
    pub transport: Transport,
    /// How long it may take. A step is sent once: only what cannot have been acted on is sent again.
    pub patience: Patience,
}

impl OpenEnvSettings {
    /// A server over a WebSocket, with the defaults.
    pub fn new(address: impl Into<String>) -> Self {
        OpenEnvSettings { address: address.into(), transport: Transport::WebSocket, patience: Patience::default() }
    }
}

/// A session with a server. Dropping it ends it.
pub struct OpenEnv {
    seam: Seam,
    site: Site,
    line: Line,
    socket: Option<Arc<Mutex<Socket>>>,
}

impl std::fmt::Debug for OpenEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenEnv").field("site", &self.site).finish_non_exhaustive()
    }
}

impl OpenEnv {
    /// Reaches a server.
    ///
    /// - Errors: [`OpenEnvError`].
    pub fn connect(settings: &OpenEnvSettings, secret: Option<Secret>) -> Result<OpenEnv, OpenEnvError> {
        let address = settings.address.as_str();
        // The two ways to write one server's address.
        let address = match (address.strip_prefix("wss://"), address.strip_prefix("ws://")) {
            (Some(rest), _) => format!("https://{rest}"),
            (_, Some(rest)) => format!("http://{rest}"),
            _ => address.to_owned(),
        };
        let site = Site::parse(&address, ["https://", "http://"], secret.as_ref())?;
        let line = Line::new(&site, secret.clone(), settings.patience)?;
        let seam = Seam::start("openenv")?;
        let socket = match settings.transport {
            Transport::Http => None,
            Transport::WebSocket => {
                let there = Site { base: site.base.replacen("http", "ws", 1), ..site.clone() };
                let patience = settings.patience;
                let opened = seam.run(async move { Socket::open(&there, secret, patience).await })??;
                Some(Arc::new(Mutex::new(opened)))
            }
        };
        Ok(OpenEnv { seam, site, line, socket })
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        &self.site.base
    }

    /// Begins an episode; `more` holds what this environment takes besides.
    ///
    /// - Errors: `NoSession` for a server that would forget the episode before its first step.
    pub fn reset(&self, seed: Option<u64>, more: &Map<String, Value>) -> Result<Seen, OpenEnvError> {
        let mut data = more.clone();
        if let Some(seed) = seed {
            data.insert("seed".to_owned(), seed.into());
        }
        if self.socket.is_some() {
            let seen = self.say(json!({"type": "reset", "data": data}), "observation")?;
            return Seen::read(&self.site.base, seen);
        }
        let seen = self.http(Method::POST, "reset", Some(&Value::Object(data)), Repeat::Harmless)?;
        let seen = Seen::read(&self.site.base, seen)?;
        // A fresh environment for every request would have no episode, or another one each time.
        let (first, second) = (self.state()?, self.state()?);
        if first["episode_id"].is_null() || first["episode_id"] != second["episode_id"] {
            return Err(OpenEnvError::NoSession { url: self.site.base.clone() });
        }
        Ok(seen)
    }

    /// Takes a step, once.
    pub fn step(&self, action: &Map<String, Value>) -> Result<Seen, OpenEnvError> {
        let seen = match self.socket {
            Some(_) => self.say(json!({"type": "step", "data": action}), "observation")?,
            None => self.http(Method::POST, "step", Some(&json!({ "action": action })), Repeat::IfUnsent)?,
        };
        Seen::read(&self.site.base, seen)
    }

    /// How the environment stands.
    pub fn state(&self) -> Result<Value, OpenEnvError> {
        match self.socket {
            Some(_) => self.say(json!({"type": "state"}), "state"),
            None => self.http(Method::GET, "state", None, Repeat::Harmless),
        }
    }

    /// The form of its actions, observations and state.
    pub fn schemas(&self) -> Result<Schemas, OpenEnvError> {
        read(&self.site.base, self.http(Method::GET, "schema", None, Repeat::Harmless)?)
    }

    /// Whether it says that it is well.
    pub fn is_healthy(&self) -> Result<bool, OpenEnvError> {
        Ok(self.http(Method::GET, "health", None, Repeat::Harmless)?["status"] == "healthy")
    }

    /// The tools of an environment that has them.
    pub fn tools(&self) -> Result<Vec<Tool>, OpenEnvError> {
        let ask = json!({"type": "list_tools"});
        let mut seen = self.step(ask.as_object().expect("written as an object above"))?;
        let tools = seen.observation.remove("tools").unwrap_or_default();
        read(&self.site.base, tools)
    }

    /// Ends the session.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(socket) = self.socket.take() {
            // With the thread gone the connection is gone too.
            drop(self.seam.run(async move { socket.lock().await.close().await }));
        }
    }

    fn say(&self, message: Value, kind: &'static str) -> Result<Value, OpenEnvError> {
        let closed = || OpenEnvError::Closed { url: self.site.base.clone(), reason: "it was closed".to_owned() };
        let socket = self.socket.clone().ok_or_else(closed)?;
        self.seam.run(async move { socket.lock().await.ask(&message, kind).await })?
    }

    fn http(&self, method: Method, path: &str, body: Option<&Value>, repeat: Repeat) -> Result<Value, OpenEnvError> {
        let (line, url) = (self.line.clone(), self.site.at(path));
        let body = body.map(|b| serde_json::to_vec(b).expect("JSON values always serialise"));
        let asked = url.clone();
        let answer = self.seam.run(async move { line.ask(method, &asked, body.as_deref(), repeat).await })?;
        let answer = answer.map_err(|error| match error {
            // What the other transport says as `VALIDATION_ERROR`.
            WireError::Refused { url, status: 422, said } => OpenEnvError::Said { url, code: Code::Validation, said },
            other => OpenEnvError::Wire(other),
        })?;
        serde_json::from_slice(&answer)
            .map_err(|e| OpenEnvError::Wire(WireError::BadAnswer { url, reason: shown(&format!("not JSON: {e}")) }))
    }
}

impl Drop for OpenEnv {
    fn drop(&mut self) {
        self.end();
    }
}
