//! A guessing game of several turns: find a word of five letters; after each guess every letter is marked.
//!
//! The rules are exact: a letter is marked `+` in its place, `?` where it stands elsewhere in the word, `.` where it does
//! not; a letter is marked at most as often as the word holds it, places first. A turn without a word of five letters is a
//! guess lost. The guess is the last such word of a turn, so that a policy may think aloud before it.

mod words;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use agent::{Reaction, World};
use episode::random::Stream;
use episode::{Cause, Message, Role, Task, ToolCall, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::draw::Draw;
use crate::stage::Stage;
use crate::tasks::{Loaded, Source};
use crate::{EnvError, Split, grader, levels};

/// Which games, how many, and how they are put.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Number of training tasks.
    pub n_train: usize,
    /// Number of held-out tasks.
    pub n_held_out: usize,
    /// Chooses the tasks and their order, never the side a word is on.
    pub seed: u64,
    /// Guesses the policy has; `rollout.turns` must allow as many.
    pub guesses: usize,
    /// Guesses that were made and marked before it begins; the more, the easier.
    pub openers: usize,
    /// What is said to the policy; `{guesses}` stands for how many it has and `{grid}` for what was guessed before.
    pub prompt: String,
    /// Standing instructions said first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            n_train: 1000,
            n_held_out: 200,
            seed: 0,
            guesses: 6,
            openers: 1,
            prompt:
                "Find the word of 5 letters in {guesses} guesses. Say one word a turn. + marks a letter in its place, \
                     ? one that stands elsewhere, . one that is not in the word.{grid}"
                    .to_owned(),
            system: None,
        }
    }
}

/// Letters of a word.
const N_LETTERS: usize = 5;

/// The marks of a guess, letter by letter; both of [`N_LETTERS`] small letters.
fn marks(word: &str, guess: &str) -> String {
    let (word, guess) = (word.as_bytes(), guess.as_bytes());
    // Letters of the word that no place has used.
    let mut left: Vec<u8> = word.iter().zip(guess).filter(|(w, g)| w != g).map(|(w, _)| *w).collect();
    let mut mark = |w: &u8, g: &u8| {
        if w == g {
            return '+';
        }
        match left.iter().position(|l| l == g) {
            Some(at) => {
                left.swap_remove(at);
                '?'
            }
            None => '.',
        }
    };
    word.iter().zip(guess).map(|(w, g)| mark(w, g)).collect()
}

/// The last word of five letters in a turn, in small letters.
fn guess(said: &str) -> Option<String> {
    let mut words = said.split(|c: char| !c.is_alphabetic());
    let fits = |w: &&str| w.len() == N_LETTERS && w.bytes().all(|b| b.is_ascii_alphabetic());
    words.rfind(fits).map(str::to_ascii_lowercase)
}

impl Source for Settings {
    fn load(&self, env: &str, _base: &Path) -> Result<Loaded, EnvError> {
        self.check(env)?;
        let train = self.tasks(env, Split::Train, self.n_train)?;
        let held_out = self.tasks(env, Split::HeldOut, self.n_held_out)?;
        let gold_reply = |task: &Task| task.gold["word"].as_str().map(str::to_owned);
        let stage = Some(Box::new(Table { guesses: self.guesses }) as Box<dyn Stage>);
        Ok(Loaded { train, held_out, gold_reply: Box::new(gold_reply), stage })
    }

    fn own_grader(&self) -> Option<grader::Kind> {
        Some(grader::Kind::Goal(grader::goal::Settings::default()))
    }
}

impl Settings {
    fn check(&self, env: &str) -> Result<(), EnvError> {
        let refuse =
            |key: &str, reason: String| Err(EnvError::Setting { env: env.to_owned(), key: key.to_owned(), reason });
        if self.n_train == 0 {
            return refuse("n_train", "is 0, needed at least 1".to_owned());
        }
        if !(1..=100).contains(&self.guesses) {
            return refuse("guesses", format!("is {}, needed 1 to 100", self.guesses));
        }
        if self.openers > 10 {
            return refuse("openers", format!("is {}, needed at most 10", self.openers));
        }
        if self.openers > 0 && !self.prompt.contains("{grid}") {
            return refuse("openers", "would be ignored: `prompt` has no `{grid}` in it".to_owned());
        }
        Ok(())
    }

    fn tasks(&self, env: &str, split: Split, n: usize) -> Result<Vec<Task>, EnvError> {
        let words: Vec<&str> = words::WORDS.split_whitespace().collect();
        let own: Vec<&str> = words.iter().copied().filter(|w| side_of(w) == split).collect();
        let mut tasks = Vec::with_capacity(n);
        let mut seen = BTreeSet::new();
        let mut index = 0u64;
        // Round after round over the words, each in another order, until a whole round gives nothing new.
        while tasks.len() < n {
            let before = tasks.len();
            let order = Stream::new(&format!("wordgrid {split}"), &[self.seed, index]).permutation(own.len());
            for at in order {
                let mut draw = Draw::new(Stream::new("wordgrid openers", &[self.seed, index, at as u64]));
                // What was guessed before is not the word itself, nor a word of the other side.
                let others: Vec<&str> = own.iter().copied().filter(|w| *w != own[at]).collect();
                let openers = draw.some(&others, self.openers);
                let task = self.task(env, own[at], &openers);
                if tasks.len() < n && seen.insert(task.id.clone()) {
                    tasks.push(task);
                }
            }
            if tasks.len() == before {
                let (got, detail) = (tasks.len(), format!("it has {} words on that side", own.len()));
                return Err(EnvError::TooFew { env: env.to_owned(), split, needed: n, got, detail });
            }
            index += 1;
        }
        Ok(tasks)
    }

    fn task(&self, env: &str, word: &str, openers: &[&&str]) -> Task {
        let grid: String = openers.iter().map(|guess| format!("\n{guess} {}", marks(word, guess))).collect();
        let ask = self.prompt.replace("{guesses}", &self.guesses.to_string()).replace("{grid}", &grid);
        let mut messages: Vec<Message> = self.system.iter().map(|s| Message::new(Role::System, s)).collect();
        messages.push(Message::new(Role::User, ask));
        Task::new(env, messages, Grid::end(word, true), json!({ "openers": openers.len() }))
    }
}

/// A word's side is chosen by its letters.
fn side_of(word: &str) -> Split {
    levels::side_of("wordgrid", word)
}

/// The stage of all games.
struct Table {
    guesses: usize,
}

impl Stage for Table {
    fn tools(&self, _task: &Task) -> Arc<[ToolSpec]> {
        [].into()
    }

    fn world(&self, task: &Task) -> Box<dyn World> {
        let word = task.gold["word"].as_str().unwrap_or_default().to_owned();
        Box::new(Grid { word, left: self.guesses, won: false })
    }

    fn gold_calls(&self, _task: &Task) -> Option<Vec<ToolCall>> {
        None
    }
}

/// A game under way.
struct Grid {
    word: String,
    left: usize,
    won: bool,
}

impl Grid {
    fn end(word: &str, won: bool) -> Value {
        json!({ "word": word, "won": won })
    }
}

impl World for Grid {
    fn answer(&mut self, said: &str) -> Result<Reaction, Cause> {
        if self.left == 0 || self.won {
            return Ok(Reaction::End);
        }
        self.left -= 1;
        let guess = guess(said);
        self.won = guess.as_ref() == Some(&self.word);
        if self.won || self.left == 0 {
            return Ok(Reaction::End);
        }
        let marked = match guess {
            Some(guess) => format!("{guess} {}", marks(&self.word, &guess)),
            None => format!("no word of {N_LETTERS} letters"),
        };
        Ok(Reaction::Say(vec![Message::new(Role::User, format!("{marked}\n{} left", self.left))]))
    }

    fn is_over(&self) -> bool {
        self.left == 0 || self.won
    }

    fn state(&self) -> Value {
        Grid::end(&self.word, self.won)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Kind, Probe, Submission, TaskSet, audit};
    use std::sync::atomic::AtomicBool;

    fn load(settings: &Settings) -> Result<TaskSet, EnvError> {
        crate::Settings::plain(Kind::Wordgrid(settings.clone())).load(Path::new(""))
    }

    #[test]
    fn letters_are_marked_at_most_as_often_as_the_word_holds_them() {
        for (word, guess, want) in [
            ("crane", "crane", "+++++"),
            ("crane", "scout", ".?..."),
            ("crane", "nacre", "????+"),
            ("geese", "eagle", "?.?.+"),
            ("geese", "eerie", "?+..+"),
            ("apple", "poppy", "?.+.."),
            ("apple", "puppy", "?.+.."),
            ("abbey", "babes", "??++."),
            ("level", "lllll", "+...+"),
        ] {
            assert_eq!(marks(word, guess), want, "{word} {guess}");
        }
    }

    #[test]
    fn the_guess_is_the_last_word_of_five_letters() {
        for (said, want) in [
            ("crane", Some("crane")),
            ("I think: CRANE!", Some("crane")),
            ("maybe crane, or rather slate", Some("slate")),
            ("**slate**\n", Some("slate")),
            ("planes", None),
            ("tête", None),
            ("", None),
            ("12345", None),
        ] {
            assert_eq!(guess(said).as_deref(), want, "{said}");
        }
    }

    #[test]
    fn a_game_is_won_by_the_word_alone_and_lost_when_the_guesses_are_used_up() {
        let env = load(&Settings { guesses: 3, ..Settings::default() }).unwrap();
        let task = &env.tasks(Split::Train)[0];
        let word = task.gold["word"].as_str().unwrap();
        let play = |says: &[&str]| {
            let mut world = env.world(task);
            let heard: Vec<Reaction> = says.iter().map(|s| world.answer(s).unwrap()).collect();
            let state = world.state();
            let submission =
                Submission { task, reply: says[says.len() - 1], state: &state, cancel: &AtomicBool::new(false) };
            (env.grade(&submission).unwrap().reward, heard)
        };
        assert_eq!(play(&[word]), (1.0, vec![Reaction::End]));
        let (reward, heard) = play(&["zzzzz", "what?", word]);
        assert_eq!(reward, 1.0);
        let told = |text: &str| Reaction::Say(vec![Message::new(Role::User, text)]);
        assert_eq!(heard, [told("zzzzz .....\n2 left"), told("no word of 5 letters\n1 left"), Reaction::End]);
        let (reward, heard) = play(&["zzzzz", "zzzzz", "zzzzz", word]);
        assert_eq!((reward, &heard[2..]), (0.0, &[Reaction::End, Reaction::End][..]), "too late");
    }

    #[test]
    fn what_is_shipped_passes_its_audit() {
        for openers in [0, 3] {
            let n_train = if openers == 0 { 300 } else { 1000 };
            let n_held_out = if openers == 0 { 60 } else { 200 };
            let settings = Kind::Wordgrid(Settings { openers, n_train, n_held_out, ..Settings::default() });
            let settings = crate::Settings::plain(settings);
            let found = audit(&settings, Path::new(""), &Probe::default(), &AtomicBool::new(false)).unwrap().unwrap();
            assert!(found.passed(), "{found}");
        }
    }

    #[test]
    fn no_word_is_on_both_sides_and_no_opener_tells_one_of_the_other() {
        let env = load(&Settings { openers: 2, ..Settings::default() }).unwrap();
        let words =
            |split| -> BTreeSet<&str> { env.tasks(split).iter().filter_map(|t| t.gold["word"].as_str()).collect() };
        let held_out = words(Split::HeldOut);
        assert!(words(Split::Train).is_disjoint(&held_out) && held_out.len() > 60, "{}", held_out.len());
        for task in env.tasks(Split::Train) {
            assert!(!held_out.iter().any(|w| task.messages[0].content.contains(&format!("\n{w} "))));
            let word = task.gold["word"].as_str().unwrap();
            assert!(
                !task.messages[0].content.contains(word)
                    || "guess letter place stands elsewhere mark word".contains(word)
            );
        }
        assert_eq!(env.train, load(&Settings { openers: 2, ..Settings::default() }).unwrap().train);
    }

    #[test]
    fn settings_that_cannot_be_used_are_named() {
        let check = |settings: Settings, want: &str| assert_eq!(load(&settings).err().unwrap().to_string(), want);
        let plain = Settings::default;
        check(Settings { guesses: 0, ..plain() }, "environment `wordgrid`: `guesses` is 0, needed 1 to 100");
        check(Settings { openers: 11, ..plain() }, "environment `wordgrid`: `openers` is 11, needed at most 10");
        check(
            Settings { prompt: "Go!".into(), ..plain() },
            "environment `wordgrid`: `openers` would be ignored: `prompt` has no `{grid}` in it",
        );
        let error = load(&Settings { openers: 0, ..plain() }).err().unwrap().to_string();
        assert!(error.starts_with("environment `wordgrid`: needed 1000 train tasks, got "), "{error}");
    }
}
