//! A policy without weights: it says what it is told to, with a log-probability that a test can predict.

use std::path::Path;

use episode::{StopReason, Token};

use crate::{
    AdamStep, Batch, Checkpoint, GroupLossFn, Job, Jobs, Keep, Learner, Policy, PolicyError, Sampled, Sampler, Slot,
    TokenGrads, TokenValues, UpdateReport,
};

/// What a [`Scripted`] policy says to a prompt and the random stream's key.
pub type Script = Box<dyn FnMut(&[Token], u64) -> Vec<Token>>;

/// A scripted policy. Every token has log-probability [`Scripted::LOGP`] and entropy [`Scripted::ENTROPY`]; training
/// records the derivatives instead of moving weights.
pub struct Scripted {
    script: Script,
    version: u32,
    n_updates: u64,
    /// Derivatives received since the last update: by group, by sequence.
    pub received: Vec<Vec<TokenGrads>>,
    /// The steps of every update made.
    pub updates: Vec<AdamStep>,
    /// Added to [`Scripted::LOGP`] in training, as if the policy had moved, or the engines disagreed, since sampling.
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
            received: Vec::new(),
            updates: Vec::new(),
            drift: 0.0,
            broken: None,
        }
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

impl Checkpoint for Scripted {
    fn save(&self, folder: &Path) -> Result<(), PolicyError> {
        let path = folder.join("scripted.txt");
        std::fs::write(&path, self.n_updates.to_string()).map_err(|source| PolicyError::Io { path, source })
    }

    fn load(&mut self, folder: &Path) -> Result<(), PolicyError> {
        let path = folder.join("scripted.txt");
        let text = std::fs::read_to_string(&path).map_err(|source| PolicyError::Io { path: path.clone(), source })?;
        let reason = format!("needed a number of updates, got `{text}`");
        self.n_updates = text.parse().map_err(|_| PolicyError::Checkpoint { path, reason })?;
        Ok(())
    }
}

impl Learner for Scripted {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        let value = |trained: &[bool], v: f32| trained.iter().map(|t| if *t { v } else { 0.0 }).collect();
        let logp = Self::LOGP + self.drift;
        let values =
            |s: &crate::TrainSequence<'_>| TokenValues::of(value(s.trained, logp), value(s.trained, Self::ENTROPY));
        let mut all: Vec<Vec<TokenValues>> =
            batch.groups.iter().map(|group| group.iter().map(values).collect()).collect();
        if let Some((group, sequence, token)) = self.broken {
            all[group][sequence].logp[token] = f32::NAN;
        }
        Ok(all)
    }

    fn forward_backward(&mut self, batch: &Batch<'_>, loss: &mut GroupLossFn<'_>) -> Result<(), PolicyError> {
        for (index, values) in self.forward(batch)?.iter().enumerate() {
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

    fn keep(&mut self, _: Slot, _: Keep) -> Result<(), PolicyError> {
        Ok(())
    }

    fn forward_kept(&mut self, _: Slot, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        self.forward(batch)
    }

    fn update(&mut self, step: &AdamStep) -> Result<UpdateReport, PolicyError> {
        let all = self.received.drain(..).flatten().flat_map(|g| g.dlogp);
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
