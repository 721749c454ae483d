//! Episodes that are trained on beside the policy's own: of other runs, of other systems, of this run's latest steps.
//!
//! A share of each step's groups is drawn by seed and step from everything there is to replay, none twice in a step. Other
//! runs' and systems' policy versions mean nothing here, so their tokens count as sampled by version 0, the weights this
//! run began with: at step s they are s − 1 versions old. This run's own keep theirs.

mod line;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use episode::random::Stream;
use episode::{Group, Task};
use policy::Policy;
use rollout::stream::protocol::Verdict;
use serde_json::Value;
use store::{RunDir, hash_bytes, hash_file, step_name};

use line::{GroupKey, Line, check};

use crate::settings::ReplaySettings;
use crate::source::{Collected, Source, admit};
use crate::{Manifest, Progress, RunError, Settings, State};

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

    fn attempt(
        &mut self,
        policy: &mut dyn Policy,
        round: (u64, u64),
        tasks: &[(Task, usize)],
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Vec<Group>, RunError> {
        self.inner.attempt(policy, round, tasks, progress, cancel)
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
