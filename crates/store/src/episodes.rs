//! The episodes of a step as JSON lines, and what is known about each of their tokens.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use episode::{Episode, Group, Task, TaskId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, names, read_if_there};
use crate::lines::complete_lines;
use crate::run_dir::{RunDir, step_name, step_of};
use crate::{RunId, StoreError};

pub(crate) const EPISODES: &str = "episodes";
pub(crate) const SIGNALS: &str = "signals";

/// Named values, one a token, of one episode.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenValues {
    /// Which group of the step, in order.
    pub group: u64,
    /// The task.
    pub task: TaskId,
    /// Which of the group's attempts.
    pub sample: u32,
    /// By name: a list for each sequence of the episode, as long as its tokens; `None` where there is no value.
    pub values: BTreeMap<String, Vec<Vec<Option<f32>>>>,
}

/// An episode's line. Borrowed for writing, so that an f32 is written as such and not as the f64 it would become.
#[derive(Serialize)]
struct EpisodeLine<'a> {
    run: &'a str,
    step: u64,
    group: u64,
    task: &'a Task,
    episode: &'a Episode,
}

#[derive(Deserialize)]
struct StoredEpisode {
    run: String,
    step: u64,
    group: u64,
    task: Task,
    episode: Episode,
}

#[derive(Serialize)]
struct ValuesLine<'a> {
    run: &'a str,
    step: u64,
    group: u64,
    task: &'a TaskId,
    sample: u32,
    values: &'a BTreeMap<String, Vec<Vec<Option<f32>>>>,
}

#[derive(Deserialize)]
struct StoredValues {
    run: String,
    step: u64,
    group: u64,
    task: TaskId,
    sample: u32,
    values: BTreeMap<String, Vec<Vec<Option<f32>>>>,
}

/// The path of a step's file.
pub(crate) fn step_path(run: &Path, folder: &str, step: u64, ending: &str) -> PathBuf {
    run.join(folder).join(format!("{}.{ending}", step_name(step)))
}

pub(crate) fn write_episodes(disk: &Disk, run: &RunDir, step: u64, groups: &[Group]) -> Result<(), StoreError> {
    let lines = groups.iter().enumerate().flat_map(|(index, group)| {
        group.episodes.iter().map(move |episode| EpisodeLine {
            run: run.run_id().as_str(),
            step,
            group: index as u64,
            task: &group.task,
            episode,
        })
    });
    write_step(disk, &step_path(run.path(), EPISODES, step, "jsonl"), lines)
}

pub(crate) fn write_values(disk: &Disk, run: &RunDir, step: u64, values: &[TokenValues]) -> Result<(), StoreError> {
    let lines = values.iter().map(|v| ValuesLine {
        run: run.run_id().as_str(),
        step,
        group: v.group,
        task: &v.task,
        sample: v.sample,
        values: &v.values,
    });
    write_step(disk, &step_path(run.path(), SIGNALS, step, "jsonl"), lines)
}

fn write_step(disk: &Disk, path: &Path, lines: impl Iterator<Item = impl Serialize>) -> Result<(), StoreError> {
    disk.create_folder(&crate::disk::parent(path))?;
    disk.write_whole_with(path, |file| {
        let mut out = BufWriter::new(file);
        for line in lines {
            let bytes = serde_json::to_vec(&line)
                .map_err(|e| StoreError::Unstorable { path: path.to_path_buf(), reason: e.to_string() })?;
            out.write_all(&bytes).and_then(|()| out.write_all(b"\n")).map_err(StoreError::io("write", path))?;
        }
        out.flush().map_err(StoreError::io("write", path))
    })
}

impl RunDir {
    /// The steps whose episodes are stored, ascending.
    pub fn episode_steps(&self) -> Result<Vec<u64>, StoreError> {
        let mut steps: Vec<u64> = names(&self.path().join(EPISODES))?
            .iter()
            .filter(|n| n.ends_with(".jsonl"))
            .filter_map(|n| step_of(n))
            .collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// The groups of a step, as they were written; none when the step has no file. Groups without episodes are not
    /// stored.
    pub fn episodes(&self, step: u64) -> Result<Vec<Group>, StoreError> {
        let path = step_path(self.path(), EPISODES, step, "jsonl");
        let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
        for (number, line) in read_step::<StoredEpisode>(&path)? {
            check(self.run_id(), &path, number, (&line.run, step, line.step))?;
            let task = line.task;
            groups
                .entry(line.group)
                .or_insert_with(|| Group { task, episodes: Vec::new() })
                .episodes
                .push(line.episode);
        }
        Ok(groups.into_values().collect())
    }

    /// The per-token values of a step; none when the step has no file.
    pub fn token_values(&self, step: u64) -> Result<Vec<TokenValues>, StoreError> {
        let path = step_path(self.path(), SIGNALS, step, "jsonl");
        let mut out = Vec::new();
        for (number, line) in read_step::<StoredValues>(&path)? {
            check(self.run_id(), &path, number, (&line.run, step, line.step))?;
            out.push(TokenValues { group: line.group, task: line.task, sample: line.sample, values: line.values });
        }
        Ok(out)
    }
}

fn check(run_id: &RunId, path: &Path, number: usize, (run, step, got): (&str, u64, u64)) -> Result<(), StoreError> {
    run_id.check(path, Some(number), Some(run))?;
    if got != step {
        return Err(StoreError::damaged(path, Some(number), format!("it is of step {got}, needed {step}")));
    }
    Ok(())
}

/// These files are renamed into place whole, so a line without an end is damage.
fn read_step<T: DeserializeOwned>(path: &Path) -> Result<Vec<(usize, T)>, StoreError> {
    let bytes = read_if_there(path)?.unwrap_or_default();
    if !bytes.is_empty() && bytes.last() != Some(&b'\n') {
        return Err(StoreError::damaged(path, None, "its last line is cut off"));
    }
    complete_lines(&bytes)
        .map(|(number, line)| {
            serde_json::from_slice(line).map(|v| (number, v)).map_err(|e| StoreError::damaged(path, Some(number), e))
        })
        .collect()
}
