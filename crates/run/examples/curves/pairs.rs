//! How a reward model fares: whether it scores the right one of two answers higher, on questions it has not seen.

use std::error::Error;
use std::path::Path;

use episode::Message;
use run::{Chat, Judge, Opened};
use surefoot_run as run;
use tensor::{Cpu, Isa};
use train::{Engine, EngineSettings, Trainable};

use crate::trial::{Point, Tried};

/// A question with a right and a wrong answer.
pub(crate) struct Pair {
    pub(crate) task: String,
    pub(crate) messages: Vec<Message>,
    pub(crate) right: String,
    pub(crate) wrong: String,
}

/// Tries the weights of a checkpoint, with its head where it has one; of two answers with one score each is half right.
pub(crate) fn tried(model: &Path, checkpoint: &Path, pairs: &[Pair]) -> Result<Tried, Box<dyn Error>> {
    let Opened { config, params, tokenizer } = run::open(model)?;
    let chat = Chat::new(tokenizer.clone())?;
    let settings = EngineSettings::default();
    let cpu = Cpu::new(Isa::best(), 1)?;
    let engine = Engine::new(cpu, (config, params), Some(tokenizer), Trainable::Full {}, settings, 0)?;
    let mut engine = engine.with_value_head();
    engine.load_weights(checkpoint)?;
    let mut judge = Judge::new(engine, chat);
    let mut tried = Tried::new();
    for pair in pairs {
        let right = judge.judge(&pair.messages, &pair.right)?.score;
        let wrong = judge.judge(&pair.messages, &pair.wrong)?.score;
        let halves = if right > wrong { 2 } else { u32::from(right == wrong) };
        tried.insert(pair.task.clone(), (halves, 2));
    }
    Ok(tried)
}

/// Puts what was tried in the place of a point's score.
pub(crate) fn score(point: &mut Point, tried: &Tried) {
    let halves: u32 = tried.values().map(|t| t.0).sum();
    let n = tried.len() as u64;
    let interval = eval::wilson(u64::from(halves / 2), n);
    point.accuracy = f64::from(halves) / (2 * n.max(1)) as f64;
    (point.low, point.high) = (interval.low, interval.high);
}
