//! From lines to groups.

use std::collections::BTreeMap;

use episode::{Episode, EpisodeKey, Group, Message, Role, Task, TaskId};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde_json::Value;

use super::SignalsError;
use super::given::{Checked, Given, Key};
use super::line::{Line, Side};

/// Episodes by group, in the order in which groups are first met, each with what its line says about its tokens.
#[derive(Debug)]
pub struct Input {
    pub(super) groups: Vec<Group>,
    pub(super) given: Vec<Vec<Given>>,
}

impl Input {
    /// Reads lines of JSON; blank ones are skipped.
    ///
    /// - Errors: [`SignalsError::Line`] with what is wrong with the first line that cannot be used.
    pub fn read(bytes: &[u8]) -> Result<Input, SignalsError> {
        let mut places: BTreeMap<Key, usize> = BTreeMap::new();
        let mut open: Vec<OpenGroup> = Vec::new();
        for (index, text) in bytes.split(|b| *b == b'\n').enumerate() {
            if text.trim_ascii().is_empty() {
                continue;
            }
            let line = index + 1;
            let refused = |reason| SignalsError::Line { line, reason };
            // The parser would take a list for the fields in their order.
            if text.trim_ascii_start().first() != Some(&b'{') {
                return Err(refused("needed a JSON object".to_owned()));
            }
            // The parser counts lines inside the line it was given.
            let parsed: Line = serde_json::from_slice(text)
                .map_err(|e| refused(e.to_string().replacen(" at line 1 column ", " at column ", 1)))?;
            let checked = parsed.check(line).map_err(refused)?;
            let g = *places.entry(checked.key.clone()).or_insert(open.len());
            if g == open.len() {
                open.push(OpenGroup::default());
            }
            open[g].add(checked).map_err(refused)?;
        }
        if open.is_empty() {
            return Err(SignalsError::Empty);
        }
        let mut input = Input { groups: Vec::new(), given: Vec::new() };
        for group in open {
            let (group, given) = group.close()?;
            input.groups.push(group);
            input.given.push(given);
        }
        input.fill_versions();
        Ok(input)
    }

    /// The version that the step begins with: the newest that sampled anything, or that a run's step began with.
    pub(super) fn version(&self) -> u32 {
        let sequences = self.groups.iter().flat_map(|g| &g.episodes).flat_map(|e| &e.sequences);
        let begun_with = self.given.iter().flatten().filter_map(|given| given.begun_with);
        sequences.flat_map(|s| s.version()).copied().chain(begun_with).max().unwrap_or_default()
    }

    /// Tokens of which no version is told are on-policy.
    fn fill_versions(&mut self) {
        let newest = self.version();
        let episodes = self.groups.iter_mut().flat_map(|g| &mut g.episodes);
        for (episode, _) in episodes.zip(self.given.iter().flatten()).filter(|(_, given)| !given.has_version) {
            let old = std::mem::take(&mut episode.sequences);
            episode.sequences = old.into_iter().map(|s| s.with_version(newest)).collect();
        }
    }
}

/// A group whose lines are still being read.
#[derive(Default)]
struct OpenGroup {
    /// What names it where no line names a task.
    fallback: String,
    /// Its task's name, and the line that said so first.
    name: Option<(String, usize)>,
    /// Its task, where a run recorded it.
    task: Option<Task>,
    episodes: Vec<Episode>,
    given: Vec<Given>,
}

impl OpenGroup {
    fn add(&mut self, checked: Checked) -> Result<(), String> {
        let line = checked.given.line;
        match (&self.name, checked.name) {
            (Some((name, first)), Some(other)) if *name != other => {
                return Err(format!("task `{other}` stands in the group of line {first}, which is of task `{name}`"));
            }
            (None, Some(name)) => self.name = Some((name, line)),
            _ => (),
        }
        if let Key::Group(name) = checked.key {
            self.fallback = name;
        }
        self.task = self.task.take().or(checked.task);
        self.episodes.push(checked.episode);
        self.given.push(checked.given);
        Ok(())
    }

    fn close(mut self) -> Result<(Group, Vec<Given>), SignalsError> {
        let task = self.task.take().unwrap_or_else(|| {
            let name = self.name.take().map_or(self.fallback, |(name, _)| name);
            let messages = vec![Message::new(Role::User, &name)];
            let task = Task { id: task_id(&name), env: String::new(), messages, gold: Value::Null, meta: Value::Null };
            for (sample, episode) in self.episodes.iter_mut().enumerate() {
                episode.key = EpisodeKey { step: 0, task: task.id.clone(), sample: sample as u32 };
            }
            task
        });
        let group = Group { task, episodes: self.episodes };
        check_sides(&group, &self.given)?;
        Ok((group, self.given))
    }
}

/// Algorithms take pairs from rewards, so a side that says otherwise would be ignored.
fn check_sides(group: &Group, given: &[Given]) -> Result<(), SignalsError> {
    let of = |side| {
        let sides = group.episodes.iter().zip(given).filter(move |(_, given)| given.side == Some(side));
        sides.filter_map(|(episode, given)| Some((episode.outcome.reward()?, given.line)))
    };
    let best = of(Side::Rejected).max_by(|a, b| a.0.total_cmp(&b.0));
    let worst = of(Side::Chosen).min_by(|a, b| a.0.total_cmp(&b.0));
    match (worst, best) {
        (Some((chosen, line)), Some((rejected, other))) if chosen <= rejected => Err(SignalsError::Line {
            line,
            reason: format!(
                "the `chosen` episode has reward {chosen}, needed more than the {rejected} of the `rejected` one in line {other}"
            ),
        }),
        _ => Ok(()),
    }
}

/// A task's id from any text.
pub(super) fn task_id(text: &str) -> TaskId {
    let text = IntoDeserializer::<serde::de::value::Error>::into_deserializer(text);
    TaskId::deserialize(text).expect("a task's id is any text")
}
