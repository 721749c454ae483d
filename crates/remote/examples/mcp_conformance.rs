//! The client that the official conformance suite drives: `conformance client --command mcp_conformance --suite all`. The
//! suite appends its server's address.

use std::error::Error;

use episode::ToolCall;
use serde_json::{Map, Value, json};
use surefoot_remote::Pins;
use surefoot_remote::mcp::{Mcp, McpServer, Reach};

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("needed the address of a server")?;
    let mut server = McpServer::new("suite", Reach::Http { url });
    (server.start_s, server.call_s) = (20, 20);
    let mut mcp = Mcp::connect(server, None)?;
    let path = std::env::temp_dir().join(format!("mcp-conformance-{}.json", std::process::id()));
    let mut pins = Pins::open(&path)?;
    pins.accept_tools("suite", mcp.listed())?;
    mcp.admit(&pins);
    let called: Result<Vec<_>, _> = mcp.tools().iter().map(|t| mcp_call(&mut mcp, &t.name, &t.parameters)).collect();
    std::fs::remove_file(&path)?;
    called?;
    mcp.close();
    Ok(())
}

/// Calls a tool with a value for each argument that it needs.
fn mcp_call(mcp: &mut Mcp, tool: &str, schema: &Value) -> Result<(), String> {
    let needed = schema["required"].as_array().cloned().unwrap_or_default();
    let value = |name: &str| match schema["properties"][name]["type"].as_str() {
        Some("number" | "integer") => json!(2),
        Some("boolean") => json!(true),
        _ => json!("text"),
    };
    let arguments: Map<String, Value> =
        needed.iter().filter_map(Value::as_str).map(|n| (n.to_owned(), value(n))).collect();
    mcp.call(&ToolCall { tool: tool.to_owned(), arguments }).map(drop).map_err(|c| c.detail)
}
