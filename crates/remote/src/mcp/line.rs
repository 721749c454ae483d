//! The line to a server, from its beginning to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{
    ClientCapabilities, ClientConfig, Implementation, ProtocolVersion, ServerNotification, SubscriptionFilter,
};
use rmcp::service::{
    ClientCacheConfig, ClientInitializeError, ClientLifecycleMode, ClientServiceExt, NotificationContext, Peer,
    RoleClient, RunningService,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;

use super::child::Program;
use super::{McpError, McpServer, Protocol, Reach};
use crate::wire::{Secret, Site, client, shown};

/// The most bytes of one message.
const MESSAGE_BYTES: usize = 16 << 20;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// Listens for the one thing a server may tell us unasked: that its tools changed.
#[derive(Debug, Clone)]
struct Listener {
    changed: Arc<AtomicBool>,
    config: ClientConfig,
}

impl rmcp::ClientHandler for Listener {
    fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) -> impl Future<Output = ()> + Send + '_ {
        self.changed.store(true, Ordering::SeqCst);
        std::future::ready(())
    }

    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }
}

/// A server that began.
pub(super) struct Open {
    pub(super) peer: Peer<RoleClient>,
    running: RunningService<RoleClient, Listener>,
    program: Option<Program>,
    pub(super) changed: Arc<AtomicBool>,
    pub(super) protocol: String,
}

impl Open {
    /// Reaches a server and agrees on a protocol.
    pub(super) async fn reach(server: &McpServer, secret: Option<&Secret>) -> Result<Open, McpError> {
        let new = || vec![ProtocolVersion::V_2026_07_28];
        let old = ProtocolVersion::V_2025_11_25;
        match server.protocol {
            Protocol::New => {
                once(server, secret, ClientLifecycleMode::Discover { preferred_versions: new() }, old).await
            }
            Protocol::Old => once(server, secret, ClientLifecycleMode::Initialize, old).await,
            Protocol::Auto => {
                let mode = ClientLifecycleMode::Auto { preferred_versions: new(), legacy_version: Some(old.clone()) };
                let first = match once(server, secret, mode, old.clone()).await {
                    Ok(open) => return Ok(open),
                    Err(McpError::Start { reason, .. }) => reason,
                    Err(error) => return Err(error),
                };
                // A server that broke off at a question it does not know is asked the old way, on a new line.
                once(server, secret, ClientLifecycleMode::Initialize, old).await.map_err(|e| match e {
                    McpError::Start { server, reason, stderr } => {
                        McpError::Start { server, reason: format!("{reason}; before that: {first}"), stderr }
                    }
                    other => other,
                })
            }
        }
    }

    /// The end of what the server's program wrote to standard error.
    pub(super) fn stderr(&self) -> String {
        self.program.as_ref().map(Program::stderr).unwrap_or_default()
    }

    /// Ends the line and the program.
    pub(super) async fn end(mut self) {
        drop(self.running.close_with_timeout(Duration::from_secs(2)).await);
        drop(self.running);
        if let Some(program) = self.program {
            program.end().await;
        }
    }
}

async fn once(
    server: &McpServer,
    secret: Option<&Secret>,
    mode: ClientLifecycleMode,
    version: ProtocolVersion,
) -> Result<Open, McpError> {
    let changed = Arc::new(AtomicBool::new(false));
    let us = Implementation::new("surefoot", env!("CARGO_PKG_VERSION"));
    let config = ClientConfig::new(ClientCapabilities::default(), us).with_protocol_version(version);
    let listener = Listener { changed: changed.clone(), config };
    let (begun, program) = match &server.reach {
        Reach::Stdio { program, args, folder, variables } => {
            let (child, stdout, stdin) = Program::start(program, args, folder.as_deref(), variables)
                .map_err(|source| McpError::Spawn { server: server.name.clone(), program: program.clone(), source })?;
            let line = AsyncRwTransport::new(stdout, stdin).with_max_line_length(MESSAGE_BYTES);
            (listener.serve_with_lifecycle(line, mode).await, Some(child))
        }
        Reach::Http { url } => {
            let wire = |source| McpError::Wire { server: server.name.clone(), source };
            let site = Site::parse(url, ["https://", "http://"], secret).map_err(wire)?;
            let http = client(&site, CONNECT).map_err(wire)?;
            let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                .max_json_response_size(MESSAGE_BYTES)
                .max_sse_event_size(MESSAGE_BYTES);
            if let Some(secret) = secret {
                config = config.auth_header(secret.bare());
            }
            let line = StreamableHttpClientTransport::with_client(http, config);
            (listener.serve_with_lifecycle(line, mode).await, None)
        }
    };
    let running = match begun {
        Ok(running) => running,
        Err(error) => {
            let stderr = program.as_ref().map(Program::stderr).unwrap_or_default();
            let reason = reason(&error, secret);
            return Err(McpError::Start { server: server.name.clone(), reason, stderr });
        }
    };
    let peer = running.peer().clone();
    // A list that the library kept would hide a change.
    peer.set_response_cache_config(ClientCacheConfig::disabled()).await;
    let info = peer.peer_info();
    let protocol = info.as_ref().map(|i| i.protocol_version.to_string()).unwrap_or_default();
    let tells = info.as_ref().and_then(|i| i.capabilities.tools.as_ref()?.list_changed).unwrap_or(false);
    if tells && protocol.as_str() >= ProtocolVersion::V_2026_07_28.as_str() {
        tokio::spawn(listen(peer.clone(), changed.clone()));
    }
    Ok(Open { peer, running, program, changed, protocol })
}

/// Waits for news of the tools; in the new protocol a server tells only whoever listens.
async fn listen(peer: Peer<RoleClient>, changed: Arc<AtomicBool>) {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let Ok(mut news) = peer.listen(filter).await else { return };
    while let Ok(Some(told)) = news.next().await {
        if matches!(told, ServerNotification::ToolListChangedNotification(_)) {
            changed.store(true, Ordering::SeqCst);
        }
    }
}

/// What happened, in words, down to its cause, without the secret.
fn reason(error: &ClientInitializeError, secret: Option<&Secret>) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    shown(&secret.map_or(text.clone(), |s| s.hide(&text)))
}
