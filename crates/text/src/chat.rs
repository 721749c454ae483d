//! The chat template: a conversation to text, as Hugging Face's `apply_chat_template` renders it.

use std::collections::{BTreeMap, VecDeque};

use episode::{Message, Role, ToolSpec};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use crate::json::{from_json, tojson};
use crate::{Date, TextError};

/// Bound on the work of one rendering: a template is a program from elsewhere. One unit is about one instruction or 64
/// bytes of text; published templates take some 100 to 300 for a message.
const FUEL: u64 = 1_000_000;

/// Stack of the thread that renders. Within the fuel a template can nest lists a hundred thousand deep, and the
/// engine drops, prints and compares them recursively. The system commits only what is used.
const STACK_BYTES: usize = 512 << 20;

const NAME: &str = "chat";

/// What a rendering takes besides the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatOptions {
    /// Whether to end with what opens the policy's answer.
    pub add_generation_prompt: bool,
    /// Tools that the policy may call.
    pub tools: Vec<ToolSpec>,
    /// Variables the template knows, such as `enable_thinking`.
    pub variables: BTreeMap<String, serde_json::Value>,
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    named: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Compiles a template; `named` are the texts of special tokens it may print, such as `bos_token`.
    ///
    /// - Errors: `TemplateSyntax`.
    pub fn new(source: &str, named: impl IntoIterator<Item = (String, String)>) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(syntax_error)?);
        environment.set_unknown_method_callback(method);
        environment.add_filter("tojson", tojson);
        environment.add_filter("trim", trim);
        environment.add_test("iterable", is_iterable);
        environment.add_function("raise_exception", raise_exception);
        environment.add_template_owned(NAME, without_generation(source)).map_err(syntax_error)?;
        Ok(ChatTemplate { environment, source: source.into(), named: named.into_iter().collect() })
    }

    /// Lets the template print a date by `strftime_now`.
    pub fn with_date(mut self, date: Date) -> Self {
        self.environment.add_function("strftime_now", move |pattern: &str| {
            let unknown = || Error::new(ErrorKind::InvalidOperation, format!("`{pattern}` is not a known date format"));
            date.format(pattern).ok_or_else(unknown)
        });
        self
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    ///
    /// - Holds: the text is that of Hugging Face's `apply_chat_template(tokenize=False)`.
    /// - Errors: `TemplateRefused` when the template raises, `TemplateFailed` when it fails or runs too long.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, TextError> {
        self.render_listed(messages, options, &envelope(&options.tools))
    }

    /// With the tools as they will be listed.
    pub(crate) fn render_listed(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        tools: &serde_json::Value,
    ) -> Result<String, TextError> {
        let named = self.named.iter().map(|(name, text)| (name.as_str(), Value::from(text.as_str())));
        let variables = options.variables.iter().map(|(name, value)| (name.as_str(), from_json(value)));
        // The reference passes what is absent as `None`, which counts as defined.
        let fixed = [
            ("documents", Value::from(())),
            ("messages", Value::from(messages_of(messages))),
            ("tools", if options.tools.is_empty() { Value::from(()) } else { from_json(tools) }),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
        ];
        let context: BTreeMap<&str, Value> = named.chain(variables).chain(fixed).collect();
        let template = self.environment.get_template(NAME).map_err(syntax_error)?;
        let failed = |cause: &str| TextError::TemplateFailed { line: 0, cause: cause.into() };
        std::thread::scope(|scope| {
            let render = move || template.render(Value::from_pairs(context)).map_err(render_error);
            let thread = std::thread::Builder::new().name("chat-template".into()).stack_size(STACK_BYTES);
            let thread =
                thread.spawn_scoped(scope, render).map_err(|e| failed(&format!("no thread to render on: {e}")))?;
            thread.join().unwrap_or_else(|_| Err(failed("the template engine broke off")))
        })
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Tools as the OpenAI interface lists them, which is what templates were written for and models trained on. The one place
/// that says so.
pub fn envelope(tools: &[ToolSpec]) -> serde_json::Value {
    let function = |tool: &ToolSpec| {
        serde_json::json!({
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        })
    };
    tools.iter().map(function).collect()
}

/// The conversation as a template sees it.
///
/// Calls are numbered through the conversation, and a tool's answer bears the number of the first call of its turn that has
/// none yet: some templates print these ids, some refuse others than of nine letters and digits.
fn messages_of(messages: &[Message]) -> Vec<Value> {
    let id = |n: usize| Value::from(format!("call{n:05}"));
    let mut n_ids = 0;
    let mut open: VecDeque<Value> = VecDeque::new();
    let mut all = Vec::with_capacity(messages.len());
    let mut fresh = || {
        n_ids += 1;
        id(n_ids - 1)
    };
    for message in messages {
        let (role, content) = (Value::from(message.role.as_str()), Value::from(message.content.as_str()));
        let mut fields = vec![("role", role), ("content", content)];
        if message.role == Role::Tool {
            fields.extend(message.tool.as_deref().map(|name| ("name", Value::from(name))));
            let answered = message.tool.as_ref().and_then(|_| open.pop_front());
            fields.push(("tool_call_id", answered.unwrap_or_else(&mut fresh)));
        }
        if !message.calls.is_empty() {
            open.clear();
            let calls = message.calls.iter().map(|call| {
                let id = fresh();
                open.push_back(id.clone());
                let arguments = Value::from_pairs(call.arguments.iter().map(|(k, v)| (k.as_str(), from_json(v))));
                let function = Value::from_pairs([("name", call.tool.as_str().into()), ("arguments", arguments)]);
                Value::from_pairs([("id", id), ("type", "function".into()), ("function", function)])
            });
            let calls: Vec<Value> = calls.collect();
            fields.push(("tool_calls", calls.into()));
        }
        all.push(Value::from_pairs(fields));
    }
    all
}

/// Replaces `{% generation %}` by a block without effect: the reference uses it to mark what the policy said, which an
/// episode records token by token.
fn without_generation(source: &str) -> String {
    let mut out = String::new();
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end);
        let inner = &tag[2..];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

/// The message of a template that refuses a conversation, told apart from other errors by its type.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refused(message)))
}

fn syntax_error(error: Error) -> TextError {
    TextError::TemplateSyntax { line: error.line().unwrap_or(0), cause: cause(&error) }
}

fn render_error(error: Error) -> TextError {
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        if let Some(Refused(message)) = inner.downcast_ref() {
            return TextError::TemplateRefused(message.clone());
        }
        source = inner.source();
    }
    TextError::TemplateFailed { line: error.line().unwrap_or(0), cause: cause(&error) }
}

fn cause(error: &Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

/// Python's notion: `none` is not, which templates use to ask whether there are tools.
fn is_iterable(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined
    )
}

/// White space as Python's `str.strip` sees it: Unicode's, and four control characters more.
fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&c)
}

pub(crate) fn python_trim(text: &str) -> &str {
    text.trim_matches(is_python_space)
}

fn trim(value: &Value, chars: Option<&str>) -> String {
    let text = value.to_string();
    match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
        None => python_trim(&text).to_owned(),
    }
}

/// Python's methods on texts, lists and dictionaries; those that differ from Rust's or that the library lacks first.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let none = args.iter().all(|arg| arg.is_none() && arg.kind() != ValueKind::Undefined);
        match name {
            "strip" if none => return Ok(python_trim(text).into()),
            "lstrip" if none => return Ok(text.trim_start_matches(is_python_space).into()),
            "rstrip" if none => return Ok(text.trim_end_matches(is_python_space).into()),
            "removeprefix" | "removesuffix" => {
                let (Rest(affixes), _): (Rest<String>, Kwargs) = minijinja::value::from_args(args)?;
                let [affix] = affixes.as_slice() else {
                    return Err(Error::new(ErrorKind::MissingArgument, format!("`{name}` needs one text")));
                };
                let rest = match name {
                    "removeprefix" => text.strip_prefix(affix.as_str()),
                    _ => text.strip_suffix(affix.as_str()),
                };
                return Ok(rest.unwrap_or(text).into());
            }
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, want: &str) {
        let messages = [Message::new(Role::User, " hi\u{1c} ")];
        let got = ChatTemplate::new(source, [("bos_token".into(), "<s>".into())]).unwrap();
        assert_eq!(got.render(&messages, &ChatOptions::default()).unwrap(), want, "{source}");
    }

    #[test]
    fn templates_see_python() {
        check("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|{{ tools is defined }}", "<s>||True|True");
        check("[{{ messages[0].content|trim }}][{{ messages[0]['content'].strip() }}]", "[hi][hi]");
        check("{{ 'xay'.strip('xy') }}{{ 'abc'.removeprefix('ab') }}{{ 'abc'.removesuffix('bc') }}", "aca");
        check(
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        );
        check(
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        );
        check("  {% if true %}\nx\n  {% endif %}\ny\n", "x\ny");
        check("{{ strftime_now is defined }}", "False");
    }

    #[test]
    fn generation_marks_change_nothing() {
        check("a\n{%- generation -%}\n b {% endgeneration %}\nc", "ab c");
        check("{% raw %}{% endraw %}{{ '{%' }}", "{%");
    }

    #[test]
    fn a_date_is_printed_only_when_given() {
        let template = ChatTemplate::new("{{ strftime_now('%d %b %Y') }}", []).unwrap();
        assert!(matches!(template.render(&[], &ChatOptions::default()), Err(TextError::TemplateFailed { .. })));
        let template = template.with_date(Date::new((2024, 7, 26), (0, 0, 0)).unwrap());
        assert_eq!(template.render(&[], &ChatOptions::default()).unwrap(), "26 Jul 2024");
    }

    #[test]
    fn a_refusal_is_told_from_a_failure() {
        let error = |source: &str| {
            let template = ChatTemplate::new(source, []).unwrap();
            template.render(&[], &ChatOptions::default()).unwrap_err().to_string()
        };
        assert_eq!(
            error("{{ raise_exception('roles must alternate') }}"),
            "chat template refuses the conversation: roles must alternate"
        );
        assert_eq!(error("\n{{ messages.x.y }}"), "chat template failed at line 2: `messages.x` is undefined");
        assert!(ChatTemplate::new("{% if %}", []).is_err());
    }

    #[test]
    fn a_template_that_never_ends_is_stopped() {
        let loops = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        let doubling =
            "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
        let recursive = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        for source in [loops, doubling, recursive] {
            let template = ChatTemplate::new(source, []).unwrap();
            let error = template.render(&[], &ChatOptions::default()).unwrap_err();
            assert!(matches!(error, TextError::TemplateFailed { .. }), "{source}: {error}");
        }
    }

    /// Dropping, printing or comparing such a value overflows an ordinary stack, which no caller could survive.
    #[test]
    fn a_template_that_nests_deeply_does_not_overflow_the_stack() {
        for (depth, tail, good) in [
            (9999, "", false),
            (85, "{{ ns.x|string|length > 99999 }}", true),
            (85, "{{ ns.x == [ns.x] }}", true),
            (85, "{{ ns.x|tojson }}", false),
        ] {
            let source = format!(
                "{{% set ns = namespace(x=[]) %}}{{% for a in range({depth}) %}}{{% for b in range(1000) %}}\
                 {{% set ns.x = [ns.x] %}}{{% endfor %}}{{% endfor %}}{tail}"
            );
            let got = ChatTemplate::new(&source, []).unwrap().render(&[], &ChatOptions::default());
            assert_eq!(got.is_ok(), good, "{tail}: {got:?}");
        }
    }
}
