//! What is typed: the commands and the flags they share.

use std::ffi::{OsStr, OsString};

use clap::builder::styling::Styles;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser};

use crate::cmd::Command;
use crate::error::Failure;

/// Reinforcement learning for language-model agents, the same bits every time.
#[derive(Debug, Parser)]
#[command(name = "surefoot", version, styles = Styles::plain(), max_term_width = 100, after_help = ENVIRONMENT)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Print results as JSON, one object a line, and errors too
    #[arg(long, global = true, display_order = 1000)]
    pub(crate) json: bool,
    /// Threads to use [default: every core]; no result depends on it
    #[arg(long, global = true, value_name = "N", display_order = 1001, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}

const ENVIRONMENT: &str = "\
Environment:
  SUREFOOT_HOME  where models and the index of runs live
  SUREFOOT_ISA   vector set to use: `scalar`, `avx2` or `avx512`; no result depends on it

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted.";

/// What came of the words typed.
pub(crate) enum Parsed {
    /// A command to run.
    Run(Box<Cli>),
    /// A text that was asked for: help or the version.
    Text(String),
}

/// Whether errors are to be JSON; asked before parsing, since parsing may fail.
pub(crate) fn wants_json(words: &[OsString]) -> bool {
    words.iter().take_while(|w| *w != OsStr::new("--")).any(|w| w == OsStr::new("--json"))
}

/// Reads the words typed.
///
/// - Errors: one in the house form for words that make no command.
pub(crate) fn parse(words: Vec<OsString>) -> Result<Parsed, Failure> {
    let error = match Cli::try_parse_from(&words) {
        Ok(cli) => return Ok(Parsed::Run(Box::new(cli))),
        Err(error) => error,
    };
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Parsed::Text(text)),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Failure::bad("needed a command").hint("`surefoot --help` lists them"))
        }
        _ => Err(usage(&text, &words)),
    }
}

/// The parser's complaint in the house form: its first paragraph is the message, its tips go into the hint.
fn usage(text: &str, words: &[OsString]) -> Failure {
    let mut parts = text.split("\n\n");
    let message = parts.next().unwrap_or_default().trim_start_matches("error: ");
    let message: Vec<&str> = message.lines().map(str::trim).collect();
    let mut hints: Vec<String> =
        parts.flat_map(str::lines).filter_map(|l| l.trim().strip_prefix("tip: ")).map(ticks).collect();
    hints.push(format!("`{} --help` explains", command_of(words)));
    Failure::bad(ticks(&message.join(" "))).hint(hints.join("; "))
}

/// The command that the words begin with.
fn command_of(words: &[OsString]) -> String {
    let mut command = Cli::command();
    let mut name = command.get_name().to_owned();
    for word in words.iter().skip(1) {
        let Some(next) = word.to_str().and_then(|w| command.find_subcommand(w)).cloned() else { break };
        name = format!("{name} {}", next.get_name());
        command = next;
    }
    name
}

/// The parser quotes with apostrophes; the house with backticks.
fn ticks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut open = false;
    let mut last = ' ';
    for c in text.chars() {
        let opens = !open && c == '\'' && !last.is_alphanumeric();
        if opens || (open && c == '\'') {
            open = !open;
            out.push('`');
        } else {
            out.push(c);
        }
        last = c;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &str, want: &str) {
        let words = std::iter::once("surefoot").chain(words.split_whitespace()).map(OsString::from).collect();
        match parse(words) {
            Err(failure) => assert_eq!(failure.to_string(), want),
            Ok(_) => panic!("`{want}` was expected"),
        }
    }

    #[test]
    fn the_definition_of_the_commands_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_words_get_the_house_form() {
        check("", "error: needed a command\nhint: `surefoot --help` lists them\n");
        check(
            "modles",
            "error: unrecognized subcommand `modles`\nhint: a similar subcommand exists: `models`; `surefoot --help` \
             explains\n",
        );
        check(
            "logprobs --model m",
            "error: the following required arguments were not provided: --tokens <FILE>\nhint: `surefoot logprobs --help` \
             explains\n",
        );
        check(
            "sample --model m --n x hello",
            "error: invalid value `x` for `--n <N>`: invalid digit found in string\nhint: `surefoot \
             sample --help` explains\n",
        );
    }

    #[test]
    fn json_is_seen_wherever_it_stands_but_not_behind_two_dashes() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&words("surefoot runs list --json")));
        assert!(!wants_json(&words("surefoot sample -- --json")));
    }

    #[test]
    fn help_of_every_command_is_as_written() {
        let mut texts = Vec::new();
        collect(Cli::command().term_width(100), "surefoot".to_owned(), &mut texts);
        for (name, text) in texts {
            insta::assert_snapshot!(name.replace(' ', "_"), text);
        }
    }

    fn collect(mut command: clap::Command, name: String, out: &mut Vec<(String, String)>) {
        command = command.bin_name(&name);
        command.build();
        out.push((name.clone(), command.render_long_help().to_string()));
        let children: Vec<clap::Command> = command.get_subcommands().cloned().collect();
        for child in children {
            if child.get_name() != "help" {
                let name = format!("{name} {}", child.get_name());
                collect(child.term_width(100), name, out);
            }
        }
    }
}
