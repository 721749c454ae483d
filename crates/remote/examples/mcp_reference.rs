//! Uses the reference servers `everything`, `filesystem` and `memory` for real, and prints what was called.
//!
//! `mcp_reference FOLDER` looks for them below `FOLDER/node_modules/@modelcontextprotocol`; `scripts/mcp_reference.sh`
//! puts them there.

#![allow(clippy::print_stdout, reason = "an example for the terminal")]

use std::error::Error;
use std::path::{Path, PathBuf};

use episode::ToolCall;
use serde_json::{Value, json};
use surefoot_remote::Pins;
use surefoot_remote::mcp::{Mcp, McpServer, Protocol, Reach};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("needed the folder that holds `node_modules`")?);
    let place = std::env::temp_dir().join(format!("mcp-reference-{}", std::process::id()));
    std::fs::create_dir_all(&place)?;
    let place = place.canonicalize()?;
    let text = |p: &Path| p.to_string_lossy().into_owned();
    let hello = text(&place.join("hello.txt"));
    let everything: [(&str, Value, Option<&str>); 5] = [
        ("echo", json!({"message": "hi"}), Some("hi")),
        ("get-sum", json!({"a": 2, "b": 3}), Some("5")),
        ("get-tiny-image", json!({}), Some("[image, image/png")),
        ("get-structured-content", json!({"location": "New York"}), Some("temperature")),
        ("trigger-long-running-operation", json!({"duration": 1, "steps": 2}), Some("completed")),
    ];
    let filesystem: [(&str, Value, Option<&str>); 5] = [
        ("write_file", json!({"path": hello, "content": "one\ntwo\n"}), Some("Successfully")),
        ("read_text_file", json!({"path": hello}), Some("two")),
        ("list_directory", json!({"path": text(&place)}), Some("hello.txt")),
        ("edit_file", json!({"path": hello, "edits": [{"oldText": "two", "newText": "three"}]}), Some("three")),
        // Outside of the folder it was given: refused by the server, and no fault here.
        ("read_text_file", json!({"path": "/etc/passwd"}), None),
    ];
    let entity = json!({"entities": [{"name": "Ada", "entityType": "person", "observations": ["counts"]}]});
    let memory: [(&str, Value, Option<&str>); 3] = [
        ("create_entities", entity, Some("Ada")),
        ("search_nodes", json!({"query": "Ada"}), Some("counts")),
        ("delete_entities", json!({"entityNames": ["Ada"]}), Some("deleted")),
    ];
    let kept = text(&place.join("memory.jsonl"));
    let mut failed = 0;
    failed += used(&folder, &place, "everything", &["stdio".to_owned()], &[], &everything)?;
    failed += used(&folder, &place, "filesystem", &[text(&place)], &[], &filesystem)?;
    failed += used(&folder, &place, "memory", &[], &[("MEMORY_FILE_PATH", &kept)], &memory)?;
    std::fs::remove_dir_all(&place)?;
    if failed > 0 { Err(format!("{failed} calls did not answer what was needed").into()) } else { Ok(()) }
}

/// Starts a server, accepts its tools, calls some, and says how many answered otherwise than needed.
fn used(
    folder: &Path,
    place: &Path,
    name: &str,
    args: &[String],
    variables: &[(&str, &str)],
    calls: &[(&str, Value, Option<&str>)],
) -> Result<usize, Box<dyn Error>> {
    let script = folder.join(format!("node_modules/@modelcontextprotocol/server-{name}/dist/index.js"));
    let reach = Reach::Stdio {
        program: "node".to_owned(),
        args: [script.to_string_lossy().into_owned()].into_iter().chain(args.iter().cloned()).collect(),
        folder: None,
        variables: variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
    };
    let mut server = McpServer::new(name, reach);
    server.protocol = Protocol::Auto;
    let mut mcp = Mcp::connect(server, None)?;
    let mut pins = Pins::open(place.join("pins.json"))?;
    let n_new = mcp.admit(&pins).len();
    pins.accept_tools(name, mcp.listed())?;
    let n_stopped = mcp.admit(&pins).len();
    println!("{name}: protocol {}, {} tools, {n_new} new, {n_stopped} stopped", mcp.protocol(), mcp.tools().len());
    let mut failed = 0;
    for (tool, arguments, want) in calls {
        let answer = mcp.call(&ToolCall::new(*tool, arguments.clone())).map_err(|c| c.detail)?;
        let good = match want {
            Some(want) => answer.ok && answer.text.contains(want),
            None => !answer.ok,
        };
        failed += usize::from(!good);
        let shown: String = answer.text.chars().take(80).map(|c| if c.is_control() { ' ' } else { c }).collect();
        println!("  {} {tool} {arguments} -> ok={} {shown}", if good { "good" } else { "BAD " }, answer.ok);
    }
    mcp.close();
    Ok(failed)
}
