//! A server in use: its tools as they were accepted, and calls.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use episode::{Cause, ToolCall, ToolSpec};
use gate::Answer;
use guard::{Labels, Origin};
use rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject, PaginatedRequestParams, Tool};
use rmcp::service::{Peer, RoleClient, ServiceError};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::answer::{cut, text};
use super::line::Open;
use super::{McpError, McpServer};
use crate::Pins;
use crate::wire::{Seam, Secret, shown};

/// Tools of one server, and pages of their list.
const MAX_TOOLS: usize = 1024;
/// Bytes of what one tool says of itself.
const MAX_TOOL_BYTES: usize = 256 << 10;

/// A tool as a server lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The server's name for it.
    pub name: String,
    /// What the server says it does.
    pub description: String,
    /// The schema of its arguments.
    pub parameters: Value,
    /// The SHA-256, in hexadecimal, of name, title, description and schemas as canonical JSON.
    pub digest: String,
}

/// A tool that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// The server's name for it.
    pub tool: String,
    /// Why.
    pub why: Why,
}

/// Why a tool is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Nobody accepted it yet.
    New,
    /// It is not what was accepted.
    Changed {
        /// The digest that was accepted.
        accepted: String,
        /// The digest it has now; none when it is gone.
        now: Option<String>,
    },
    /// Its name cannot be a tool's here.
    Name,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tool = shown(&self.tool);
        let short = |d: &str| d.get(..12).unwrap_or(d).to_owned();
        match &self.why {
            Why::New => write!(f, "tool `{tool}` was not accepted yet"),
            Why::Changed { accepted, now: Some(now) } => {
                write!(f, "tool `{tool}` changed since it was accepted ({} then, {} now)", short(accepted), short(now))
            }
            Why::Changed { now: None, .. } => write!(f, "tool `{tool}` was accepted and is gone"),
            Why::Name => write!(f, "tool `{tool}` has a name that no tool can have here"),
        }
    }
}

/// A server in use. Dropping it ends its program.
pub struct Mcp {
    server: McpServer,
    seam: Seam,
    open: Option<Open>,
    listed: Vec<Listed>,
    /// By our names, what is used: the tool and its place in the server's terms.
    admitted: BTreeMap<String, (Listed, ToolSpec)>,
    stopped: Vec<Stopped>,
    secret: Option<Secret>,
}

impl fmt::Debug for Mcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools: Vec<&String> = self.admitted.keys().collect();
        f.debug_struct("Mcp").field("server", &self.server.name).field("tools", &tools).finish_non_exhaustive()
    }
}

impl Mcp {
    /// Reaches a server and lists its tools; none is used before [`Mcp::admit`].
    ///
    /// - Errors: [`McpError`]; by the deadline in any case.
    pub fn connect(server: McpServer, secret: Option<Secret>) -> Result<Mcp, McpError> {
        server.check()?;
        let wire = |source| McpError::Wire { server: server.name.clone(), source };
        let seam = Seam::start("mcp").map_err(wire)?;
        let (to_reach, to_send) = (server.clone(), secret.clone());
        let deadline = Duration::from_secs(server.start_s.into());
        let opening = async move { timeout(deadline, Open::reach(&to_reach, to_send.as_ref())).await };
        let late =
            |what, stderr| McpError::Deadline { server: server.name.clone(), what, deadline_s: server.start_s, stderr };
        let open = seam.run(opening).map_err(wire)?.map_err(|_| late("begin", String::new()))??;
        let mut mcp = Mcp {
            server,
            seam,
            open: Some(open),
            listed: Vec::new(),
            admitted: BTreeMap::new(),
            stopped: Vec::new(),
            secret,
        };
        mcp.listed = mcp.list()?;
        Ok(mcp)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.server.name
    }

    /// The version of the protocol that was agreed on.
    pub fn protocol(&self) -> &str {
        self.open.as_ref().map_or("", |o| &o.protocol)
    }

    /// What it lists, to be shown to whoever accepts it.
    pub fn listed(&self) -> &[Listed] {
        &self.listed
    }

    /// Uses the tools that are as they were accepted, and no others; says which are stopped.
    pub fn admit(&mut self, pins: &Pins) -> &[Stopped] {
        self.admitted.clear();
        self.stopped.clear();
        for tool in &self.listed {
            let why = match pins.tool(&self.server.name, &tool.name) {
                _ if !is_name(&tool.name) => Why::Name,
                None => Why::New,
                Some(accepted) if accepted != tool.digest => {
                    Why::Changed { accepted: accepted.to_owned(), now: Some(tool.digest.clone()) }
                }
                Some(_) => {
                    let spec = spec(&self.server, tool);
                    self.admitted.insert(spec.name.clone(), (tool.clone(), spec));
                    continue;
                }
            };
            self.stopped.push(Stopped { tool: tool.name.clone(), why });
        }
        &self.stopped
    }

    /// The tools that are used.
    pub fn tools(&self) -> Vec<ToolSpec> {
        self.admitted.values().map(|(_, spec)| spec.clone()).collect()
    }

    /// The tools that are not used, and why; more may come when the server changes its list.
    pub fn stopped(&self) -> &[Stopped] {
        &self.stopped
    }

    /// Whether it has a tool of this name in use or stopped by a change.
    pub fn has(&self, tool: &str) -> bool {
        self.admitted.contains_key(tool)
            || self.server_name(tool).is_some_and(|t| self.stopped.iter().any(|s| s.tool == t))
    }

    /// Calls a tool, once: a call that failed is never repeated here.
    ///
    /// - Errors: a fault of the server or the line to it, by the deadline of a call; what the tool itself refused is an answer
    ///   that is not `ok`.
    pub fn call(&mut self, call: &ToolCall) -> Result<Answer, Cause> {
        self.look_again()?;
        let Some((tool, spec)) = self.admitted.get(&call.tool) else {
            let labels = Labels::of(Origin::System);
            let name = self.server_name(&call.tool).unwrap_or(&call.tool);
            let why = self.stopped.iter().find(|s| s.tool == name).map(Stopped::to_string);
            let why = why.unwrap_or_else(|| format!("there is no tool `{}`", shown(&call.tool)));
            return Ok(Answer::refused(format!("stopped: {why}"), labels));
        };
        let labels = labels(&self.server, tool, spec);
        let params = CallToolRequestParams::new(tool.name.clone()).with_arguments(call.arguments.clone());
        let deadline = Duration::from_secs(self.server.call_s.into());
        let peer = self.peer()?;
        let asked = self.seam.run(async move { timeout(deadline, peer.call_tool_once(params)).await });
        let asked = asked.map_err(|e| Cause::new("mcp", e.to_string()))?;
        let Ok(answer) = asked else {
            let what = format!("`{}` gave no answer within {} s", call.tool, self.server.call_s);
            return Err(Cause::new("deadline", what));
        };
        let max = self.server.max_answer_bytes;
        match answer {
            Ok(CallToolResponse::Complete(result)) => {
                let (text, ok) = text(&result, max);
                Ok(Answer { text, labels, ok })
            }
            Ok(CallToolResponse::InputRequired(_)) => {
                let text = "the tool asks a person for something in the middle of a call, which is not possible here";
                Ok(Answer::refused(text, labels))
            }
            Ok(_) => Ok(Answer::refused("the tool goes on by itself as a task, which is not possible here", labels)),
            // The server understood and refused: bad arguments, no such tool.
            Err(ServiceError::McpError(refusal)) => {
                Ok(Answer::refused(cut(format!("the tool refused: {}", refusal.message), max), labels))
            }
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Ends the line and the server's program.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(open) = self.open.take() {
            // With the thread gone the program was killed with it.
            drop(self.seam.run(open.end()));
        }
    }

    fn peer(&self) -> Result<Peer<RoleClient>, Cause> {
        let gone = || Cause::new("mcp_closed", format!("MCP server `{}` was closed", self.server.name));
        self.open.as_ref().map(|o| o.peer.clone()).ok_or_else(gone)
    }

    fn broken(&self, error: &ServiceError) -> Cause {
        let stderr = self.open.as_ref().map(Open::stderr).unwrap_or_default();
        let told = if stderr.is_empty() { String::new() } else { format!("; it wrote: {stderr}") };
        let text = format!("MCP server `{}`: {error}{told}", self.server.name);
        let text = self.secret.as_ref().map_or_else(|| text.clone(), |s| s.hide(&text));
        Cause::new("mcp", text)
    }

    /// The server's name for a tool of ours.
    fn server_name<'a>(&self, tool: &'a str) -> Option<&'a str> {
        tool.strip_prefix(self.server.prefix.as_str())
    }

    /// Lists the tools again when the server said that they changed, and stops those that did.
    fn look_again(&mut self) -> Result<(), Cause> {
        let told = self.open.as_ref().is_some_and(|o| o.changed.swap(false, Ordering::SeqCst));
        if !told {
            return Ok(());
        }
        let listed = self.list().map_err(|e| {
            // Not seen is not the same as unchanged.
            if let Some(open) = &self.open {
                open.changed.store(true, Ordering::SeqCst);
            }
            Cause::new("mcp", e.to_string())
        })?;
        let stopped = &mut self.stopped;
        self.admitted.retain(|_, (tool, _)| {
            let now = listed.iter().find(|t| t.name == tool.name).map(|t| t.digest.clone());
            let same = now.as_ref() == Some(&tool.digest);
            if !same {
                stopped.push(Stopped {
                    tool: tool.name.clone(),
                    why: Why::Changed { accepted: tool.digest.clone(), now },
                });
            }
            same
        });
        self.listed = listed;
        Ok(())
    }

    fn list(&self) -> Result<Vec<Listed>, McpError> {
        let server = self.server.name.clone();
        let fault = |reason: String| McpError::BadList { server: server.clone(), reason };
        let peer = self.peer().map_err(|c| fault(c.detail))?;
        let deadline = Duration::from_secs(self.server.start_s.into());
        let listing = async move { timeout(deadline, all_tools(&peer)).await };
        let listed = self.seam.run(listing).map_err(|source| McpError::Wire { server: server.clone(), source })?;
        let Ok(listed) = listed else {
            let stderr = self.open.as_ref().map(Open::stderr).unwrap_or_default();
            let what = "list its tools";
            return Err(McpError::Deadline { server, what, deadline_s: self.server.start_s, stderr });
        };
        let tools = listed.map_err(&fault)?;
        let mut names = std::collections::BTreeSet::new();
        if let Some(twice) = tools.iter().find(|t| !names.insert(t.name.as_str())) {
            return Err(fault(format!("`{}` is listed twice", shown(&twice.name))));
        }
        Ok(tools)
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        self.end();
    }
}

async fn all_tools(peer: &Peer<RoleClient>) -> Result<Vec<Listed>, String> {
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..MAX_TOOLS {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = match peer.list_tools(Some(params)).await {
            Ok(page) => page,
            Err(error) => return Err(shown(&error.to_string())),
        };
        for tool in &page.tools {
            tools.push(listed(tool)?);
        }
        if tools.len() > MAX_TOOLS {
            return Err(format!("needed at most {MAX_TOOLS} tools, got more"));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(tools);
        }
    }
    Err(format!("needed at most {MAX_TOOLS} pages of tools, got more"))
}

/// What is pinned of a tool: all that could tell a policy what to do with it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pinned<'a> {
    name: &'a str,
    title: Option<&'a str>,
    description: Option<&'a str>,
    input_schema: &'a JsonObject,
    output_schema: Option<&'a JsonObject>,
}

fn listed(tool: &Tool) -> Result<Listed, String> {
    let pinned = Pinned {
        name: &tool.name,
        title: tool.title.as_deref(),
        description: tool.description.as_deref(),
        input_schema: &tool.input_schema,
        output_schema: tool.output_schema.as_deref(),
    };
    let bytes = ledger::canonical(&pinned).map_err(|e| format!("`{}`: {e}", shown(&tool.name)))?;
    if bytes.len() > MAX_TOOL_BYTES {
        let got = bytes.len();
        return Err(format!("needed at most {MAX_TOOL_BYTES} bytes about `{}`, got {got}", shown(&tool.name)));
    }
    let digest = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    Ok(Listed {
        name: tool.name.to_string(),
        description: tool.description.as_deref().unwrap_or_default().to_owned(),
        parameters: Value::Object((*tool.input_schema).clone()),
        digest,
    })
}

/// The characters that the protocol gives names, and no others.
fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b))
}

fn spec(server: &McpServer, tool: &Listed) -> ToolSpec {
    let class = server.tools.get(&tool.name);
    let name = format!("{}{}", server.prefix, tool.name);
    let action = class.map(|c| c.action.clone()).unwrap_or_default();
    let spec = ToolSpec::new(name, &tool.description, action, tool.parameters.clone());
    spec.touching(class.map(|c| c.data.clone()).unwrap_or_default())
}

fn labels(server: &McpServer, tool: &Listed, spec: &ToolSpec) -> Labels {
    let trusted = server.tools.get(&tool.name).is_some_and(|c| c.trusted);
    let sensitivity = spec.data.iter().cloned().collect();
    Labels { untrusted: !trusted, sensitivity, ..Labels::of(Origin::Tool(spec.name.clone())) }
}
