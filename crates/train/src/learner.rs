//! The training side of the engine.

use model::block::Grads;
use model::packed::{Given, Trainer};
use policy::{AdamStep, Batch, GroupLossFn, Keep, Learner, PolicyError, Slot, TokenValues, UpdateReport};

use crate::batch::{self, derivatives, micro_batches, named, no_derivatives, tempering};
use crate::engine::{Engine, EngineSettings, Trainable};
use crate::kept;
use crate::optimiser::{self, Trained, Weights};

impl Learner for Engine {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        batch::check(&self.config, self.value.is_some(), batch)?;
        let (given, trainer, settings, _) = self.training(batch);
        forward(trainer, &given, batch, settings)
    }

    fn forward_backward(&mut self, batch: &Batch<'_>, loss: &mut GroupLossFn<'_>) -> Result<(), PolicyError> {
        batch::check(&self.config, self.value.is_some(), batch)?;
        if self.moments.is_none() {
            let started = optimiser::start(&self.config, &self.trainable, self.adapter.as_ref(), self.value.is_some());
            let (grads, moments) = started
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
        let (params, adapter, value) = (&mut self.params, self.adapter.as_mut(), self.value.as_mut());
        let trained = Trained { params, adapter, value };
        let report = optimiser::update(&self.cpu, trained, &mut self.grads, moments, step, self.n_updates + 1)?;
        self.n_updates = report.n_updates;
        if matches!(self.trainable, Trainable::Full {}) {
            self.refresh();
        }
        Ok(report)
    }

    fn keep(&mut self, slot: Slot, how: Keep) -> Result<(), PolicyError> {
        self.fill(slot, how)
    }

    fn forward_kept(&mut self, slot: Slot, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError> {
        let kept = self.kept.get(&slot).ok_or_else(|| kept::empty(slot))?;
        batch::check(&self.config, kept.value.is_some(), batch)?;
        let (params, half, adapter) = match &kept.weights {
            Weights::Full(kept) => (&kept.0, kept.1.as_ref(), None),
            Weights::Adapter(adapter) => (&self.params, self.half.as_ref(), adapter.as_ref().as_ref()),
        };
        let (value, tempering) = (kept.value.as_ref(), tempering(batch));
        let given = Given { cpu: &self.cpu, config: &self.config, params, half, adapter, value, tempering };
        let trainer = self.trainer.get_or_insert_with(|| Trainer::new(&self.config, self.settings.recompute));
        forward(trainer, &given, batch, &self.settings)
    }
}

impl Engine {
    /// What a pass over the weights that learn works with, and where it leaves gradients.
    fn training<'a>(
        &'a mut self,
        batch: &Batch<'a>,
    ) -> (Given<'a>, &'a mut Trainer, &'a EngineSettings, &'a mut Grads) {
        let Engine { cpu, config, params, half, adapter, value, trainer, settings, grads, .. } = self;
        let trainer = trainer.get_or_insert_with(|| Trainer::new(config, settings.recompute));
        let (half, adapter, value) = (half.as_ref(), adapter.as_ref(), value.as_ref());
        let given = Given { cpu, config, params, half, adapter, value, tempering: tempering(batch) };
        (given, trainer, settings, grads)
    }
}

fn forward(
    trainer: &mut Trainer,
    given: &Given<'_>,
    batch: &Batch<'_>,
    settings: &EngineSettings,
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
    settings: &EngineSettings,
    grads: &mut Grads,
    loss: &mut GroupLossFn<'_>,
) -> Result<(), PolicyError> {
    // Derivatives are by named tokens, never by those that the pass itself found most likely.
    let by_top = batch.want.top_k == 0;
    for (range, pack) in micro_batches(batch, settings) {
        let mut failure = None;
        trainer.forward_backward(given, &pack, grads, &mut |i, values| {
            let index = range.start + i;
            if failure.is_some() {
                return no_derivatives(values);
            }
            let answer = named(index, values).and_then(|v| loss(index, &v));
            answer.and_then(|answer| derivatives(index, values, answer, by_top)).unwrap_or_else(|error| {
                failure = Some(error);
                no_derivatives(values)
            })
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    Ok(())
}
