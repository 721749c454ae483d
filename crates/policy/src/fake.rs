//! A policy without weights: it says what it is told to, with a log-probability that a test can predict.

use std::collections::BTreeMap;
use std::path::Path;

use episode::{StopReason, Token};
use loss::Top;

use crate::{
    AdamStep, Batch, Checkpoint, GroupLossFn, Job, Jobs, Keep, Learner, Policy, PolicyError, Sampled, Sampler, Slot,
    TokenGrads, TokenValues, TrainSequence, UpdateReport, ValueAt, Want,
};

/// What a [`Scripted`] policy says to a prompt and the random stream's key.
pub type Script = Box<dyn FnMut(&[Token], u64) -> Vec<Token>>;

/// A scripted policy. Every token that was said has log-probability [`Scripted::LOGP`] and entropy [`Scripted::ENTROPY`];
/// a token named in its place has [`Scripted::logp_of`], so that the most likely are the lowest ids; the value after n
/// tokens is [`Scripted::value_after`]. Training records the derivatives instead of moving weights; what a slot keeps is
/// the drift.
pub struct Scripted {
    script: Script,
    version: u32,
    n_updates: u64,
    /// The drift kept in each slot.
    pub kept: BTreeMap<Slot, f32>,
    /// What every pass was asked for beside log-probabilities and entropies.
    pub wants: Vec<Want>,
    /// Derivatives received since the last update: by group, by sequence.
    pub received: Vec<Vec<TokenGrads>>,
    /// The steps of every update made.
    pub updates: Vec<AdamStep>,
    /// Added to every log-probability in training, as if the policy had moved, or the engines disagreed, since sampling.
    pub drift: f32,
    /// Which token of which sequence of which group has a log-probability of NaN in training, as if weights had broken.
    pub broken: Option<(usize, usize, usize)>,
}

impl Scripted {
    /// The log-probability of everything it says.
    pub const LOGP: f32 = -0.5;
    /// The entropy wherever it says something.
    pub const ENTROPY: f32 = 1.0;
    const CONTEXT: usize = 4096;

    /// A policy that follows a script.
    pub fn new(script: Script) -> Self {
        Scripted {
            script,
            version: 0,
            n_updates: 0,
            kept: BTreeMap::new(),
            wants: Vec::new(),
            received: Vec::new(),
            updates: Vec::new(),
            drift: 0.0,
            broken: None,
        }
    }

    /// The log-probability of a token that is named in the place of another.
    pub fn logp_of(token: Token) -> f32 {
        -1.0 - token as f32 / 8.0
    }

    /// The value of having read `n` tokens.
    pub fn value_after(n: usize) -> f32 {
        n as f32 / 16.0
    }

    fn say(&mut self, job: &Job) -> Sampled {
        let mut tokens = (self.script)(&job.prompt, job.stream.key());
        let mut stop = StopReason::Length;
        if let Some(end) = tokens.iter().position(|t| job.sampling.stop_tokens.contains(t)) {
            tokens.truncate(end + 1);
            stop = StopReason::Eos;
        }
        if tokens.len() > job.sampling.max_tokens {
            tokens.truncate(job.sampling.max_tokens);
            stop = StopReason::Length;
        }
        let logp = vec![Self::LOGP; tokens.len()];
        Sampled { id: job.id, logp_t1: logp.clone(), logp, tokens, stop, version: self.version }
    }
}

impl Sampler for Scripted {
    fn sample(&mut self, jobs: &mut dyn Jobs) -> Result<(), PolicyError> {
        while let Some(job) = jobs.next() {
            if jobs.cancelled() {
                let stop = StopReason::Cancelled;
                let none = Vec::new();
                jobs.done(Sampled {
                    id: job.id,
                    tokens: Vec::new(),
                    logp: none.clone(),
                    logp_t1: none,
                    stop,
                    version: self.version,
                });
                continue;
            }
            let said = self.say(&job);
            jobs.progress(said.tokens.len());
            jobs.done(said);
        }
        Ok(())
    }

    fn context(&self) -> usize {
        Self::CONTEXT
    }
}

impl Scripted {
    fn pass(&mut self, batch: &Batch<'_>, drift: f32) -> Vec<Vec<TokenValues>> {
        self.wants.push(batch.want);
        let think = |s: &TrainSequence<'_>| think(s, batch, drift);
        let groups = batch.groups.iter();
        let mut all: Vec<Vec<TokenValues>> = groups.map(|group| group.iter().map(think).collect()).collect();
        if let Some((group, sequence, token)) = self.broken {
            all[group][sequence].logp[token] = f32::NAN;
        }
        all
    }

    fn kept(&self, slot: Slot) -> Result<f32, PolicyError> {
        let empty = || PolicyError::Unsupported(format!("nothing was kept as `{}`", name(slot)));
        self.kept.get(&slot).copied().ok_or_else(empty)
    }
}

/// What the policy thinks of a sequence when it has drifted this far.
fn think(s: &TrainSequence<'_>, batch: &Batch<'_>, drift: f32) -> TokenValues {
    let each = |value: &dyn Fn(usize) -> f32| -> Vec<f32> {
        s.trained.iter().enumerate().map(|(t, trained)| if *trained { value(t) } else { 0.0 }).collect()
    };
    let value = match batch.want.value {
        ValueAt::Nowhere => Vec::new(),
        ValueAt::Before => each(&Scripted::value_after),
        ValueAt::After => each(&|t| Scripted::value_after(t + 1)),
    };
    let likely = || -> Vec<Token> {
        let possible = (0..).filter(|token| !batch.banned.contains(token));
        possible.take(batch.want.top_k).collect()
    };
    let (k, ids) = match s.top {
        Some(top) => (top.k, top.ids.clone()),
        None => (batch.want.top_k, likely().repeat(s.tokens.len())),
    };
    let trained = |i: usize| s.trained.get(i / k).copied().unwrap_or(false);
    let logp = |(i, token): (usize, &Token)| if trained(i) { Scripted::logp_of(*token) + drift } else { 0.0 };
    let top = (k > 0).then(|| Top { k, logp: ids.iter().enumerate().map(logp).collect(), ids });
    let logp = each(&|_| Scripted::LOGP + drift);
    TokenValues { value, top, ..TokenValues::of(logp, each(&|_| Scripted::ENTROPY)) }
}

fn name(slot: Slot) -> &'static str {
    match slot {
        Slot::Start => "start",
        Slot::Reference => "reference",
        Slot::Teacher => "teacher",
    }
}

impl Checkpoint for Scripted {
    fn save(&self, folder: &Path) -> Result<(), PolicyError> {
        let path = folder.join("scripted.txt");
        let kept = self.kept.iter().map(|(slot, drift)| format!("{} {drift}\n", name(*slot)));
        let text = format!("{}\n{}", self.n_updates, kept.collect::<String>());
        std::fs::write(&path, text).map_err(|source| PolicyError::Io { path, source })
    }

    fn load(&mut self, folder: &Path) -> Result<(), PolicyError> {
        let path = folder.join("scripted.txt");
        let text = std::fs::read_to_string(&path).map_err(|source| PolicyError::Io { path: path.clone(), source })?;
        let bad = |line: &str| {
            let reason = format!("needed a number of updates, then slots with their drift, got `{line}`");
            PolicyError::Checkpoint { path: path.clone(), reason }
        };
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let n_updates = first.parse().map_err(|_| bad(first))?;
        let mut kept = BTreeMap::new();
        for line in lines {
            let slot =
                |text: &str| [Slot::Start, Slot::Reference, Slot::Teacher].into_iter().find(|s| name(*s) == text);
            let (slot, drift) =
                line.split_once(' ').and_then(|(s, d)| Some((slot(s)?, d.parse().ok()?))).ok_or_else(|| bad(line))?;
            kept.insert(slot, drift);
        }
        (self.n_updates, self.kept) = (n_updates, kept);
        Ok(())
    }
}

impl Learner for Scripted {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        Ok(self.pass(batch, self.drift))
    }

    fn forward_backward(&mut self, batch: &Batch<'_>, loss: &mut GroupLossFn<'_>) -> Result<(), PolicyError> {
        for (index, values) in self.pass(batch, self.drift).iter().enumerate() {
            match loss(index, values) {
                Ok(grads) => self.received.push(grads),
                Err(error) => {
                    self.received.clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, slot: Slot, how: Keep) -> Result<(), PolicyError> {
        let drift = match how {
            Keep::Now => self.drift,
            Keep::Blend(rate) => {
                let kept = self.kept(slot)?;
                kept + rate as f32 * (self.drift - kept)
            }
        };
        self.kept.insert(slot, drift);
        Ok(())
    }

    fn forward_kept(&mut self, slot: Slot, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        let drift = self.kept(slot)?;
        Ok(self.pass(batch, drift))
    }

    fn update(&mut self, step: &AdamStep) -> Result<UpdateReport, PolicyError> {
        let all = self.received.drain(..).flatten();
        let all = all.flat_map(|g| [g.dlogp, g.dentropy, g.dvalue, g.dtop]).flatten();
        let grad_norm = all.map(|d| f64::from(d) * f64::from(d)).sum::<f64>().sqrt();
        self.updates.push(*step);
        self.n_updates += 1;
        let clip_scale = if grad_norm > step.clip_norm { step.clip_norm / grad_norm } else { 1.0 };
        Ok(UpdateReport { grad_norm, clip_scale, n_updates: self.n_updates })
    }
}

impl Policy for Scripted {
    fn sampler(&mut self) -> &mut dyn Sampler {
        self
    }

    fn learner(&mut self) -> &mut dyn Learner {
        self
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn publish(&mut self) -> Result<u32, PolicyError> {
        self.version += 1;
        Ok(self.version)
    }

    fn set_version(&mut self, version: u32) {
        self.version = version;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_and_what_is_kept_come_back_from_a_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let mut policy = Scripted::new(Box::new(|_, _| vec![1]));
        policy.drift = -0.1;
        policy.keep(Slot::Reference, Keep::Now).unwrap();
        (policy.n_updates, policy.drift) = (3, 0.7);
        policy.keep(Slot::Teacher, Keep::Now).unwrap();
        policy.save(folder.path()).unwrap();
        let mut other = Scripted::new(Box::new(|_, _| vec![1]));
        other.load(folder.path()).unwrap();
        assert_eq!((other.n_updates, &other.kept), (3, &policy.kept));
        for bad in ["x", "3\nstart", "3\nelsewhere 0.5", "3\nstart half"] {
            std::fs::write(folder.path().join("scripted.txt"), bad).unwrap();
            assert!(matches!(other.load(folder.path()), Err(PolicyError::Checkpoint { .. })), "{bad}");
            assert_eq!((other.n_updates, &other.kept), (3, &policy.kept), "{bad}");
        }
    }
}
