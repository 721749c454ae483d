//! A conversation with tools in one model's format: how it opens, what was said in a turn, how it goes on.
//!
//! Templates differ in what they know. One lists tools, writes calls and takes a tool's answers itself; another knows two
//! roles and nothing else. What a template does not do is done in the text it is given, in a dialect: tools in the system
//! message, calls as part of the policy's turn, answers as a message of the user's. Which of it a template does is found by
//! trying, once.
//!
//! What the policy sampled is never rendered into the sequence that holds it. The template is only compared with itself: how
//! it writes the conversation up to the sampled turn, and how it writes that same stretch once more was said.

use std::sync::Arc;

use episode::{Message, Role, Token, ToolCall, ToolSpec};
use serde_json::json;

use crate::dialect::Reading;
use crate::{ChatOptions, ChatTemplate, Dialect, Strictness, TextError, Tokenizer};

/// How a conversation goes on after a sampled turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// By these tokens behind what was sampled: the rest of what closes the turn, the messages, the opening of the next.
    Append(Vec<Token>),
    /// The template writes what was said before in another way now: a new sequence begins with this prompt.
    Anew(Vec<Token>),
}

/// A tokenizer's chat format, with tools.
#[derive(Debug, Clone)]
pub struct Dialogue {
    tokenizer: Arc<Tokenizer>,
    dialect: Dialect,
    strictness: Strictness,
    template: Habits,
    /// The token with which the template ends a turn, or else the first that ends one.
    end: Option<Token>,
    /// What the template writes behind what is said in a turn.
    behind: Vec<u8>,
    /// The dialect's marks that are special tokens.
    marks: Vec<Token>,
}

/// What a template does by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Habits {
    /// Lists tools, and its policy calls them in our dialect.
    lists: bool,
    /// Writes calls in our dialect.
    calls: bool,
    /// Takes a tool's answer.
    answers: bool,
    /// Takes a system message.
    system: bool,
    /// Opens the policy's turn within its reasoning.
    reasons: bool,
}

impl Dialogue {
    /// The chat format of a tokenizer; its tools are called in the dialect wished for, or else in the template's own, or
    /// else in [`Dialect::Hermes`].
    ///
    /// - Errors: `NoTemplate`, `TemplateRefused`, `TemplateFailed` when not even one question and answer can be rendered.
    pub fn new(tokenizer: Arc<Tokenizer>, wish: Option<Dialect>, strictness: Strictness) -> Result<Self, TextError> {
        let chat = tokenizer.chat().ok_or(TextError::NoTemplate)?;
        let native = Dialect::guess(chat);
        let dialect = wish.or(native).unwrap_or(Dialect::Hermes);
        let template = Habits::of(chat, native == Some(dialect));
        let marks = (0..tokenizer.vocab_size() as Token).filter(|id| {
            let is_mark = |mark: &&str| mark.as_bytes() == tokenizer.token_bytes(*id);
            tokenizer.is_special(*id) && dialect.marks().iter().any(is_mark)
        });
        let marks = marks.collect();
        let said = |text: &str| {
            let messages = [Message::new(Role::User, "a"), Message::new(Role::Assistant, text)];
            tokenizer.render_tokens(&messages, false)
        };
        let (one, other) = (said("b")?, said("c")?);
        let same = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
        let same = &one[one.len() - same..];
        let end = same.iter().find(|t| tokenizer.eos().contains(t)).or(tokenizer.eos().first()).copied();
        let behind = bytes(&tokenizer, same);
        Ok(Dialogue { dialect, strictness, template, end, behind, marks, tokenizer })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The dialect in which tools are called.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The token that ends a turn.
    pub fn end(&self) -> Option<Token> {
        self.end
    }

    /// What a policy in this conversation must never sample, ascending: [`Tokenizer::structural`] without the dialect's
    /// marks.
    pub fn banned(&self) -> Vec<Token> {
        self.tokenizer.structural().iter().copied().filter(|t| !self.marks.contains(t)).collect()
    }

    /// The text of sampled tokens, without special tokens that are no mark of the dialect.
    pub fn decode(&self, tokens: &[Token]) -> String {
        let shown = |t: &Token| !self.tokenizer.is_special(*t) || self.marks.contains(t);
        let tokens: Vec<Token> = tokens.iter().copied().filter(shown).collect();
        self.tokenizer.decode(&tokens, false)
    }

    /// What a turn says and calls; see [`Dialect::read`].
    pub fn read(&self, text: &str, tools: &[ToolSpec]) -> Reading {
        let reasoning = self.template.reasons || text.trim_start().starts_with("<think>");
        self.dialect.read_behind(text, reasoning, tools, self.strictness)
    }

    /// The tokens of a conversation; `open` also opens the policy's next turn.
    ///
    /// - Holds: only the template writes control tokens, as [`Tokenizer::render_tokens`] says. Where the template knows
    ///   tools, calls and answers, the ids are those of Hugging Face's `apply_chat_template` with the same.
    /// - Errors: `TemplateRefused`, `TemplateFailed`, `NoMarkerLeft`.
    pub fn render(&self, messages: &[Message], tools: &[ToolSpec], open: bool) -> Result<Vec<Token>, TextError> {
        let render = |habits: Habits| {
            let (messages, tools) = self.dress(messages, tools, habits);
            let options = ChatOptions { add_generation_prompt: open, tools, ..ChatOptions::default() };
            self.tokenizer.render_tokens_with(&messages, &options)
        };
        // Some templates refuse two calls in one turn, or an answer without a call, such as one to a call that nobody could
        // read. That is the policy's doing and no fault of the system, so it is written in the text then.
        let mut habits = self.template;
        let first = match render(habits) {
            Err(error @ (TextError::TemplateRefused(_) | TextError::TemplateFailed { .. })) => error,
            result => return result,
        };
        let has_calls = messages.iter().any(|m| !m.calls.is_empty());
        if std::mem::take(&mut habits.calls)
            && has_calls
            && let Ok(tokens) = render(habits)
        {
            return Ok(tokens);
        }
        if std::mem::take(&mut habits.answers)
            && messages.iter().any(|m| m.role == Role::Tool)
            && let Ok(tokens) = render(habits)
        {
            return Ok(tokens);
        }
        Err(first)
    }

    /// What the policy reads before it speaks again. `history` is everything said so far, the sampled turn last; `closed`
    /// says whether that turn holds its own end-of-turn token; `new` is what it is told.
    ///
    /// - Holds: with [`Next::Append`] nothing that stands before is rendered again, and the template writes what was said so
    ///   far as it wrote it before. Where the sampled turn is what the template would write, the whole sequence is what
    ///   [`Dialogue::render`] gives.
    /// - Errors: as [`Dialogue::render`].
    pub fn go_on(
        &self,
        history: &[Message],
        tools: &[ToolSpec],
        closed: bool,
        new: &[Message],
    ) -> Result<Next, TextError> {
        let all = self.render(&[history, new].concat(), tools, true)?;
        let (end, rest) = match self.behind_turn(history, tools, &all)? {
            Some(Behind { end, rest }) => (end, rest),
            None => return Ok(Next::Anew(all)),
        };
        let mut tokens: Vec<Token> = end.filter(|_| !closed).into_iter().collect();
        tokens.extend(rest);
        Ok(Next::Append(tokens))
    }

    /// What stands behind the last turn of `history` in `all`, unless that begins otherwise than it did.
    fn behind_turn(&self, history: &[Message], tools: &[ToolSpec], all: &[Token]) -> Result<Option<Behind>, TextError> {
        let Some((turn, before)) = history.split_last() else { return Ok(None) };
        let is_end = |t: &Token| self.tokenizer.eos().contains(t);
        let then = self.render(history, tools, false)?;
        // The prompt of the turn. A template may refuse a conversation that ends where the turn began; then there is nothing
        // it could have in common with the rest.
        let prompt = self.render(before, tools, true).unwrap_or_default();
        let start = then.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        // The turn's own end is the first behind the prompt: some templates end the whole conversation by another one. Where
        // the prompt is written otherwise now, the beginning of the turn is not known, and its end is the last there is.
        let end = match start == prompt.len() {
            true => then[start..].iter().position(is_end),
            false => then[start..].iter().rposition(is_end),
        };
        if let Some(end) = end.map(|at| start + at) {
            if all.get(..=end) == Some(&then[..=end]) {
                return Ok(Some(Behind { end: Some(then[end]), rest: all[end + 1..].to_vec() }));
            }
        } else if let Some(rest) = self.behind_text(&then, all) {
            return Ok(Some(Behind { end: self.end, rest: rest.to_vec() }));
        }
        // Some templates write the last turn of a conversation otherwise than any other (Qwen 3 puts an empty block of
        // reasoning into it). That rewrites nothing, as long as what came before and all that was said stays.
        let Some(rest) = all.strip_prefix(&prompt[..]).filter(|_| !prompt.is_empty()) else { return Ok(None) };
        let Some(end) = rest.iter().position(is_end) else { return Ok(None) };
        let written = self.tokenizer.decode(&rest[..end], false);
        let said = turn.content.trim();
        match written.contains(said) {
            true => Ok(Some(Behind { end: Some(rest[end]), rest: rest[end + 1..].to_vec() })),
            false => Ok(None),
        }
    }

    /// What stands behind the last turn where no token ends one: found in the text, since letters beside each other may be
    /// one token, and used where a token begins there.
    fn behind_text<'a>(&self, then: &[Token], all: &'a [Token]) -> Option<&'a [Token]> {
        let (then, text) = (bytes(&self.tokenizer, then), bytes(&self.tokenizer, all));
        let said = then.strip_suffix(&self.behind[..]).filter(|_| text.starts_with(&then))?;
        let mut at = 0;
        let begins = |token: &Token| {
            let here = at;
            at += self.tokenizer.token_bytes(*token).len();
            here >= said.len()
        };
        let first = all.iter().position(begins)?;
        (bytes(&self.tokenizer, &all[..first]).len() == said.len()).then_some(&all[first..])
    }

    /// The conversation as the template can take it.
    fn dress(&self, messages: &[Message], tools: &[ToolSpec], habits: Habits) -> (Vec<Message>, Vec<ToolSpec>) {
        let mut dressed: Vec<Message> = Vec::with_capacity(messages.len() + 1);
        // Whether the last message is one we made of a tool's answer: roles may have to alternate.
        let mut open = false;
        for message in messages {
            let answer = message.role == Role::Tool && !habits.answers;
            let content = match (message.role, answer) {
                (Role::Assistant, _) if !habits.calls && !message.calls.is_empty() => {
                    let calls = self.dialect.spell(&message.calls, tools);
                    [message.content.as_str(), &calls]
                        .into_iter()
                        .filter(|t| !t.is_empty())
                        .collect::<Vec<_>>()
                        .join("\n")
                }
                (_, true) => format!("<tool_response>\n{}\n</tool_response>", message.content),
                _ => message.content.clone(),
            };
            match dressed.last_mut() {
                Some(last) if open && (answer || message.role == Role::User) => {
                    last.content.push('\n');
                    last.content.push_str(&content);
                }
                _ if answer => dressed.push(Message::new(Role::User, content)),
                _ => {
                    let kept = if habits.calls { message.calls.clone() } else { Vec::new() };
                    dressed.push(Message { content, calls: kept, ..message.clone() });
                }
            }
            open = answer;
        }
        let listed = if habits.lists { tools.to_vec() } else { Vec::new() };
        let mut rules = Vec::new();
        if dressed.first().is_some_and(|m| m.role == Role::System) {
            rules.push(dressed.remove(0).content);
        }
        if listed.is_empty() {
            rules.extend(Some(self.dialect.instructions(tools)).filter(|text| !text.is_empty()));
        }
        let rules = rules.join("\n\n");
        match dressed.iter_mut().find(|m| m.role == Role::User) {
            _ if rules.is_empty() && !messages.first().is_some_and(|m| m.role == Role::System) => {}
            Some(user) if !habits.system => user.content = format!("{rules}\n\n{}", user.content),
            _ => dressed.insert(0, Message::new(Role::System, rules)),
        }
        (dressed, listed)
    }
}

fn bytes(tokenizer: &Tokenizer, tokens: &[Token]) -> Vec<u8> {
    tokens.iter().flat_map(|t| tokenizer.token_bytes(*t)).copied().collect()
}

/// What stands behind a turn: the token that ended it, and the rest.
struct Behind {
    end: Option<Token>,
    rest: Vec<Token>,
}

impl Habits {
    /// Tries a template; `speaks` says whether it writes calls in our dialect.
    fn of(chat: &ChatTemplate, speaks: bool) -> Habits {
        let user = Message::new(Role::User, "zq ask");
        let tool = ToolSpec::new("zq_look", "zq tells", "read", json!({"type": "object", "properties": {}}));
        let opening = |messages: &[Message], tools: &[ToolSpec]| {
            let options = ChatOptions { add_generation_prompt: true, tools: tools.to_vec(), ..ChatOptions::default() };
            chat.render(messages, &options).unwrap_or_default()
        };
        let shows = |messages: &[Message], tools: &[ToolSpec], texts: &[&str]| {
            let text = opening(messages, tools);
            texts.iter().all(|needed| text.contains(needed))
        };
        let mut turn = Message::new(Role::Assistant, if speaks { "" } else { "zq turn" });
        turn.calls.extend(speaks.then(|| ToolCall::new("zq_look", json!({}))));
        let answer = Message { tool: Some("zq_look".into()), ..Message::new(Role::Tool, "zq answer") };
        let system = Message::new(Role::System, "zq rule");
        Habits {
            lists: speaks && shows(std::slice::from_ref(&user), &[tool], &["zq_look", "zq tells", "zq ask"]),
            calls: speaks,
            answers: shows(&[user.clone(), turn, answer], &[], &["zq ask", "zq answer"]),
            system: shows(&[system, user.clone()], &[], &["zq rule", "zq ask"]),
            reasons: opening(&[user], &[]).trim_end().ends_with("<think>"),
        }
    }
}
