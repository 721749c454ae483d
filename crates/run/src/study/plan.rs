//! Which runs a study has, and with what settings; refused whole before anything is opened.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use algo::TeacherRule;
use eval::study::{Cell, NONE};
use loss::Correction;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::StudyError;
use crate::schedule::Schedule;
use crate::{RunFile, Settings};

/// Short names, and the rules they stand for.
const SHORT: &[(&str, &str)] = &[("tis", "token_tis")];
/// Algorithms that deal with late tokens by their own loss, so that they stand where a correction would.
const ALGORITHMS: &[&str] = &["oapl", "dro"];
const MOST_SEEDS: u64 = 1000;

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// How many versions rollouts run ahead.
    pub lags: Vec<u64>,
    /// Names of corrections, or of algorithms that stand in their place.
    pub corrections: Vec<String>,
    /// Seeds, from the run file's on.
    pub n_seeds: u64,
    /// Sampled tokens after which every run ends; absent for what lag 0 / none uses for the run file's steps.
    pub tokens: Option<u64>,
    /// Held-out accuracy whose tokens are counted.
    pub target: Option<f64>,
}

/// What a study runs, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Version of the program that began it.
    pub version: String,
    /// The lags.
    pub lags: Vec<u64>,
    /// The corrections.
    pub corrections: Vec<String>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// The budget, where it was named.
    pub tokens: Option<u64>,
    /// The target, where it was named.
    pub target: Option<f64>,
    /// The folder that relative paths in the settings start from.
    pub base: PathBuf,
    /// The run file as it runs at lag 0 / none, every default filled in.
    pub settings: String,
}

impl Plan {
    /// Checks everything that can be checked without opening anything.
    ///
    /// - Errors: [`StudyError::Plan`] naming what is wrong; [`StudyError::Run`] for settings that one cell cannot have.
    pub fn new(settings: &Settings, base: &Path, grid: Grid) -> Result<Plan, StudyError> {
        check_grid(&grid)?;
        check_settings(settings)?;
        // A run file's numbers end there.
        let last = settings.seed.checked_add(grid.n_seeds - 1).filter(|last| i64::try_from(*last).is_ok());
        let last = last.ok_or_else(|| {
            refused(format!("`--seeds {}` from seed {} on are too many", grid.n_seeds, settings.seed))
        })?;
        let base = std::path::absolute(base).map_err(|source| StudyError::Io { path: base.to_owned(), source })?;
        let toml = settings.to_toml().map_err(|e| refused(e.to_string()))?;
        let table: Table = toml.parse().map_err(|e: toml::de::Error| refused(e.to_string()))?;
        if table.get("algorithm").is_none_or(|a| a.get("correction").is_none()) {
            let kind = settings.algorithm.name();
            let needed = "needed an algorithm that takes corrections, such as `grpo`, to compare with";
            return Err(refused(format!("`algorithm.kind` is `{kind}`, which takes no correction, {needed}")));
        }
        let plan = Plan {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lags: grid.lags,
            corrections: grid.corrections,
            seeds: (settings.seed..=last).collect(),
            tokens: grid.tokens,
            target: grid.target,
            base,
            settings: toml,
        };
        for cell in plan.cells() {
            plan.settings_of(&cell, settings.seed)?;
        }
        Ok(plan)
    }

    /// Every cell, lag 0 / none first whether it was asked for or not, the others by lag, then by correction.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = vec![Cell::baseline()];
        for lag in &self.lags {
            let row = self.corrections.iter().map(|c| Cell { lag: *lag, correction: c.clone() });
            cells.extend(row.filter(|c| !c.is_baseline()));
        }
        cells
    }

    /// The settings of one run, with the run file's number of steps.
    ///
    /// - Errors: [`StudyError::Run`] naming the cell that cannot run.
    pub fn settings_of(&self, cell: &Cell, seed: u64) -> Result<Settings, StudyError> {
        let failed = |e| StudyError::of_run(cell, seed, e);
        let mut file = RunFile::parse(&self.settings).map_err(failed)?;
        let table: Table = self.settings.parse().map_err(|e: toml::de::Error| refused(e.to_string()))?;
        let mut changes = vec![
            format!("seed={seed}"),
            format!("max_lag={}", cell.lag),
            // A lag is a bound, which a run may stay far below; in a study it is reached.
            format!("control.hold_lag={}", cell.lag > 0),
        ];
        let rule = rule(&cell.correction);
        let own = table.get("algorithm").and_then(|a| a.get("correction")?.get("rule")?.as_str());
        match rule {
            // The run file's own rule keeps the parameters it was given.
            Some(rule) if own == Some(rule) => {}
            Some(rule) => changes.push(format!("algorithm.correction={{ rule = '{rule}' }}")),
            None => changes.push(format!("algorithm={{ kind = '{}' }}", cell.correction)),
        }
        for change in changes {
            file.set(&change).map_err(failed)?;
        }
        file.resolve().map_err(failed)
    }

    /// The settings of lag 0 / none with the first seed.
    ///
    /// - Errors: as [`Plan::settings_of`]; none of a plan that was checked.
    pub fn baseline(&self) -> Result<Settings, StudyError> {
        self.settings_of(&Cell::baseline(), self.seeds.first().copied().unwrap_or_default())
    }

    /// The settings of a run that ends at a budget: more steps than could be needed, which are those where every attempt is
    /// a single token, so that it is the budget that ends it.
    pub(super) fn settings_within(&self, cell: &Cell, seed: u64, budget: Option<u64>) -> Result<Settings, StudyError> {
        let mut settings = self.settings_of(cell, seed)?;
        if let Some(budget) = budget {
            let attempts = (settings.batch.tasks * settings.batch.group_size).max(1) as u64;
            settings.steps = budget.div_ceil(attempts) + 1;
        }
        Ok(settings)
    }

    /// What a reader must know before believing the table.
    pub fn notes(&self) -> Result<Vec<String>, StudyError> {
        let settings = self.baseline()?;
        let mut notes = Vec::new();
        for lag in self.lags.iter().filter(|lag| self.tokens.is_none() && **lag >= settings.steps) {
            notes.push(format!(
                "Lag {lag} cannot be reached in {} steps: nothing there is trained on later than {} versions.",
                settings.steps,
                settings.steps - 1
            ));
        }
        if self.seeds.len() == 1 {
            notes.push(
                "With one seed the intervals are over tasks alone: nothing is said about another seed.".to_owned(),
            );
        }
        if settings.eval.every == 0 {
            notes.push(
                "`eval.every` is 0, so the curves have two points and the tokens to the target are those of the whole run."
                    .to_owned(),
            );
        }
        if let Some(word) = self.corrections.iter().find(|c| ALGORITHMS.contains(&c.as_str())) {
            notes.push(format!(
                "`{word}` is an algorithm of its own with its published settings: it differs from the other rows in more \
                 than how it corrects."
            ));
        }
        Ok(notes)
    }
}

/// The correction rule that a word means; none where it means an algorithm.
fn rule(word: &str) -> Option<&str> {
    if ALGORITHMS.contains(&word) {
        return None;
    }
    Some(SHORT.iter().find(|(short, _)| *short == word).map_or(word, |(_, rule)| rule))
}

fn refused(text: String) -> StudyError {
    StudyError::Plan(text)
}

fn check_grid(grid: &Grid) -> Result<(), StudyError> {
    if grid.lags.is_empty() {
        return Err(refused("`--lags` is empty, needed at least 1".to_owned()));
    }
    if grid.corrections.is_empty() {
        return Err(refused("`--corrections` is empty, needed at least 1".to_owned()));
    }
    let mut seen = BTreeSet::new();
    if let Some(lag) = grid.lags.iter().find(|lag| !seen.insert(**lag)) {
        return Err(refused(format!("`--lags` has {lag} twice")));
    }
    let mut seen = BTreeSet::new();
    for word in &grid.corrections {
        let known = rule(word).is_none_or(|rule| Correction::NAMES.contains(&rule));
        if !known {
            let names = [Correction::NAMES, ALGORITHMS].concat().join("`, `");
            return Err(refused(format!(
                "`--corrections` has `{word}`, needed `tis` (`token_tis`) or one of `{names}`"
            )));
        }
        if !seen.insert(rule(word).unwrap_or(word)) {
            return Err(refused(format!("`--corrections` has `{word}` twice")));
        }
    }
    if grid.lags == [0] && grid.corrections == [NONE] {
        return Err(refused("`--lags 0 --corrections none` has nothing to compare, needed another cell".to_owned()));
    }
    if !(1..=MOST_SEEDS).contains(&grid.n_seeds) {
        return Err(refused(format!("`--seeds` is {}, needed 1 to {MOST_SEEDS}", grid.n_seeds)));
    }
    if grid.tokens == Some(0) {
        return Err(refused("`--tokens` is 0, needed at least 1".to_owned()));
    }
    if let Some(target) = grid.target.filter(|t| !(*t > 0.0 && *t <= 1.0)) {
        return Err(refused(format!("`--target` is {target}, needed a share above 0, at most 1")));
    }
    Ok(())
}

fn check_settings(settings: &Settings) -> Result<(), StudyError> {
    let name = settings.algorithm.name();
    if settings.data.is_some() {
        return Err(refused(format!("`{name}` learns from given episodes, needed a run that samples its own")));
    }
    if settings.replay.is_some() {
        return Err(refused(
            "`[replay]` trains on more than what is generated, needed a run file without it".to_owned(),
        ));
    }
    if let Some(TeacherRule::Model(model)) = settings.algorithm.algorithm().teacher() {
        return Err(refused(format!("`algorithm.teacher` is `{model}`, needed an algorithm that learns from rewards")));
    }
    if settings.eval.tasks == 0 {
        return Err(refused("`eval.tasks` is 0, needed held-out tasks to compare by".to_owned()));
    }
    if settings.eval.patience > 0 {
        let got = settings.eval.patience;
        return Err(refused(format!("`eval.patience` is {got}, needed 0: a run would end before the budget")));
    }
    let o = &settings.optimiser;
    if o.schedule != Schedule::Constant && o.decay_updates.is_none() {
        return Err(refused(
            "`optimiser.schedule` falls over the whole run, which is not equally long in every cell, needed \
             `optimiser.decay_updates`"
                .to_owned(),
        ));
    }
    Ok(())
}
