//! A bare JSON object or list: what a policy writes that was only told to answer in JSON.
//!
//! Source: the call object of OpenAI's function calling, written as text; xLAM and others are trained on the list.

use episode::{ToolCall, ToolSpec};

use super::{Grammar, Piece, Strictness, bare};
use crate::json::python_call;

pub(super) struct Json;

impl Grammar for Json {
    fn cut(&self, text: &str, how: Strictness) -> Vec<Piece> {
        bare::cut(text, how, &[])
    }

    fn spell(&self, calls: &[ToolCall], _tools: &[ToolSpec]) -> String {
        let all: Vec<String> = calls.iter().map(|call| python_call(call, "arguments")).collect();
        match all.as_slice() {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        }
    }

    fn how(&self) -> &'static str {
        "To call a tool, write nothing but its name and arguments as a JSON object, or a list of such objects for several \
         calls:\n{\"name\": \"the tool's name\", \"arguments\": {\"an argument\": \"its value\"}}"
    }

    fn signs(&self) -> &'static [&'static str] {
        &["\"name\"", "\"arguments\""]
    }
}
