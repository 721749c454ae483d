//! Which part of a rendered conversation the template wrote, and which came from a message.
//!
//! The template is a program: it may trim a content, cut it, repeat it or leave it out. So contents are marked with
//! private-use characters, rendered, and found again by their marks.
//!
//! 0. Where no content spells a control token or a part of one at its border, there is nothing to tell apart.
//! 1. Else each content is marked at both ends, inside its outer white space, with marks of its own. If the text
//!    without marks is the plain rendering, each pair of marks is whole, and no content that spells a control token
//!    lost its pair, the spans between marks are the contents. That holds for templates that print contents or trim
//!    them.
//! 2. Else only the spellings of control tokens are marked, before each of their letters, so that whatever a template
//!    cuts out of a content, no spelling comes out unmarked. A template that looks for such a spelling (as some look
//!    for `<tool_response>`) does not see it; where nothing else helps, that is the safer error.

use episode::{Message, Role};

use crate::TextError;
use crate::added::{AddedTokens, Author, Span};
use crate::chat::{ChatOptions, ChatTemplate, envelope, python_trim};
use crate::json::is_private;

/// Renders a conversation.
///
/// - Holds: outside the spans returned, no text of a message spells a control token that its author may not write.
pub(crate) fn render(
    added: &AddedTokens,
    chat: &ChatTemplate,
    messages: &[Message],
    options: &ChatOptions,
) -> Result<(String, Vec<Span>), TextError> {
    let plain = chat.render(messages, options)?;
    let clean_message = |m: &Message| added.dangerous(&m.content, author(m.role)).is_empty();
    let mut clean_options = true;
    let _ = Beside::of(messages, options).map(&mut |text| {
        clean_options &= added.dangerous(text, Author::Outside).is_empty();
        text.to_owned()
    });
    if clean_options && messages.iter().all(clean_message) {
        return Ok((plain, Vec::new()));
    }
    let first = whole_contents(chat, messages, options, &plain, clean_message)?;
    let second = spellings(added, chat, messages, options);
    match (first, second) {
        // Both ways are right where the texts agree; the second also sees tools and calls, and contents printed twice.
        (Some(first), Ok((text, second))) if text == plain => Ok((plain, union(first, second))),
        (Some(first), _) if clean_options => Ok((plain, first)),
        (_, second) => second,
    }
}

/// All spans, those that overlap made one.
fn union(first: Vec<Span>, second: Vec<Span>) -> Vec<Span> {
    let mut all = first;
    let inside =
        |outer: &Span, inner: &Span| outer.range.start <= inner.range.start && inner.range.end <= outer.range.end;
    let extra: Vec<Span> = second.into_iter().filter(|s| !all.iter().any(|whole| inside(whole, s))).collect();
    all.extend(extra);
    all.sort_by_key(|span| (span.range.start, span.range.end));
    let mut out: Vec<Span> = Vec::new();
    for span in all {
        match out.last_mut() {
            Some(last) if span.range.start < last.range.end => {
                last.range.end = last.range.end.max(span.range.end);
                last.author = Author::Outside;
            }
            _ => out.push(span),
        }
    }
    out
}

fn author(role: Role) -> Author {
    match role {
        Role::Assistant => Author::Policy,
        Role::System | Role::User | Role::Tool => Author::Outside,
    }
}

/// The first way. `None` when the template does more than print and trim.
fn whole_contents(
    chat: &ChatTemplate,
    messages: &[Message],
    options: &ChatOptions,
    plain: &str,
    clean: impl Fn(&Message) -> bool,
) -> Result<Option<Vec<Span>>, TextError> {
    // Plane 15 is private use and holds more marks than any conversation has messages.
    let mark = |n: usize| u32::try_from(n).ok().and_then(|n| char::from_u32(0xF_0000 + n)).filter(|c| is_mark(*c));
    let in_use = |text: &str| text.chars().any(is_mark);
    if mark(2 * messages.len()).is_none() || in_use(plain) || messages.iter().any(|m| in_use(&m.content)) {
        return Ok(None);
    }
    let marked: Vec<Message> = messages
        .iter()
        .enumerate()
        .map(|(index, m)| {
            let core = python_trim(&m.content);
            let start = core.as_ptr() as usize - m.content.as_ptr() as usize;
            let (before, rest) = m.content.split_at(start);
            let (core, after) = rest.split_at(core.len());
            let content = match (mark(2 * index), mark(2 * index + 1)) {
                (Some(open), Some(close)) if !core.is_empty() => format!("{before}{open}{core}{close}{after}"),
                _ => m.content.clone(),
            };
            Message { content, ..m.clone() }
        })
        .collect();
    // The marks may upset a template; then the second way is left.
    let Ok(rendered) = chat.render(&marked, options) else { return Ok(None) };
    let mut text = String::with_capacity(rendered.len());
    let mut spans = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    let mut seen = vec![false; messages.len()];
    for c in rendered.chars() {
        if !is_mark(c) {
            text.push(c);
            continue;
        }
        let number = (u32::from(c) - 0xF_0000) as usize;
        match (number % 2, open.take()) {
            (0, None) => open = Some((number / 2, text.len())),
            // Between the marks must stand the content and nothing of the template's.
            (1, Some((index, start)))
                if index == number / 2 && text[start..] == *python_trim(&messages[index].content) =>
            {
                seen[index] = true;
                spans.push(Span { range: start..text.len(), author: author(messages[index].role) });
            }
            _ => return Ok(None),
        }
    }
    let whole = messages.iter().zip(&seen).all(|(m, seen)| *seen || clean(m));
    Ok((open.is_none() && whole && text == plain).then_some(spans))
}

fn is_mark(c: char) -> bool {
    ('\u{F_0000}'..='\u{F_FFFD}').contains(&c)
}

/// The second way: one mark before each character of a dangerous stretch.
fn spellings(
    added: &AddedTokens,
    chat: &ChatTemplate,
    messages: &[Message],
    options: &ChatOptions,
) -> Result<(String, Vec<Span>), TextError> {
    let mark = free_mark(chat, messages, options).ok_or(TextError::NoMarkerLeft)?;
    let break_up = |text: &str, author: Author| {
        let mut out = String::new();
        let mut done = 0;
        for range in added.dangerous(text, author) {
            out.push_str(&text[done..range.start]);
            text[range.clone()].chars().for_each(|c| out.extend([mark, c]));
            done = range.end;
        }
        out + &text[done..]
    };
    let marked = Beside::of(messages, options).map(&mut |text| break_up(text, Author::Outside));
    let messages: Vec<Message> =
        marked.messages.into_iter().map(|m| Message { content: break_up(&m.content, author(m.role)), ..m }).collect();
    let rendered = chat.render_listed(&messages, &marked.options, &marked.tools)?;
    let mut text = String::with_capacity(rendered.len());
    let mut spans: Vec<Span> = Vec::new();
    let mut marked = false;
    for c in rendered.chars() {
        if c == mark {
            marked = true;
            continue;
        }
        let start = text.len();
        text.push(c);
        if std::mem::take(&mut marked) {
            match spans.last_mut() {
                Some(last) if last.range.end == start => last.range.end = text.len(),
                _ => spans.push(Span { range: start..text.len(), author: Author::Outside }),
            }
        }
    }
    Ok((text, spans))
}

/// A private-use character that occurs nowhere.
fn free_mark(chat: &ChatTemplate, messages: &[Message], options: &ChatOptions) -> Option<char> {
    let mut used = std::collections::BTreeSet::new();
    let mut note = |text: &str| used.extend(text.chars().filter(|c| is_private(*c)));
    note(chat.source());
    messages.iter().for_each(|m| note(&m.content));
    let _ = Beside::of(messages, options).map(&mut |text| {
        note(text);
        text.to_owned()
    });
    let mut all = ('\u{F_0000}'..='\u{F_FFFD}').chain('\u{10_0000}'..='\u{10_FFFD}').chain('\u{E000}'..='\u{F8FF}');
    all.find(|c| !used.contains(c))
}

/// What a rendering takes besides the contents of messages: tools, calls, variables.
struct Beside {
    messages: Vec<Message>,
    tools: serde_json::Value,
    options: ChatOptions,
}

impl Beside {
    fn of(messages: &[Message], options: &ChatOptions) -> Self {
        Beside { messages: messages.to_vec(), tools: envelope(&options.tools), options: options.clone() }
    }

    /// Changes every text in it, keys of objects included; contents stay.
    fn map(mut self, change: &mut impl FnMut(&str) -> String) -> Self {
        self.tools = map(&self.tools, change);
        for value in self.options.variables.values_mut() {
            *value = map(value, change);
        }
        for message in &mut self.messages {
            message.tool = message.tool.as_deref().map(&mut *change);
            for call in &mut message.calls {
                call.tool = change(&call.tool);
                call.arguments = call.arguments.iter().map(|(k, v)| (change(k), map(v, change))).collect();
            }
        }
        self
    }
}

fn map(value: &serde_json::Value, change: &mut impl FnMut(&str) -> String) -> serde_json::Value {
    match value {
        serde_json::Value::String(text) => change(text).into(),
        serde_json::Value::Array(items) => items.iter().map(|item| map(item, change)).collect(),
        serde_json::Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (change(name), map(value, change)));
            serde_json::Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}
