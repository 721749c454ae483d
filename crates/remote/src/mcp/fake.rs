//! Servers for tests: a program in the shell, and scripts for the HTTP one.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::{McpServer, Protocol, Reach};
use crate::wire::fake::{Asked, Reply};

/// Speaks the older protocol over its standard input and output; what it says of `echo` lies in a file, so that a test can
/// change it.
const PROGRAM: &str = r#"
say() { printf '%s\n' "$1"; }
answer() { say "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$1}"; }
text() { answer "{\"content\":[{\"type\":\"text\",\"text\":\"$1\"}],\"isError\":${2:-false}}"; }
echo 'the server is up' >&2
while IFS= read -r line; do
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  case $line in
    *'"method":"server/discover"'*)
      [ "$MODE" = dies ] && exit 3
      say "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":-32601,\"message\":\"method not found\"}}" ;;
    *'"method":"initialize"'*)
      [ "$MODE" = silent ] && continue
      answer '{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"fake","version":"1"}}' ;;
    *'"method":"tools/list"'*)
      tools="{\"name\":\"echo\",\"description\":\"$(cat "$FOLDER/about")\",\"inputSchema\":{\"type\":\"object\"}}"
      for t in env group hang long fails leaves changes; do
        tools="$tools,{\"name\":\"$t\",\"inputSchema\":{\"type\":\"object\"},\"annotations\":{\"readOnlyHint\":true}}"
      done
      [ "$MODE" = twice ] && tools="$tools,$tools"
      [ "$MODE" = odd ] && tools="$tools,{\"name\":\"a b\",\"inputSchema\":{\"type\":\"object\"}}"
      answer "{\"tools\":[$tools]}" ;;
    *'"name":"echo"'*) text hello ;;
    *'"name":"env"'*) text "$(env | cut -d= -f1 | sort | tr '\n' ' ')" ;;
    *'"name":"group"'*) sleep 1000 & text "$$ $!" ;;
    *'"name":"hang"'*) : ;;
    *'"name":"long"'*) text "$(printf '%05000d' 0)" ;;
    *'"name":"fails"'*) text 'no such file' true ;;
    *'"name":"leaves"'*) echo 'out of memory' >&2; exit 1 ;;
    *'"name":"changes"'*) say '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'; text done ;;
    *'"method":"tools/call"'*) say "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":-32602,\"message\":\"unknown tool\"}}" ;;
  esac
done
"#;

/// The server's program in one of its moods.
pub(crate) fn program(folder: &Path, mode: &str) -> McpServer {
    std::fs::write(folder.join("about"), "says hello").unwrap();
    let variables: BTreeMap<String, String> =
        [("FOLDER", folder.to_str().unwrap()), ("MODE", mode)].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let args = vec!["-c".to_owned(), PROGRAM.to_owned()];
    let reach = Reach::Stdio { program: "sh".to_owned(), args, folder: None, variables };
    let mut server = McpServer::new("fake", reach).class("echo", "read").class("hang", "read");
    (server.start_s, server.call_s, server.max_answer_bytes) = (20, 20, 1000);
    server
}

/// A server at an address.
pub(super) fn at(url: &str, protocol: Protocol) -> McpServer {
    let mut server = McpServer::new("far", Reach::Http { url: format!("{url}/mcp") }).class("add", "read");
    (server.start_s, server.call_s, server.protocol) = (20, 20, protocol);
    server
}

/// Answers in the newer protocol.
pub(super) fn new_protocol(asked: &Asked) -> Reply {
    let q = asked.json();
    let result = match q["method"].as_str().unwrap() {
        "server/discover" => json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
            "ttlMs": 0, "cacheScope": "private",
        }),
        "tools/list" => tools(&q),
        "tools/call" => call(&q),
        _ => return Reply::Json(200, error(&q, -32601)),
    };
    Reply::Json(200, json!({"jsonrpc": "2.0", "id": q["id"], "result": result}))
}

/// Answers in the older protocol, and to the newer one as such a server does.
pub(super) fn old_protocol(asked: &Asked) -> Reply {
    if asked.method != "POST" {
        return Reply::Json(405, json!({}));
    }
    let q = asked.json();
    let result = match q["method"].as_str().unwrap() {
        "initialize" => json!({
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "f", "version": "1"},
        }),
        "tools/list" => tools(&q),
        "tools/call" => call(&q),
        method if method.starts_with("notifications/") => return Reply::Raw(202, "", vec![]),
        _ => return Reply::Json(400, json!({"error": "Bad Request: Server not initialized"})),
    };
    Reply::Json(200, json!({"jsonrpc": "2.0", "id": q["id"], "result": result}))
}

fn error(q: &Value, code: i32) -> Value {
    json!({"jsonrpc": "2.0", "id": q["id"], "error": {"code": code, "message": "no"}})
}

/// Two pages of one tool each.
fn tools(q: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "number"}}});
    let tool = |name: &str| json!({"name": name, "description": "adds", "inputSchema": schema});
    match q["params"]["cursor"].as_str() {
        None => {
            json!({"resultType": "complete", "tools": [tool("add")], "nextCursor": "2", "ttlMs": 0, "cacheScope": "private"})
        }
        Some(_) => json!({"resultType": "complete", "tools": [tool("sub")], "ttlMs": 0, "cacheScope": "private"}),
    }
}

fn call(q: &Value) -> Value {
    match q["params"]["arguments"]["a"].as_i64() {
        Some(9) => json!({
            "resultType": "input_required", "requestState": "s",
            "inputRequests": {"x": {"method": "elicitation/create", "params": {
                "mode": "form", "message": "who?", "requestedSchema": {"type": "object", "properties": {}},
            }}},
        }),
        a => json!({"resultType": "complete", "content": [
            {"type": "text", "text": format!("got {}", a.unwrap_or(-1))},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "resource_link", "uri": "file:///x", "name": "x"},
        ]}),
    }
}
