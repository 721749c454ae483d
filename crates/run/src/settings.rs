//! The run file: one TOML file a run. What is typed is a [`RunFile`]; what will run, with every default filled in, is
//! [`Settings`], and that is what is saved with the run.

use std::path::Path;

use algo::Data;
use env::Settings as EnvSettings;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use train::{EngineSettings, Precision, Trainable};

use crate::RunError;
use crate::gate::{GateSettings, ToolSettings};
use crate::schedule::Optimiser;

/// Everything a run is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// A model's name, or a path to a GGUF file or a Hugging Face folder; a saved path is absolute.
    pub model: String,
    /// What every random number of the run is keyed with.
    #[serde(default)]
    pub seed: u64,
    /// Steps to train.
    pub steps: u64,
    /// How products are computed: `f32`, or `bf16`, about twice as fast where the processor has the instruction.
    #[serde(default)]
    pub precision: Precision,
    /// Steps in a row that may teach nothing before the run gives up.
    #[serde(default = "default_idle")]
    pub max_idle_steps: u64,
    /// Published versions that a token may be behind when it is trained on: how far rollouts may run ahead.
    #[serde(default)]
    pub max_lag: u64,
    /// Which weights learn.
    #[serde(default = "default_train")]
    pub train: Trainable,
    /// The algorithm with its settings.
    pub algorithm: algo::Settings,
    /// How the weights move.
    #[serde(default)]
    pub optimiser: Optimiser,
    /// What a step collects.
    #[serde(default)]
    pub batch: BatchSettings,
    /// How the policy samples while it trains.
    #[serde(default)]
    pub sampling: SamplingSettings,
    /// How episodes are run.
    #[serde(default)]
    pub rollout: rollout::Settings,
    /// The rules that every tool call passes.
    #[serde(default)]
    pub gate: GateSettings,
    /// How the policy spells tool calls.
    #[serde(default)]
    pub tools: ToolSettings,
    /// When and how held-out tasks are tried.
    #[serde(default)]
    pub eval: EvalSettings,
    /// What is kept of the weights.
    #[serde(default)]
    pub checkpoint: CheckpointSettings,
    /// How the engine uses the machine.
    #[serde(default)]
    pub engine: EngineSettings,
    /// Controls for experiments.
    #[serde(default, skip_serializing_if = "Control::is_none")]
    pub control: Control,
    /// Episodes of earlier steps, other runs or other systems that are trained on beside the policy's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplaySettings>,
    /// Given answers to learn from, for `sft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSettings>,
    /// Where tasks come from and who grades them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvSettings>,
}

/// What a step collects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchSettings {
    /// Tasks a step.
    pub tasks: usize,
    /// Attempts at each task.
    pub group_size: usize,
}

impl Default for BatchSettings {
    fn default() -> Self {
        BatchSettings { tasks: 12, group_size: 8 }
    }
}

/// How the policy samples while it trains. What would cut off the tail of π cannot be set: the recorded log-probability
/// would not be that of the draw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingSettings {
    /// Divides the logits; above 0.
    pub temperature: f32,
    /// Sampled tokens a turn at most.
    pub max_tokens: usize,
    /// Texts that end a turn.
    pub stop: Vec<String>,
    /// Never sample control tokens that end nothing, such as the opening of a turn.
    pub ban_structural: bool,
}

impl Default for SamplingSettings {
    fn default() -> Self {
        SamplingSettings { temperature: 1.0, max_tokens: 256, stop: Vec::new(), ban_structural: true }
    }
}

/// When and how held-out tasks are tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalSettings {
    /// Steps between evaluations; 0 for only before and after.
    pub every: u64,
    /// Held-out tasks of each environment at most; 0 for no evaluation at all.
    pub tasks: usize,
    /// Attempts at each task.
    pub attempts: usize,
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Each pass@k to report; at most `attempts`.
    pub pass_at: Vec<u64>,
    /// Stop after this many evaluations in a row without a better score; 0 for never.
    pub patience: u64,
    /// Questions whose answers before and after are kept for reading.
    pub samples: usize,
    /// Environments tried once, before training, to tell what the untrained policy can do in another form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub baseline: Vec<EnvSettings>,
}

impl Default for EvalSettings {
    fn default() -> Self {
        EvalSettings {
            every: 0,
            tasks: 300,
            attempts: 1,
            temperature: 0.0,
            pass_at: vec![1],
            patience: 0,
            samples: 5,
            baseline: Vec::new(),
        }
    }
}

/// What is kept of the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSettings {
    /// Steps between checkpoints.
    pub every: u64,
    /// The newest ones kept.
    pub keep_last: usize,
    /// Keep the one with the best held-out accuracy beside them.
    pub keep_best: bool,
    /// Steps between computing how far the policy is from where it began, over the step's tokens; 0 for never.
    pub kl_every: u64,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        CheckpointSettings { every: 5, keep_last: 2, keep_best: true, kl_every: 5 }
    }
}

/// Controls for experiments: what makes a run deliberately worse.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Control {
    /// Replace every training reward by a fair coin flip; evaluation stays as it is.
    pub coin_flips: bool,
    /// Let rollouts run ahead as far as `max_lag` allows before each step, so that from step `max_lag` + 1 on every token
    /// is `max_lag` versions old: for measuring what lag does.
    pub hold_lag: bool,
}

impl Control {
    fn is_none(&self) -> bool {
        *self == Control::default()
    }
}

/// Episodes that are trained on beside the policy's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReplaySettings {
    /// Run directories, and files of JSON lines with an episode each.
    pub from: Vec<String>,
    /// How many of this run's latest steps are replayed from; 0 for none.
    pub own_steps: u64,
    /// Share of a step's groups, to the nearest whole group.
    pub share: f64,
}

impl Default for ReplaySettings {
    fn default() -> Self {
        ReplaySettings { from: Vec::new(), own_steps: 0, share: 0.25 }
    }
}

/// Given answers to learn from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// JSON lines, each `{"messages": […]}` or `{"prompt": …, "completion": …}`, or for pairs
    /// `{"prompt": …, "chosen": …, "rejected": …}`.
    pub file: String,
}

fn default_idle() -> u64 {
    5
}

fn default_train() -> Trainable {
    Trainable::Lora { rank: 16, alpha: 32.0, targets: vec!["all".to_owned()] }
}

/// A run file as typed, with changes from the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFile {
    table: Table,
}

impl RunFile {
    /// Parses a run file.
    ///
    /// - Errors: [`RunError::Settings`] with the line.
    pub fn parse(text: &str) -> Result<RunFile, RunError> {
        text.parse().map(|table| RunFile { table }).map_err(|e: toml::de::Error| RunError::Settings(e.to_string()))
    }

    /// Reads a run file.
    pub fn read(path: &Path) -> Result<RunFile, RunError> {
        let text = std::fs::read_to_string(path).map_err(|source| RunError::Io { path: path.to_owned(), source })?;
        RunFile::parse(&text)
    }

    /// Changes one setting: `optimiser.learning_rate=1e-4`; an element of a list by its number: `env.0.seed=3`. The value is
    /// TOML, or a plain word.
    ///
    /// - Errors: a change without `=`, or under something that holds no settings.
    pub fn set(&mut self, change: &str) -> Result<(), RunError> {
        let bad = |reason: &str| RunError::Settings(format!("cannot set `{change}`: {reason}"));
        let (key, value) = change.split_once('=').ok_or_else(|| bad("needed `key=value`"))?;
        let (key, value) = (key.trim(), value.trim());
        let parsed = format!("v = {value}").parse::<Table>().ok().and_then(|mut t| t.remove("v"));
        let value = parsed.unwrap_or_else(|| Value::String(value.to_owned()));
        let mut path: Vec<&str> = key.split('.').collect();
        let last = path.pop().filter(|k| !k.is_empty()).ok_or_else(|| bad("the key is empty"))?;
        let mut at = &mut self.table;
        let mut rest = path.as_slice();
        while let [part, tail @ ..] = rest {
            rest = tail;
            let next = at.entry((*part).to_owned()).or_insert_with(|| Value::Table(Table::new()));
            at = match next {
                Value::Table(table) => table,
                Value::Array(list) => {
                    let index = rest.first().and_then(|i| i.parse::<usize>().ok());
                    let index = index.ok_or_else(|| bad(&format!("`{part}` is a list, needed a number after it")))?;
                    rest = &rest[1..];
                    let n = list.len();
                    let item = list.get_mut(index).and_then(Value::as_table_mut);
                    item.ok_or_else(|| bad(&format!("`{part}` has {n} entries, needed a number below that")))?
                }
                _ => return Err(bad(&format!("`{part}` is a value, needed settings"))),
            };
        }
        at.insert(last.to_owned(), value);
        Ok(())
    }

    /// Fills in every default and checks what can be checked without opening anything.
    ///
    /// - Errors: [`RunError::Settings`] naming the key.
    pub fn resolve(&self) -> Result<Settings, RunError> {
        let text = toml::to_string(&self.table).map_err(|e| RunError::Settings(e.to_string()))?;
        let settings: Settings = toml::from_str(&text).map_err(|e| RunError::Settings(with_place(&text, &e)))?;
        settings.check()?;
        Ok(settings)
    }
}

/// The parser's message, with the line it is about where the message names nothing.
fn with_place(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let start = error.span().map_or(0, |s| s.start.min(text.len()));
    let line = text[..start].rfind('\n').map_or(0, |n| n + 1);
    let line = text[line..].lines().next().unwrap_or_default();
    let names_it = line.split_once('=').is_some_and(|(key, _)| message.contains(&format!("`{}`", key.trim())));
    if names_it || line.is_empty() { message.to_owned() } else { format!("`{line}`: {message}") }
}

impl Settings {
    /// The settings as TOML, every key there.
    pub fn to_toml(&self) -> Result<String, RunError> {
        toml::to_string(self).map_err(|e| RunError::Settings(e.to_string()))
    }

    /// Groups of a step that are replayed.
    pub fn n_replayed(&self) -> usize {
        let share = self.replay.as_ref().map_or(0.0, |r| r.share.clamp(0.0, 1.0));
        (share * self.batch.tasks as f64).round() as usize
    }

    fn check_replay(&self, replay: &ReplaySettings) -> Result<(), RunError> {
        let refuse = |text: String| Err(RunError::Settings(text));
        let (share, tasks) = (replay.share, self.batch.tasks);
        if !(share > 0.0 && share <= 1.0) {
            return refuse(format!("`replay.share` is {share}, needed a number above 0 and at most 1"));
        }
        if self.n_replayed() == 0 {
            return refuse(format!("`replay.share` is {share}, needed at least half a group of the {tasks} of a step"));
        }
        if replay.from.is_empty() && replay.own_steps == 0 {
            return refuse("`[replay]` replays nothing, needed `from` or `own_steps`".to_owned());
        }
        if replay.from.is_empty() && self.n_replayed() == tasks {
            return refuse(format!(
                "`replay.share` is {share}, needed less: `own_steps` needs steps with groups of their own"
            ));
        }
        if self.data.is_some() {
            return refuse(
                "`[replay]` would be ignored: with `[data]` every step learns from given answers".to_owned(),
            );
        }
        Ok(())
    }

    fn check(&self) -> Result<(), RunError> {
        let refuse = |text: String| Err(RunError::Settings(text));
        let range = |key: &str, got: f64, ok: bool, needed: &str| {
            if ok { Ok(()) } else { refuse(format!("`{key}` is {got}, needed {needed}")) }
        };
        let (b, s, e, c) = (&self.batch, &self.sampling, &self.eval, &self.checkpoint);
        range("steps", self.steps as f64, self.steps >= 1, "at least 1")?;
        range("max_idle_steps", self.max_idle_steps as f64, self.max_idle_steps >= 1, "at least 1")?;
        let needed = "a number from 0 to 1000000";
        range("max_lag", self.max_lag as f64, self.max_lag <= 1_000_000, needed)?;
        if self.max_lag > 0 && self.data.is_some() {
            return refuse("`max_lag` would be ignored: with `[data]` nothing is sampled for training".to_owned());
        }
        if self.max_lag == 0 && self.control.hold_lag {
            return refuse("`control.hold_lag` would be ignored: `max_lag` is 0".to_owned());
        }
        if let Some(replay) = &self.replay {
            self.check_replay(replay)?;
        }
        range("batch.tasks", b.tasks as f64, b.tasks >= 1, "at least 1")?;
        range("batch.group_size", b.group_size as f64, b.group_size >= 1, "at least 1")?;
        let t = s.temperature;
        let needed = "a number from 0.001 to 100: a greedy policy has no gradient";
        range("sampling.temperature", f64::from(t), (1e-3..=100.0).contains(&t), needed)?;
        range("sampling.max_tokens", s.max_tokens as f64, s.max_tokens >= 1, "at least 1")?;
        range("eval.attempts", e.attempts as f64, e.attempts >= 1, "at least 1")?;
        let t = e.temperature;
        range("eval.temperature", f64::from(t), t == 0.0 || (1e-3..=100.0).contains(&t), "0, or 0.001 to 100")?;
        if t == 0.0 && e.attempts > 1 {
            return refuse(format!("`eval.attempts` is {} at temperature 0, needed 1: all would be equal", e.attempts));
        }
        if let Some(k) = e.pass_at.iter().find(|k| **k == 0 || **k > e.attempts as u64) {
            return refuse(format!("`eval.pass_at` has {k}, needed 1 to the {} attempts", e.attempts));
        }
        range("checkpoint.every", c.every as f64, c.every >= 1, "at least 1")?;
        range("checkpoint.keep_last", c.keep_last as f64, c.keep_last >= 1, "at least 1")?;
        self.optimiser.check()?;
        self.gate.check()?;
        self.rollout.check().map_err(|e| RunError::Settings(e.to_string()))?;
        if matches!(self.train, Trainable::Frozen {}) {
            return refuse("`train.kind` is `frozen`, needed `lora` or `full`".to_owned());
        }
        let (name, kind) = (self.algorithm.name(), self.algorithm.algorithm().data());
        let given = self.data.is_some();
        if !given && !kind.own() {
            return refuse(format!("`{name}` learns from given answers, needed `[data]`, got none"));
        }
        if given && !kind.given() {
            return refuse(format!("`[data]` would be ignored by `{name}`, which learns from its own episodes"));
        }
        if self.env.is_empty() && (!given || e.tasks > 0) {
            return refuse("a run needs at least 1 `[[env]]`, got 0 (with `[data]`, or `eval.tasks = 0`)".to_owned());
        }
        // A line of answers is one episode, a line of a pair two.
        let n_given = if kind == Data::EpisodesOrPairs { 2 } else { 1 };
        if given && b.group_size != n_given {
            let got = b.group_size;
            return refuse(format!(
                "`batch.group_size` is {got}, needed {n_given} with `[data]` and `{name}`: a line's own"
            ));
        }
        if given && self.control.coin_flips {
            return refuse("`control.coin_flips` would be ignored: given answers are not graded".to_owned());
        }
        let checked = self.algorithm.algorithm().check(b.group_size);
        checked.map_err(|e| RunError::Settings(e.to_string()))
    }
}

#[cfg(test)]
#[path = "../../env/src/broken.rs"]
pub(crate) mod broken;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_run_files_never_panic() {
        let whole = include_bytes!("../../../configs/quickstart.toml");
        let is_read = |bytes: &Vec<u8>| {
            let text = String::from_utf8_lossy(bytes);
            RunFile::parse(&text).and_then(|f| f.resolve()).is_ok()
        };
        let n_read = broken::broken("broken run files", whole, b"{}[]\"=.0#\n", 10_000).filter(is_read).count();
        assert!((100..9_900).contains(&n_read), "{n_read} of 10000 were still run files");
    }

    const SMALL: &str = "model = 'm'\nsteps = 2\n[algorithm]\nkind = 'grpo'\n[[env]]\nkind = 'sums'\n";

    fn check(change: &str, want: Option<&str>) {
        let mut file = RunFile::parse(SMALL).unwrap();
        file.set(change).unwrap();
        assert_eq!(file.resolve().err().map(|e| e.to_string()).as_deref(), want, "{change}");
    }

    #[test]
    fn what_cannot_run_is_refused_by_name() {
        check("seed=3", None);
        check("steps=0", Some("`steps` is 0, needed at least 1"));
        check(
            "sampling.temperature=0.0",
            Some("`sampling.temperature` is 0, needed a number from 0.001 to 100: a greedy policy has no gradient"),
        );
        check(
            "sampling.top_k=5",
            Some("unknown field `top_k`, expected one of `temperature`, `max_tokens`, `stop`, `ban_structural`"),
        );
        check("train={ kind = 'full', rank = 4 }", Some("`[train]`: unknown field `rank`, there are no fields"));
        check("gate.penalty=-1", Some("`gate.penalty` is -1, needed a number of reward points, at least 0"));
        check("rollout.turns=0", Some("`turns` is 0, needed at least 1"));
        check("train.kind=frozen", Some("`train.kind` is `frozen`, needed `lora` or `full`"));
        check("steps=x", Some("`steps = \"x\"`: invalid type: string \"x\", expected u64"));
        check("precision=bf16", None);
        check("precision=f16", Some("`precision = \"f16\"`: unknown variant `f16`, expected `f32` or `bf16`"));
        check("eval.attempts=4", Some("`eval.attempts` is 4 at temperature 0, needed 1: all would be equal"));
        check("eval.pass_at=[2]", Some("`eval.pass_at` has 2, needed 1 to the 1 attempts"));
        check("data.file=x", Some("`[data]` would be ignored by `grpo`, which learns from its own episodes"));
        check("algorithm.kind=sft", Some("`sft` learns from given answers, needed `[data]`, got none"));
    }

    #[test]
    fn a_replay_that_could_not_be_is_refused_by_name() {
        check("max_lag=3", None);
        check("max_lag=-1", Some("`max_lag = -1`: invalid value: integer `-1`, expected u64"));
        check("control.hold_lag=true", Some("`control.hold_lag` would be ignored: `max_lag` is 0"));
        check("replay={ own_steps = 2 }", None);
        check("replay={ from = ['r'], share = 1.0 }", None);
        check("replay={}", Some("`[replay]` replays nothing, needed `from` or `own_steps`"));
        check(
            "replay={ own_steps = 2, share = 1.5 }",
            Some("`replay.share` is 1.5, needed a number above 0 and at most 1"),
        );
        check(
            "replay={ own_steps = 2, share = 0.04 }",
            Some("`replay.share` is 0.04, needed at least half a group of the 12 of a step"),
        );
        check(
            "replay={ own_steps = 2, share = 0.99 }",
            Some("`replay.share` is 0.99, needed less: `own_steps` needs steps with groups of their own"),
        );
    }

    #[test]
    fn b4_a_group_of_one_is_refused_with_a_group_relative_algorithm() {
        let mut file = RunFile::parse(SMALL).unwrap();
        file.set("batch.group_size=1").unwrap();
        let error = file.resolve().unwrap_err().to_string();
        assert!(error.contains("grpo") && error.contains("reinforce"), "{error}");
    }

    #[test]
    fn what_is_saved_resolves_to_itself() {
        let mut file = RunFile::parse(SMALL).unwrap();
        file.set("env.0.n_train=50").unwrap();
        file.set("optimiser.learning_rate=1e-4").unwrap();
        let settings = file.resolve().unwrap();
        let text = settings.to_toml().unwrap();
        assert_eq!(RunFile::parse(&text).unwrap().resolve().unwrap(), settings, "{text}");
    }

    #[test]
    fn a_change_that_reaches_nothing_is_refused() {
        let mut file = RunFile::parse(SMALL).unwrap();
        for (change, want) in [
            ("steps", "cannot set `steps`: needed `key=value`"),
            ("env.3.seed=1", "cannot set `env.3.seed=1`: `env` has 1 entries, needed a number below that"),
            ("steps.x=1", "cannot set `steps.x=1`: `steps` is a value, needed settings"),
            ("=1", "cannot set `=1`: the key is empty"),
        ] {
            assert_eq!(file.set(change).unwrap_err().to_string(), want);
        }
    }
}
