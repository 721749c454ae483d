//! The head of `SKILL.md`: a small part of YAML, and a refusal of the rest.
//!
//! Read are: fields of one line, plain or quoted; texts over several lines, folded or as they stand (`>`, `|`); lists of
//! texts; and names with texts, one level deep. Refused, by name, is what could make a text mean another one: anchors,
//! aliases, tags, flow maps, directives, tabs, doubled fields. A number or a word like `true` is the text it is written as.
//!
//! - Source: YAML 1.2.2.

/// A field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Field {
    Text(String),
    List(Vec<String>),
    Map(Vec<(String, String)>),
}

impl Field {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Field::Text(_) => "a text",
            Field::List(_) => "a list",
            Field::Map(_) => "names with texts",
        }
    }
}

/// The number of a line, from 1, and what is wrong there.
type Fault = (usize, String);
type Fields = Vec<(String, Field)>;

const FENCE: &str = "---";
/// Nothing longer is a field's name.
const MAX_KEY: usize = 128;

/// The fields and what stands below them.
pub(super) fn split(text: &str) -> Result<(Fields, &str), Fault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = Vec::new();
    let mut at = 0;
    for (i, line) in text.split_inclusive('\n').enumerate() {
        at += line.len();
        let bare = line.trim_end_matches(['\n', '\r']);
        if i == 0 {
            if bare.trim_end() != FENCE {
                return Err((1, format!("needed `{FENCE}`, got `{}`", crate::wire::shown(bare))));
            }
            continue;
        }
        if bare.trim_end() == FENCE {
            return Ok((fields(&lines)?, &text[at..]));
        }
        lines.push(Line { number: i + 1, text: bare });
    }
    Err((lines.len() + 1, format!("needed `{FENCE}` below the fields, got the end of the file")))
}

#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn indent(&self) -> usize {
        self.text.len() - self.text.trim_start_matches(' ').len()
    }

    /// Nothing but perhaps a comment.
    fn is_blank(&self) -> bool {
        let text = self.text.trim();
        text.is_empty() || text.starts_with('#')
    }

    fn fault<T>(&self, reason: impl Into<String>) -> Result<T, Fault> {
        Err((self.number, reason.into()))
    }

    /// The name and what stands behind its colon.
    fn key(&self) -> Result<(&'a str, &'a str), Fault> {
        let text = self.text.trim_start_matches(' ');
        if text.starts_with('\t') {
            return self.fault("needed spaces before the text, got a tab");
        }
        let Some((key, rest)) = text.split_once(':') else {
            return self.fault(format!("needed `name: text`, got `{}`", crate::wire::shown(text)));
        };
        let letters = |b: u8| b.is_ascii_alphanumeric() || b"-_. ".contains(&b);
        if key.is_empty() || key.len() > MAX_KEY || !key.bytes().all(letters) || key.ends_with(' ') {
            return self.fault(format!("needed a field's name, got `{}`", crate::wire::shown(key)));
        }
        if !rest.is_empty() && !rest.starts_with(' ') {
            return self.fault(format!("needed a space behind `{key}:`"));
        }
        Ok((key, rest.trim()))
    }
}

fn fields(lines: &[Line<'_>]) -> Result<Fields, Fault> {
    let mut out: Fields = Vec::new();
    let mut i = 0;
    while i < lines.len() {
        let line = lines[i];
        i += 1;
        if line.is_blank() {
            continue;
        }
        if line.indent() > 0 {
            return line.fault("needed a field at the beginning of the line, got spaces");
        }
        let (key, rest) = line.key()?;
        if out.iter().any(|(k, _)| k == key) {
            return line.fault(format!("`{key}` is given twice"));
        }
        // What belongs to the field: lines further in, and list items at the same place.
        let is_list = rest.is_empty() && lines[i..].iter().find(|l| !l.is_blank()).is_some_and(|l| is_item(l.text));
        let belongs = |l: &Line<'_>| {
            l.text.trim().is_empty() || l.indent() > 0 || (is_list && is_item(l.text)) || (l.is_blank() && is_list)
        };
        let n = lines[i..].iter().take_while(|l| belongs(l)).count();
        let below = &lines[i..i + n];
        i += n;
        out.push((key.to_owned(), value(line, rest, below, is_list)?));
    }
    Ok(out)
}

fn is_item(text: &str) -> bool {
    let text = text.trim_start_matches(' ');
    text == "-" || text.starts_with("- ")
}

fn value(line: Line<'_>, rest: &str, below: &[Line<'_>], is_list: bool) -> Result<Field, Fault> {
    if is_list {
        let items = below.iter().filter(|l| !l.is_blank());
        return items.map(item).collect::<Result<_, _>>().map(Field::List);
    }
    if rest.starts_with(['|', '>']) {
        return block(line, rest, below).map(Field::Text);
    }
    if rest.starts_with('[') {
        return flow(line, &joined(rest, below)).map(Field::List);
    }
    if comment_cut(rest).is_empty() {
        let inner: Vec<Line<'_>> = below.iter().filter(|l| !l.is_blank()).copied().collect();
        if inner.is_empty() {
            return Ok(Field::Text(String::new()));
        }
        return map(&inner).map(Field::Map);
    }
    scalar(line, &joined(rest, below)).map(Field::Text)
}

/// A text over several lines, its line ends as spaces.
fn joined(rest: &str, below: &[Line<'_>]) -> String {
    let mut text = rest.to_owned();
    let mut gap = 0;
    for line in below {
        match line.text.trim() {
            "" => gap += 1,
            more => {
                text.push_str(&if gap == 0 { " ".to_owned() } else { "\n".repeat(gap) });
                text.push_str(more);
                gap = 0;
            }
        }
    }
    text
}

fn item(line: &Line<'_>) -> Result<String, Fault> {
    let text = line.text.trim_start_matches(' ');
    match text.strip_prefix('-') {
        Some(rest) if rest.is_empty() || rest.starts_with(' ') => scalar(*line, rest.trim()),
        _ => line.fault(format!("needed `- text`, got `{}`", crate::wire::shown(text))),
    }
}

fn map(lines: &[Line<'_>]) -> Result<Vec<(String, String)>, Fault> {
    let mut out: Vec<(String, String)> = Vec::new();
    for line in lines {
        if line.indent() != lines[0].indent() {
            return line.fault(format!("needed {} spaces before the name, got {}", lines[0].indent(), line.indent()));
        }
        let (key, rest) = line.key()?;
        if out.iter().any(|(k, _)| k == key) {
            return line.fault(format!("`{key}` is given twice"));
        }
        if rest.starts_with(['|', '>', '[']) {
            return line.fault(format!("needed a text on one line behind `{key}:`"));
        }
        out.push((key.to_owned(), scalar(*line, rest)?));
    }
    Ok(out)
}

/// `|` keeps line ends, `>` makes them spaces; `-` drops the last one, `+` keeps all.
fn block(line: Line<'_>, rest: &str, below: &[Line<'_>]) -> Result<String, Fault> {
    let (folds, keeps) = match comment_cut(rest) {
        "|" => (false, ' '),
        "|-" => (false, '-'),
        "|+" => (false, '+'),
        ">" => (true, ' '),
        ">-" => (true, '-'),
        ">+" => (true, '+'),
        other => {
            return line
                .fault(format!("needed `|` or `>`, perhaps with `-` or `+`, got `{}`", crate::wire::shown(other)));
        }
    };
    let indent = below.iter().find(|l| !l.text.trim().is_empty()).map_or(0, Line::indent);
    let mut text = String::new();
    let mut gap = 0;
    for line in below {
        if line.text.trim().is_empty() {
            gap += 1;
            continue;
        }
        if line.indent() < indent {
            return line.fault(format!("needed {indent} spaces before the text, got {}", line.indent()));
        }
        let more = &line.text[indent..];
        match (folds, text.is_empty()) {
            (_, true) => text.push_str(&"\n".repeat(gap)),
            (true, false) if gap == 0 => text.push(' '),
            (true, false) => text.push_str(&"\n".repeat(gap)),
            (false, false) => text.push_str(&"\n".repeat(gap + 1)),
        }
        text.push_str(more);
        gap = 0;
    }
    match keeps {
        '-' => {}
        '+' => text.push_str(&"\n".repeat(gap + 1)),
        _ if text.is_empty() => {}
        _ => text.push('\n'),
    }
    Ok(text)
}

/// A list in brackets.
fn flow(line: Line<'_>, text: &str) -> Result<Vec<String>, Fault> {
    let mut items = Vec::new();
    let mut rest = text[1..].trim_start();
    loop {
        if let Some(behind) = rest.strip_prefix(']') {
            return match comment_cut(behind.trim_start()) {
                "" => Ok(items),
                more => {
                    line.fault(format!("needed the end of the line behind `]`, got `{}`", crate::wire::shown(more)))
                }
            };
        }
        let end = match rest.as_bytes().first() {
            None => return line.fault("needed `]`, got the end of the field"),
            Some(b'"' | b'\'') => quoted_end(line, rest)?,
            Some(_) => rest.find([',', ']']).unwrap_or(rest.len()),
        };
        items.push(scalar(line, rest[..end].trim())?);
        rest = rest[end..].trim_start();
        match rest.as_bytes().first() {
            Some(b',') => rest = rest[1..].trim_start(),
            Some(b']') | None => {}
            Some(_) => return line.fault(format!("needed `,` or `]`, got `{}`", crate::wire::shown(rest))),
        }
    }
}

/// Where a quoted text at the beginning ends, its quotes included.
fn quoted_end(line: Line<'_>, text: &str) -> Result<usize, Fault> {
    let quote = text.as_bytes()[0];
    let bytes = text.as_bytes();
    let mut i = 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' if quote == b'"' => i += 2,
            b if b == quote && quote == b'\'' && bytes.get(i + 1) == Some(&quote) => i += 2,
            b if b == quote => return Ok(i + 1),
            _ => i += 1,
        }
    }
    line.fault(format!("needed the closing `{}`, got the end of the field", char::from(quote)))
}

/// A text without a comment behind it.
fn comment_cut(text: &str) -> &str {
    if text.starts_with('#') {
        return "";
    }
    text.find(" #").map_or(text, |at| &text[..at]).trim_end()
}

fn scalar(line: Line<'_>, text: &str) -> Result<String, Fault> {
    if text.starts_with(['"', '\'']) {
        let end = quoted_end(line, text)?;
        let behind = comment_cut(text[end..].trim_start());
        if !behind.is_empty() {
            return line
                .fault(format!("needed the end of the line behind the quote, got `{}`", crate::wire::shown(behind)));
        }
        let inside = &text[1..end - 1];
        return if text.starts_with('"') { unescape(line, inside) } else { Ok(inside.replace("''", "'")) };
    }
    let text = comment_cut(text);
    if let Some(odd @ ('&' | '*' | '!' | '{' | '}' | '[' | ']' | '%' | '@' | '`' | '|' | '>' | ',')) =
        text.chars().next()
    {
        return line.fault(format!("a text that begins with `{odd}` needs quotes"));
    }
    if text.starts_with("- ") || text.starts_with("? ") {
        return line.fault(format!("a text that begins with `{}` needs quotes", &text[..1]));
    }
    if text.contains(": ") || text.ends_with(':') {
        return line.fault("a text with a colon and a space in it needs quotes");
    }
    Ok(if text == "~" || text == "null" { String::new() } else { text.to_owned() })
}

fn unescape(line: Line<'_>, text: &str) -> Result<String, Fault> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let length = match chars.next() {
            Some(plain @ ('"' | '\\' | '/' | ' ')) => {
                out.push(plain);
                continue;
            }
            Some('n') => {
                out.push('\n');
                continue;
            }
            Some('t') => {
                out.push('\t');
                continue;
            }
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => {
                return line.fault(format!("`\\{}` is not known here", other.map(String::from).unwrap_or_default()));
            }
        };
        let digits: String = chars.by_ref().take(length).collect();
        let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == length).and_then(char::from_u32);
        match code {
            Some(c) => out.push(c),
            None => return line.fault(format!("needed {length} hexadecimal digits of a character, got `{digits}`")),
        }
    }
    Ok(out)
}
