//! The training side of the engine.

use model::block::Grads;
use model::head::Tempering;
use model::packed::{Derivatives, Given, Pack, Sequence, Trainer, Values};
use policy::{
    AdamStep, Batch, GroupLossFn, Keep, Learner, PolicyError, Slot, TokenValues, TrainSequence, UpdateReport,
};

use crate::engine::{Engine, Reference, Trainable};
use crate::optimiser;

impl Learner for Engine {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        self.check_batch(batch)?;
        let (given, trainer, settings, _) = self.training(batch);
        forward(trainer, &given, batch, settings)
    }

    fn forward_backward(&mut self, batch: &Batch<'_>, loss: &mut GroupLossFn<'_>) -> Result<(), PolicyError> {
        self.check_batch(batch)?;
        if self.moments.is_none() {
            let (grads, moments) = optimiser::start(&self.config, &self.trainable, self.adapter.as_ref())
                .ok_or_else(|| PolicyError::Unsupported("this policy is frozen and cannot be trained".to_owned()))?;
            (self.grads, self.moments) = (grads, Some(moments));
        }
        let (given, trainer, settings, grads) = self.training(batch);
        let result = accumulate(trainer, &given, batch, settings, grads, loss);
        if result.is_err() {
            optimiser::clear(grads);
        }
        result
    }

    fn update(&mut self, step: &AdamStep) -> Result<UpdateReport, PolicyError> {
        let moments = self.moments.as_mut();
        let moments =
            moments.ok_or_else(|| PolicyError::Unsupported("there is no gradient to move along".to_owned()))?;
        let weights = (&mut self.params, self.adapter.as_mut());
        let report = optimiser::update(&self.cpu, weights, &mut self.grads, moments, step, self.n_updates + 1)?;
        self.n_updates = report.n_updates;
        if matches!(self.trainable, Trainable::Full {}) {
            self.refresh();
        }
        Ok(report)
    }

    fn keep(&mut self, slot: Slot, how: Keep) -> Result<(), PolicyError> {
        if how != Keep::Now {
            return Err(PolicyError::Unsupported("weights kept beside the policy cannot be blended".to_owned()));
        }
        let kept = match self.trainable {
            Trainable::Full {} => Reference::Full(Box::new((self.params.clone(), self.half.clone()))),
            Trainable::Lora { .. } | Trainable::Frozen {} => Reference::Adapter(self.adapter.clone()),
        };
        self.kept.insert(slot, kept);
        Ok(())
    }

    fn forward_kept(&mut self, slot: Slot, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        self.check_batch(batch)?;
        let (params, half, adapter) = match self.kept.get(&slot) {
            None => return Err(PolicyError::Unsupported(format!("no weights were kept as `{slot:?}`"))),
            Some(Reference::Full(kept)) => (&kept.0, kept.1.as_ref(), None),
            Some(Reference::Adapter(adapter)) => (&self.params, self.half.as_ref(), adapter.as_ref()),
        };
        let given = Given { cpu: &self.cpu, config: &self.config, params, half, adapter, tempering: tempering(batch) };
        let trainer = self.trainer.get_or_insert_with(|| Trainer::new(&self.config, self.settings.recompute));
        forward(trainer, &given, batch, &self.settings)
    }
}

impl Engine {
    /// What a pass over the weights that learn works with, and where it leaves gradients.
    fn training<'a>(
        &'a mut self,
        batch: &Batch<'a>,
    ) -> (Given<'a>, &'a mut Trainer, &'a crate::EngineSettings, &'a mut Grads) {
        let Engine { cpu, config, params, half, adapter, trainer, settings, grads, .. } = self;
        let trainer = trainer.get_or_insert_with(|| Trainer::new(config, settings.recompute));
        let (half, adapter) = (half.as_ref(), adapter.as_ref());
        (Given { cpu, config, params, half, adapter, tempering: tempering(batch) }, trainer, settings, grads)
    }

    fn check_batch(&self, batch: &Batch<'_>) -> Result<(), PolicyError> {
        let t = batch.temperature;
        if !(1e-3..=100.0).contains(&t) {
            let needed = "a number from 0.001 to 100, since a greedy policy has no gradient";
            return Err(policy::SamplingError::Range { key: "temperature", got: f64::from(t), needed }.into());
        }
        for s in batch.groups.iter().flatten() {
            if s.tokens.is_empty() || s.trained.first() == Some(&true) {
                return Err(PolicyError::NoPrompt);
            }
            if s.trained.len() != s.tokens.len() {
                let (got, needed) = (s.trained.len(), s.tokens.len());
                return Err(PolicyError::Unsupported(format!("`trained` has {got} entries for {needed} tokens")));
            }
            if s.tokens.len() > self.config.context {
                return Err(PolicyError::Context { needed: s.tokens.len(), context: self.config.context });
            }
            let vocabulary = self.config.vocabulary;
            if let Some(token) = s.tokens.iter().find(|t| **t as usize >= vocabulary) {
                return Err(PolicyError::Vocabulary { token: *token, vocabulary });
            }
            let banned = s.tokens.iter().zip(s.trained).find(|(t, trained)| **trained && batch.banned.contains(t));
            if let Some((token, _)) = banned {
                return Err(PolicyError::Unsupported(format!("token {token} is trained but banned from the policy")));
            }
        }
        Ok(())
    }
}

fn tempering<'a>(batch: &Batch<'a>) -> Tempering<'a> {
    Tempering { inverse: 1.0 / batch.temperature, banned: batch.banned }
}

/// The groups of a batch in micro-batches of at most the set number of rows, never cut inside a group.
fn micro_batches(batch: &Batch<'_>, settings: &crate::EngineSettings) -> Vec<(std::ops::Range<usize>, Pack)> {
    let mut all: Vec<(std::ops::Range<usize>, Pack)> = Vec::new();
    for (index, group) in batch.groups.iter().enumerate() {
        let sequence = |s: &TrainSequence<'_>| -> (Vec<u32>, Vec<bool>) { (s.tokens.to_vec(), s.trained.to_vec()) };
        let owned: Vec<_> = group.iter().map(sequence).collect();
        let group: Vec<Sequence<'_>> = owned.iter().map(|(tokens, trained)| Sequence { tokens, trained }).collect();
        let rows = Pack::rows_of(&group, settings.share_prompts);
        let fits = |(_, pack): &&mut (_, Pack)| pack.n_rows() + rows <= settings.micro_batch_rows;
        match all.last_mut().filter(fits) {
            Some((range, pack)) => {
                range.end = index + 1;
                pack.push(&group, settings.share_prompts);
            }
            None => {
                let mut pack = Pack::default();
                pack.push(&group, settings.share_prompts);
                all.push((index..index + 1, pack));
            }
        }
    }
    all
}

fn forward(
    trainer: &mut Trainer,
    given: &Given<'_>,
    batch: &Batch<'_>,
    settings: &crate::EngineSettings,
) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
    let mut all = Vec::with_capacity(batch.groups.len());
    for (range, pack) in micro_batches(batch, settings) {
        for (index, values) in range.zip(trainer.forward(given, &pack)) {
            all.push(named(index, &values)?);
        }
    }
    Ok(all)
}

fn accumulate(
    trainer: &mut Trainer,
    given: &Given<'_>,
    batch: &Batch<'_>,
    settings: &crate::EngineSettings,
    grads: &mut Grads,
    loss: &mut GroupLossFn<'_>,
) -> Result<(), PolicyError> {
    for (range, pack) in micro_batches(batch, settings) {
        let mut failure = None;
        trainer.forward_backward(given, &pack, grads, &mut |i, values| {
            let index = range.start + i;
            let answer =
                if failure.is_some() { Ok(Vec::new()) } else { named(index, values).and_then(|v| loss(index, &v)) };
            let answer = answer.unwrap_or_else(|error| {
                failure = Some(error);
                Vec::new()
            });
            // A group without an answer is left at zero: the error is returned, and what was summed is cleared.
            let mut derivatives: Derivatives = answer.into_iter().map(|g| (g.dlogp, g.dentropy)).collect();
            derivatives.resize_with(values.len(), || (Vec::new(), Vec::new()));
            for (d, v) in derivatives.iter_mut().zip(values) {
                d.0.resize(v.0.len(), 0.0);
            }
            derivatives
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    Ok(())
}

fn named(group: usize, values: &[Values]) -> Result<Vec<TokenValues>, PolicyError> {
    let mut all = Vec::with_capacity(values.len());
    for (index, (logp, entropy)) in values.iter().enumerate() {
        if let Some(at) = logp.iter().chain(entropy).position(|v| !v.is_finite()) {
            let place = format!("group {group}, sequence {index}, token {}", at % logp.len());
            return Err(PolicyError::NotFinite { what: "a log-probability", place });
        }
        all.push(TokenValues::of(logp.clone(), entropy.clone()));
    }
    Ok(all)
}
