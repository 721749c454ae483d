//! The most tools that may be used while a skill is followed.

use episode::ToolSpec;

/// One tool that a skill declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// Its name.
    pub tool: String,
    /// Which uses of it, in a language that only some agents speak, as in `Bash(git:*)`.
    pub uses: Option<String>,
}

/// The tools that a skill declares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ceiling {
    allowed: Vec<Allowed>,
}

impl Ceiling {
    /// Reads names between spaces or commas, each perhaps with its uses in brackets.
    pub(super) fn parse(text: &str) -> Result<Ceiling, String> {
        let mut allowed = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = rest.find(|c: char| c.is_whitespace() || c == ',' || c == '(').unwrap_or(rest.len());
            let (tool, behind) = rest.split_at(end);
            if tool.is_empty() && !behind.starts_with(',') {
                return Err(format!("needed a tool's name, got `{}`", crate::wire::shown(rest)));
            }
            let mut uses = None;
            rest = behind;
            if let Some(inside) = behind.strip_prefix('(') {
                let close = inside.find(')').ok_or_else(|| format!("needed `)` behind `{tool}(`, got none"))?;
                uses = Some(inside[..close].to_owned());
                rest = &inside[close + 1..];
                if rest.starts_with(|c: char| !c.is_whitespace() && c != ',') {
                    return Err(format!("needed a space behind `)`, got `{}`", crate::wire::shown(rest)));
                }
            }
            if !tool.is_empty() {
                allowed.push(Allowed { tool: tool.to_owned(), uses });
            }
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        }
        Ok(Ceiling { allowed })
    }

    /// What was declared, in order.
    pub fn declared(&self) -> &[Allowed] {
        &self.allowed
    }

    /// The names of the tools that may be used without a limit on their uses: what [`gate::Session::ceiling`] takes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.allowed.iter().filter(|a| a.uses.is_none()).map(|a| a.tool.as_str())
    }

    /// The tools among these that may be used: those declared without a limit on their uses. A limit cannot be kept here, so
    /// such a tool is left out, not let through.
    pub fn cut(&self, tools: &[ToolSpec]) -> Vec<ToolSpec> {
        let is_in = |t: &&ToolSpec| self.allowed.iter().any(|a| a.tool == t.name && a.uses.is_none());
        tools.iter().filter(is_in).cloned().collect()
    }

    /// The tools among these that [`Ceiling::cut`] leaves out though they are declared, for their uses are limited.
    pub fn left_out<'a>(&'a self, tools: &'a [ToolSpec]) -> impl Iterator<Item = &'a Allowed> {
        let free = |name: &str| self.allowed.iter().any(|a| a.tool == name && a.uses.is_none());
        let is_out = move |a: &&Allowed| a.uses.is_some() && !free(&a.tool) && tools.iter().any(|t| t.name == a.tool);
        self.allowed.iter().filter(is_out)
    }
}
