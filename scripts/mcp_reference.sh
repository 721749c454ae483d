#!/bin/sh
# Uses the MCP reference servers for real and runs the client scenarios of the official conformance suite.
# Needs node 22 or later with npm. Usage: scripts/mcp_reference.sh [FOLDER], where the packages go.
set -eu
folder=${1:-target/mcp_reference}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
scope=@modelcontextprotocol
(cd "$folder" && { [ -e package.json ] || npm init -y >/dev/null; } && npm install --no-audit --no-fund --silent \
    "$scope/server-everything" "$scope/server-filesystem" "$scope/server-memory" "$scope/conformance")
cargo build --quiet -p surefoot-remote --examples
built=${CARGO_TARGET_DIR:-target}/debug/examples
"$built/mcp_reference" "$folder"
client=$(cd "$built" && pwd)/mcp_conformance
for scenario in initialize tools_call sse-retry; do
    echo "conformance: $scenario"
    node "$folder/node_modules/$scope/conformance/dist/index.js" client --command "$client" --scenario "$scenario" \
        --output-dir "$folder/results"
done
