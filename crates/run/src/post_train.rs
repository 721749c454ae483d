//! The one loop. It collects episodes, asks the algorithm what they teach, moves the policy, and records what happened;
//! it knows neither how episodes come about nor how an algorithm thinks.

use std::sync::atomic::{AtomicBool, Ordering};

use algo::Signals;
use episode::{Group, Task};
use policy::{Policy, UpdateBatch, UpdateOutcome, update_batch};

use crate::fulfil::{Again, How};
use crate::kept;
use crate::record::StepRecord;
use crate::source::Source;
use crate::{Advice, Progress, Recorder, RunError, Settings, State};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All steps are done.
    Finished,
    /// Evaluations stopped getting better.
    Early,
}

/// Trains a policy from where `state` says it is.
///
/// - Holds: everything recorded follows from settings, seed and weights; stopping after any step and going on from its
///   checkpoint gives the same bits.
/// - Errors: [`RunError::Interrupted`] when `cancel` was raised; then the last finished step has its checkpoint.
pub fn post_train(
    policy: &mut dyn Policy,
    settings: &Settings,
    source: &mut dyn Source,
    advice: &mut Advice,
    recorder: &mut Recorder,
    state: &mut State,
    progress: &mut dyn Progress,
    cancel: &AtomicBool,
) -> Result<Ended, RunError> {
    recorder.before(policy, state, progress, cancel)?;
    while state.step < settings.steps {
        if cancel.load(Ordering::Relaxed) {
            recorder.checkpoint(policy, state)?;
            return Err(RunError::Interrupted);
        }
        let step = state.step + 1;
        let timer = recorder.timer();
        let collected = source.collect(policy, settings, state, progress, cancel);
        if matches!(collected, Err(RunError::Interrupted)) {
            recorder.checkpoint(policy, state)?;
        }
        let mut collected = collected?;
        let timer = timer.collected();
        let mut again = |policy: &mut dyn Policy, round: u64, tasks: &[(Task, usize)]| {
            source.attempt(policy, (step, round), tasks, progress, cancel)
        };
        let learned = learn(policy, settings, advice, (&mut collected.groups, &mut again), state, step);
        if matches!(learned, Err(RunError::Interrupted)) {
            recorder.checkpoint(policy, state)?;
        }
        let (signals, outcomes, learning_rate) = learned?;
        let record = StepRecord {
            step,
            collected: &collected,
            signals: &signals,
            outcomes: &outcomes,
            learning_rate,
            banned: &state.banned,
            timer,
        };
        recorder.step(policy, settings, record, progress)?;
        let published = policy.publish().and_then(|_| kept::follow(policy.learner(), settings, step));
        published.map_err(|source| RunError::Policy { step, source })?;
        state.advance(step, collected, &outcomes);
        if state.idle >= settings.max_idle_steps {
            let why = signals.dropped.first().map_or("no group carried a signal".to_owned(), |d| d.why.to_string());
            return Err(RunError::Idle { n: state.idle, step, why });
        }
        let early = recorder.after(policy, settings, state, progress, cancel)?;
        if early {
            return Ok(Ended::Early);
        }
    }
    Ok(Ended::Finished)
}

/// Turns a step's groups into updates.
fn learn(
    policy: &mut dyn Policy,
    settings: &Settings,
    advice: &mut Advice,
    (groups, again): (&mut Vec<Group>, &mut Again<'_>),
    state: &State,
    step: u64,
) -> Result<(Signals, Vec<UpdateOutcome>, f64), RunError> {
    let algorithm = settings.algorithm.algorithm();
    let failed = |source| RunError::Policy { step, source };
    let how = How { algorithm, temperature: settings.sampling.temperature, banned: &state.banned, step };
    let answers = advice.fulfil(policy, how, groups, again)?;
    let signals = algorithm.signals(groups, &answers).map_err(|source| RunError::Algo { step, source })?;
    let (mut outcomes, mut learning_rate) = (Vec::new(), 0.0);
    let batches = signals.plan.batches(groups.len());
    let planned = settings.steps * batches.len().max(1) as u64;
    for range in batches {
        let batch = UpdateBatch {
            groups: signals.batch(groups, range),
            temperature: settings.sampling.temperature,
            banned: &state.banned,
            keep_tokens: false,
        };
        let done = state.n_updates + outcomes.iter().filter(|o: &&UpdateOutcome| o.report.is_some()).count() as u64;
        let adam = settings.optimiser.step(done, planned);
        learning_rate = adam.learning_rate;
        outcomes.push(update_batch(policy.learner(), &batch, &signals.loss, Some(&adam)).map_err(failed)?);
    }
    Ok((signals, outcomes, learning_rate))
}
