//! Episodes that are trained on beside the policy's own: of other runs, of other systems, of this run's latest steps.
//!
//! A share of each step's groups is drawn by seed and step from everything there is to replay, none twice in a step. Other
//! runs' and systems' policy versions mean nothing here, so their tokens count as sampled by version 0, the weights this
//! run began with: at step s they are s − 1 versions old. This run's own keep theirs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use episode::random::Stream;
use episode::{Episode, EpisodeKey, Group, Message, Outcome, Role, Sequence, StopReason, Task, Token, Turn};
use policy::Policy;
use rollout::stream::protocol::Verdict;
use serde::Deserialize;
use serde_json::{Value, json};
use store::{RunDir, hash_bytes, hash_file, step_name};

use crate::settings::ReplaySettings;
use crate::source::{Collected, Source, admit};
use crate::{Manifest, Progress, RunError, Settings, State};

/// The environment that tasks of other systems are said to come from.
const ENV: &str = "replay";

/// What episodes must fit to be trained on here.
#[derive(Debug, Clone, Copy)]
pub struct Fit<'a> {
    /// Token ids are below this.
    pub vocabulary: usize,
    /// Sequences have at most this many tokens.
    pub context: usize,
    /// The tokenizer's fingerprint, which that of another run must equal.
    pub tokenizer: &'a str,
}

/// Groups of episodes in files, found once and read when they are drawn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Library {
    files: Vec<Shelf>,
    groups: Vec<Entry>,
    hash: Option<String>,
}

/// A file of episodes.
#[derive(Debug, Clone, PartialEq)]
struct Shelf {
    path: PathBuf,
    /// As it is called in records: it does not depend on where the run file lies.
    name: String,
}

/// The lines of a group.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    shelf: usize,
    lines: Vec<Place>,
}

/// A line in a file.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    number: usize,
    start: u64,
    n_bytes: usize,
}

/// What makes lines of one file a group.
type GroupKey = (Option<u64>, String, String);

impl Library {
    /// Finds the groups in run directories and files, and checks that every episode fits.
    ///
    /// - Errors: [`RunError::Data`] names file and line; [`RunError::Settings`] a place without episodes, or of another
    ///   tokenizer.
    pub fn open(settings: &ReplaySettings, base: &Path, fit: Fit<'_>) -> Result<Library, RunError> {
        let mut library = Library::default();
        let mut hashes = String::new();
        for from in &settings.from {
            let path = base.join(from);
            let n_before = library.groups.len();
            if path.is_dir() {
                let run = RunDir::read(&path)?;
                check_tokenizer(from, &run, fit)?;
                let again = replays(&run)?;
                for step in run.episode_steps()? {
                    let name = format!("episodes/{}.jsonl", step_name(step));
                    let shelf = Shelf { path: path.join(&name), name: format!("{from}/{name}") };
                    let skip = |group: &Value| again.contains(&(step, group.as_u64().unwrap_or(u64::MAX)));
                    library.add(shelf, fit, &skip, &mut hashes)?;
                }
            } else {
                library.add(Shelf { path, name: from.clone() }, fit, &|_| false, &mut hashes)?;
            }
            if library.groups.len() == n_before {
                return Err(RunError::Settings(format!("`replay.from` has `{from}`, which holds no episodes")));
            }
        }
        library.hash = (!settings.from.is_empty()).then(|| hash_bytes(hashes.as_bytes()));
        Ok(library)
    }

    /// SHA-256 over its files, if there are any.
    pub fn hash(&self) -> Option<&str> {
        self.hash.as_deref()
    }

    /// Number of groups.
    pub fn n_groups(&self) -> usize {
        self.groups.len()
    }

    fn add(
        &mut self,
        shelf: Shelf,
        fit: Fit<'_>,
        skip: &dyn Fn(&Value) -> bool,
        hashes: &mut String,
    ) -> Result<(), RunError> {
        let failed = |source| RunError::Io { path: shelf.path.clone(), source };
        let mut file = BufReader::new(File::open(&shelf.path).map_err(failed)?);
        let mut found: BTreeMap<GroupKey, usize> = BTreeMap::new();
        let (mut line, mut start, mut number) = (Vec::new(), 0, 0);
        loop {
            line.clear();
            let n_bytes = file.read_until(b'\n', &mut line).map_err(failed)?;
            if n_bytes == 0 {
                break;
            }
            number += 1;
            let place = Place { number, start, n_bytes };
            start += n_bytes as u64;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let bad = |reason| RunError::Data { path: shelf.path.clone(), line: number, reason };
            let parsed = Line::parse(&line).map_err(bad)?;
            if skip(parsed.group.as_ref().unwrap_or(&Value::Null)) {
                continue;
            }
            let key = parsed.key();
            let (_, episode) = parsed.episode().map_err(bad)?;
            check(&episode, fit).map_err(bad)?;
            let at = *found.entry(key).or_insert(self.groups.len());
            match self.groups.get_mut(at) {
                Some(entry) => entry.lines.push(place),
                None => self.groups.push(Entry { shelf: self.files.len(), lines: vec![place] }),
            }
        }
        hashes.push_str(&hash_file(&shelf.path)?);
        hashes.push('\n');
        self.files.push(shelf);
        Ok(())
    }

    /// A group, and what it is called.
    fn read(&self, index: usize) -> Result<(Group, String), RunError> {
        let Entry { shelf, lines } = &self.groups[index];
        let Shelf { path, name } = &self.files[*shelf];
        let failed = |source| RunError::Io { path: path.clone(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut group: Option<Group> = None;
        for (sample, place) in lines.iter().enumerate() {
            let bad = |reason| RunError::Data { path: path.clone(), line: place.number, reason };
            let mut line = vec![0; place.n_bytes];
            file.seek(SeekFrom::Start(place.start)).and_then(|_| file.read_exact(&mut line)).map_err(failed)?;
            let parsed = Line::parse(&line).map_err(bad)?;
            let is_named = parsed.episode.is_none();
            let (task, mut episode) = parsed.episode().map_err(bad)?;
            if is_named {
                episode.key.sample = sample as u32;
            }
            episode.sequences = episode.sequences.into_iter().map(|s| s.with_version(0)).collect();
            group.get_or_insert_with(|| Group { task, episodes: Vec::new() }).episodes.push(episode);
        }
        let first = lines.first().map_or(0, |l| l.number);
        Ok((group.expect("an entry has at least 1 line"), format!("{name}:{first}")))
    }
}

fn check_tokenizer(from: &str, run: &RunDir, fit: Fit<'_>) -> Result<(), RunError> {
    let manifest: Option<Manifest> = run.read_json("manifest.json")?;
    let got = manifest.map_or_else(String::new, |m| m.tokenizer);
    if got == fit.tokenizer {
        return Ok(());
    }
    let needed = fit.tokenizer;
    Err(RunError::Settings(format!(
        "`replay.from` has run `{from}` of another tokenizer: needed `{needed}`, got `{got}`"
    )))
}

/// The groups that a run had replayed itself, by step and number.
fn replays(run: &RunDir) -> Result<Vec<(u64, u64)>, RunError> {
    let lines: Vec<Value> = run.read_lines(crate::lag::SCHEDULE)?;
    let mut all = Vec::new();
    for line in &lines {
        let groups = line["groups"].as_array().map_or(&[][..], Vec::as_slice);
        let again = groups.iter().enumerate().filter(|(_, g)| !g["from"].is_null());
        all.extend(again.map(|(index, _)| (line["step"].as_u64().unwrap_or(0), index as u64)));
    }
    Ok(all)
}

/// A line: one of this program's record, or of another system. Read into one flat form, since numbers that pass through
/// a tagged one are widened on the way.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(rename = "run")]
    _run: Option<String>,
    step: Option<u64>,
    group: Option<Value>,
    task: Value,
    episode: Option<Episode>,
    tokens: Option<Vec<Token>>,
    sampled: Option<Vec<u8>>,
    logp: Option<Vec<Option<f32>>>,
    logp_t1: Option<Vec<Option<f32>>>,
    version: Option<Vec<Option<u32>>>,
    turns: Option<Vec<Turn>>,
    reward: Option<f64>,
    stop: Option<StopReason>,
    messages: Option<Vec<Message>>,
}

impl Line {
    fn parse(bytes: &[u8]) -> Result<Line, String> {
        serde_json::from_slice(bytes).map_err(|e| {
            let text = e.to_string();
            text.split_once(" at line ").map_or(text.clone(), |(reason, _)| reason.to_owned())
        })
    }

    fn key(&self) -> GroupKey {
        let text = |value: Option<&Value>| value.map_or_else(String::new, Value::to_string);
        let task = if self.episode.is_some() { String::new() } else { self.task.to_string() };
        (self.step, text(self.group.as_ref()), task)
    }

    fn episode(self) -> Result<(Task, Episode), String> {
        let task = match &self.task {
            Value::String(name) => {
                let asked = self.messages.iter().flatten().take_while(|m| m.role != Role::Assistant).cloned().collect();
                let named = |asked: Vec<Message>| match asked.is_empty() {
                    true => vec![Message::new(Role::User, name)],
                    false => asked,
                };
                Task::new(ENV, named(asked), Value::Null, json!({ "name": name }))
            }
            other => serde_json::from_value(other.clone())
                .map_err(|e| format!("`task` is neither a name nor a task of a record: {e}"))?,
        };
        if let Some(episode) = self.episode {
            return Ok((task, episode));
        }
        let (Some(tokens), Some(sampled), Some(logp), Some(reward)) =
            (&self.tokens, &self.sampled, &self.logp, self.reward)
        else {
            return Err("needed `tokens`, `sampled`, `logp` and `reward`, or a whole `episode`".to_owned());
        };
        let n = tokens.len();
        let logp_t1 = self.logp_t1.as_ref().unwrap_or(logp);
        let n_versions = self.version.as_ref().map_or(n, Vec::len);
        for (list, got) in
            [("sampled", sampled.len()), ("logp", logp.len()), ("logp_t1", logp_t1.len()), ("version", n_versions)]
        {
            if got != n {
                return Err(format!("`{list}` has {got} entries, needed {n}, one a token"));
            }
        }
        if !reward.is_finite() {
            return Err(format!("`reward` is {reward}, needed a finite number"));
        }
        let turns = self.turns.unwrap_or_else(|| runs(sampled));
        let sequence = sequence(tokens, sampled, (logp, logp_t1), &turns)?;
        let key = EpisodeKey { step: self.step.unwrap_or(0), task: task.id.clone(), sample: 0 };
        let episode = Episode {
            key,
            sequences: vec![sequence],
            messages: self.messages.unwrap_or_default(),
            outcome: Outcome::Graded { reward, parts: Vec::new() },
            stop: self.stop.unwrap_or(StopReason::Eos),
            turn_rewards: Vec::new(),
        };
        Ok((task, episode))
    }
}

/// Turns as runs of tokens that were sampled and that were not.
fn runs(sampled: &[u8]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for (at, is_sampled) in sampled.iter().map(|s| *s != 0).enumerate() {
        let role = if is_sampled { Role::Assistant } else { Role::User };
        match turns.last_mut() {
            Some(turn) if turn.role == role => turn.span.end = at + 1,
            _ => turns.push(Turn { role, span: at..at + 1 }),
        }
    }
    turns
}

fn sequence(
    tokens: &[Token],
    sampled: &[u8],
    (logp, logp_t1): (&[Option<f32>], &[Option<f32>]),
    turns: &[Turn],
) -> Result<Sequence, String> {
    let mut sequence = Sequence::new();
    for Turn { role, span } in turns {
        let is_next = span.start == sequence.len() && span.start <= span.end && span.end <= tokens.len();
        if !is_next {
            return Err(format!("`turns` do not cover the {} tokens in order", tokens.len()));
        }
        let n_sampled = sampled[span.clone()].iter().filter(|s| **s != 0).count();
        if n_sampled == 0 {
            sequence.append_context(*role, &tokens[span.clone()]);
            continue;
        }
        if n_sampled < span.len() {
            return Err(format!("the turn of tokens {} to {} is sampled in part", span.start, span.end));
        }
        let value =
            |list: &[Option<f32>]| -> Vec<f32> { list[span.clone()].iter().map(|v| v.unwrap_or(f32::NAN)).collect() };
        let appended = sequence.append_sampled(&tokens[span.clone()], &value(logp), &value(logp_t1), 0);
        appended.map_err(|e| e.to_string())?;
    }
    if sequence.len() < tokens.len() {
        return Err(format!("`turns` do not cover the {} tokens in order", tokens.len()));
    }
    Ok(sequence)
}

/// Whether an episode can be trained on here.
fn check(episode: &Episode, fit: Fit<'_>) -> Result<(), String> {
    for sequence in &episode.sequences {
        let (tokens, vocabulary) = (sequence.tokens(), fit.vocabulary);
        if let Some(at) = tokens.iter().position(|t| *t as usize >= vocabulary) {
            return Err(format!("token {} at position {at} is outside the vocabulary of {vocabulary}", tokens[at]));
        }
        if tokens.len() > fit.context {
            let (got, context) = (tokens.len(), fit.context);
            return Err(format!("{got} tokens do not fit the context window of {context}"));
        }
        if sequence.sampled().first() == Some(&true) {
            return Err("the first token is sampled, needed at least 1 token before it".to_owned());
        }
    }
    Ok(())
}

/// A source with replayed groups behind its own.
pub(crate) struct Replayed {
    inner: Box<dyn Source>,
    library: Library,
    /// This run.
    run: RunDir,
    n: usize,
    own_steps: usize,
    seed: u64,
}

impl Replayed {
    pub(crate) fn new(
        inner: Box<dyn Source>,
        library: Library,
        run: RunDir,
        settings: &Settings,
        replay: &ReplaySettings,
    ) -> Replayed {
        let own_steps = usize::try_from(replay.own_steps).unwrap_or(usize::MAX);
        Replayed { inner, library, run, n: settings.n_replayed(), own_steps, seed: settings.seed }
    }

    /// A group by its number among all there are: those of the library, then this run's own, the oldest step first.
    fn read(&self, state: &State, mut index: usize) -> Result<(Group, String), RunError> {
        if index < self.library.n_groups() {
            return self.library.read(index);
        }
        index -= self.library.n_groups();
        let first = state.step + 1 - state.own.len() as u64;
        for (step, n) in (first..).zip(&state.own) {
            if (index as u64) < *n {
                let group = self.run.episodes(step)?.into_iter().nth(index);
                let path = self.run.path().to_owned();
                let missing = || format!("needed group {index} of step {step} to replay, which is not there");
                let group = group.ok_or_else(|| RunError::Resume { path, reason: missing() })?;
                return Ok((group, format!("step {step} group {index}")));
            }
            index -= *n as usize;
        }
        let (path, reason) = (self.run.path().to_owned(), "its state counts other groups than were written".to_owned());
        Err(RunError::Resume { path, reason })
    }
}

impl Source for Replayed {
    fn collect(
        &mut self,
        policy: &mut dyn Policy,
        settings: &Settings,
        state: &State,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Collected, RunError> {
        let mut collected = self.inner.collect(policy, settings, state, progress, cancel)?;
        let algorithm = settings.algorithm.algorithm();
        let n_all = self.library.n_groups() + state.own.iter().sum::<u64>() as usize;
        let mut order = Deck::new(Stream::new("replay", &[self.seed, state.step + 1]), n_all);
        let mut names = Vec::new();
        for _ in 0..self.n.saturating_mul(algorithm.max_draws()) {
            let Some(index) = order.next().filter(|_| names.len() < self.n) else { break };
            let (group, name) = self.read(state, index)?;
            if admit(algorithm, &group, progress) == Verdict::Keep {
                collected.groups.push(group);
                names.push(name);
            }
        }
        collected.own = state.own.clone();
        collected.own.push(collected.n_fresh as u64);
        let n_old = collected.own.len().saturating_sub(self.own_steps);
        collected.own.drain(..n_old);
        collected.schedule.get_or_insert_default().replayed = names;
        Ok(collected)
    }
}

/// A permutation of `0..n` that is dealt from the top, without laying out all of it.
struct Deck {
    stream: Stream,
    n: usize,
    dealt: usize,
    moved: BTreeMap<usize, usize>,
}

impl Deck {
    fn new(stream: Stream, n: usize) -> Deck {
        Deck { stream, n, dealt: 0, moved: BTreeMap::new() }
    }
}

impl Iterator for Deck {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let i = self.dealt;
        if i == self.n {
            return None;
        }
        let j = i + self.stream.below(i as u64, (self.n - i) as u64) as usize;
        let at = |k: usize| self.moved.get(&k).copied().unwrap_or(k);
        let (card, other) = (at(j), at(i));
        self.moved.insert(j, other);
        self.dealt += 1;
        Some(card)
    }
}
