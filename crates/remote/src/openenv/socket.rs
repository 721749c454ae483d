//! A WebSocket on which one question is followed by one answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::Uri;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::{Code, OpenEnvError};
use crate::wire::{Patience, Secret, Site, WireError, shown, tls_config};

/// A line, encrypted or not.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An open connection.
pub(super) struct Socket {
    url: String,
    /// None once it is of no use: after an end, or a deadline that leaves an answer on its way.
    stream: Option<WebSocketStream<Box<dyn Stream>>>,
    deadline: Duration,
    secret: Option<Secret>,
}

impl Socket {
    pub(super) async fn open(site: &Site, secret: Option<Secret>, patience: Patience) -> Result<Socket, OpenEnvError> {
        let url = site.at("ws");
        let late = |_| WireError::Deadline {
            url: url.clone(),
            deadline: patience.connect,
            doing: "opening a connection".to_owned(),
        };
        let stream =
            timeout(patience.connect, open(&url, site.secure, secret.as_ref(), patience)).await.map_err(late)??;
        Ok(Socket { url, stream: Some(stream), deadline: patience.deadline, secret })
    }

    /// Sends a message and takes the data of the answer, which must be of a kind.
    pub(super) async fn ask(&mut self, message: &Value, kind: &str) -> Result<Value, OpenEnvError> {
        let deadline = self.deadline;
        let answer = timeout(deadline, self.exchange(message)).await;
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(reason)) => {
                self.stream = None;
                return Err(OpenEnvError::Closed { url: self.url.clone(), reason });
            }
            Err(_) => {
                // Its answer may still come, and would be taken for the next one.
                self.stream = None;
                let doing = format!("waiting for the answer to `{}`", message["type"].as_str().unwrap_or("?"));
                return Err(WireError::Deadline { url: self.url.clone(), deadline, doing }.into());
            }
        };
        let bad = |reason: String| OpenEnvError::Wire(WireError::BadAnswer { url: self.url.clone(), reason });
        let mut answer: Value = serde_json::from_str(&answer).map_err(|e| bad(format!("not JSON: {e}")))?;
        let data = answer["data"].take();
        match answer["type"].as_str() {
            Some("error") => {
                let code = Code::parse(data["code"].as_str().unwrap_or("none"));
                let message = data["message"].as_str().unwrap_or_default();
                let errors = if data["errors"].is_null() { String::new() } else { format!(" {}", data["errors"]) };
                let said = shown(&self.hide(&format!("{message}{errors}")));
                Err(OpenEnvError::Said { url: self.url.clone(), code, said })
            }
            Some(got) if got == kind => Ok(data),
            other => Err(bad(format!("needed an answer of kind `{kind}`, got `{}`", shown(other.unwrap_or("none"))))),
        }
    }

    async fn exchange(&mut self, message: &Value) -> Result<String, String> {
        let stream = self.stream.as_mut().ok_or("it was closed")?;
        stream.send(Message::text(message.to_string())).await.map_err(|e| broken(&e))?;
        loop {
            match stream.next().await {
                Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
                // Answered by the library.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Binary(_))) => return Err("needed text, got bytes".to_owned()),
                Some(Ok(Message::Close(_))) | None => return Err("the server closed it".to_owned()),
                Some(Err(error)) => return Err(broken(&error)),
            }
        }
    }

    /// Says goodbye; whether it is heard does not matter.
    pub(super) async fn close(&mut self) {
        if let Some(mut stream) = self.stream.take() {
            let goodbye = async {
                drop(stream.send(Message::text(r#"{"type":"close"}"#)).await);
                drop(stream.close(None).await);
            };
            drop(timeout(Duration::from_secs(1), goodbye).await);
        }
    }

    fn hide(&self, text: &str) -> String {
        self.secret.as_ref().map_or_else(|| text.to_owned(), |s| s.hide(text))
    }
}

fn broken(error: &Error) -> String {
    shown(&error.to_string())
}

async fn open(
    url: &str,
    secure: bool,
    secret: Option<&Secret>,
    patience: Patience,
) -> Result<WebSocketStream<Box<dyn Stream>>, OpenEnvError> {
    let unreachable = |reason: String| WireError::Unreachable { url: url.to_owned(), attempts: 1, reason };
    let bad = |reason: String| WireError::BadSetting { setting: "address", reason };
    let uri: Uri = url.parse().map_err(|_| bad(format!("needed an address, got `{url}`")))?;
    let host = uri.host().ok_or_else(|| bad(format!("needed a host, got `{url}`")))?;
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let tcp = TcpStream::connect((bare.as_str(), port)).await.map_err(|e| unreachable(e.to_string()))?;
    // A question waits for its answer, so nothing is gained by collecting bytes.
    tcp.set_nodelay(true).map_err(|e| unreachable(e.to_string()))?;
    let stream: Box<dyn Stream> = if secure {
        let name = ServerName::try_from(bare).map_err(|e| bad(e.to_string()))?;
        let tls = TlsConnector::from(Arc::new(tls_config()?));
        Box::new(tls.connect(name, tcp).await.map_err(|e| unreachable(e.to_string()))?)
    } else {
        Box::new(tcp)
    };
    let mut request = url.into_client_request().map_err(|e| bad(broken(&e)))?;
    if let Some(secret) = secret {
        request.headers_mut().insert(AUTHORIZATION, secret.header());
    }
    let config = WebSocketConfig::default()
        .max_message_size(Some(patience.max_answer_bytes))
        .max_frame_size(Some(patience.max_answer_bytes));
    let (stream, _) = client_async_with_config(request, stream, Some(config)).await.map_err(|e| match &e {
        Error::Http(answer) => {
            WireError::Refused { url: url.to_owned(), status: answer.status().as_u16(), said: String::new() }
        }
        other => unreachable(broken(other)),
    })?;
    Ok(stream)
}
