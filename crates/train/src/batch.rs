//! A batch of the `Learner`'s contract as packs of the model's, and what comes of them back again.

use std::ops::Range;

use loss::Top;
use model::Config;
use model::head::Tempering;
use model::packed::{Derivatives, Layout, Pack, Sequence, ValueAt, Values};
use policy::{Batch, PolicyError, TokenGrads, TokenValues, TrainSequence};

use crate::EngineSettings;

/// Refuses what cannot be computed.
pub(crate) fn check(config: &Config, with_value: bool, batch: &Batch<'_>) -> Result<(), PolicyError> {
    let t = batch.temperature;
    if !(1e-3..=100.0).contains(&t) {
        let needed = "a number from 0.001 to 100, since a greedy policy has no gradient";
        return Err(policy::SamplingError::Range { key: "temperature", got: f64::from(t), needed }.into());
    }
    let refuse = |why: String| Err(PolicyError::Unsupported(why));
    if batch.want.value != policy::ValueAt::Nowhere && !with_value {
        return refuse("values are asked of a policy without a value head".to_owned());
    }
    let mut banned = vec![false; config.vocabulary];
    for token in batch.banned {
        if let Some(banned) = banned.get_mut(*token as usize) {
            *banned = true;
        }
    }
    let (k, n_possible) = (batch.want.top_k, banned.iter().filter(|b| !**b).count());
    if k > n_possible {
        return refuse(format!("the {k} most likely tokens are asked of a policy that has {n_possible}"));
    }
    batch.groups.iter().flatten().try_for_each(|s| check_sequence(config, &banned, k, s))
}

fn check_sequence(config: &Config, banned: &[bool], top_k: usize, s: &TrainSequence<'_>) -> Result<(), PolicyError> {
    let refuse = |why: String| Err(PolicyError::Unsupported(why));
    if s.tokens.is_empty() || s.trained.first() == Some(&true) {
        return Err(PolicyError::NoPrompt);
    }
    if s.trained.len() != s.tokens.len() {
        let (got, needed) = (s.trained.len(), s.tokens.len());
        return refuse(format!("`trained` has {got} entries for {needed} tokens"));
    }
    if s.tokens.len() > config.context {
        return Err(PolicyError::Context { needed: s.tokens.len(), context: config.context });
    }
    let vocabulary = config.vocabulary;
    let known = |token: u32| match banned.get(token as usize) {
        Some(banned) => Ok(*banned),
        None => Err(PolicyError::Vocabulary { token, vocabulary }),
    };
    for (token, trained) in s.tokens.iter().zip(s.trained) {
        if known(*token)? && *trained {
            return refuse(format!("token {token} is trained but banned from the policy"));
        }
    }
    let Some(top) = s.top else { return Ok(()) };
    if top_k > 0 {
        return refuse("tokens are named for a sequence in a batch that asks for the most likely ones".to_owned());
    }
    let (got, needed) = (top.ids.len(), s.tokens.len() * top.k);
    if top.k == 0 || got != needed {
        return refuse(format!("`top` has {got} tokens, needed {} for each of {}", top.k.max(1), s.tokens.len()));
    }
    for ids in top.ids.chunks(top.k).zip(s.trained).filter(|(_, trained)| **trained).map(|(ids, _)| ids) {
        for token in ids {
            if known(*token)? {
                return refuse(format!("token {token} is named but banned from the policy"));
            }
        }
    }
    Ok(())
}

pub(crate) fn tempering<'a>(batch: &Batch<'a>) -> Tempering<'a> {
    Tempering { inverse: 1.0 / batch.temperature, banned: batch.banned }
}

fn sequence<'a>(s: &TrainSequence<'a>) -> Sequence<'a> {
    let top = s.top.map(|top| (top.k, top.ids.as_slice()));
    Sequence { tokens: s.tokens, trained: s.trained, top }
}

/// The groups of a batch in micro-batches of at most the set number of rows, never cut inside a group.
pub(crate) fn micro_batches(batch: &Batch<'_>, settings: &EngineSettings) -> Vec<(Range<usize>, Pack)> {
    let value = match batch.want.value {
        policy::ValueAt::Nowhere => ValueAt::Nowhere,
        policy::ValueAt::Before => ValueAt::Before,
        policy::ValueAt::After => ValueAt::After,
    };
    let layout = Layout { share: settings.share_prompts, value, top_k: batch.want.top_k };
    let mut all: Vec<(Range<usize>, Pack)> = Vec::new();
    for (index, group) in batch.groups.iter().enumerate() {
        let group: Vec<Sequence<'_>> = group.iter().map(sequence).collect();
        let rows = Pack::rows_of(&group, &layout);
        let fits = |(_, pack): &&mut (_, Pack)| pack.n_rows() + rows <= settings.micro_batch_rows;
        match all.last_mut().filter(fits) {
            Some((range, pack)) => {
                range.end = index + 1;
                pack.push(&group);
            }
            None => {
                let mut pack = Pack::new(layout);
                pack.push(&group);
                all.push((index..index + 1, pack));
            }
        }
    }
    all
}

/// A group's values under the contract's names.
///
/// - Errors: one that is not finite, with its place.
pub(crate) fn named(group: usize, values: &[Values]) -> Result<Vec<TokenValues>, PolicyError> {
    let mut all = Vec::with_capacity(values.len());
    for (index, v) in values.iter().enumerate() {
        let top = v.top.as_ref().map(|top| Top { k: top.k, ids: top.ids.clone(), logp: top.logp.clone() });
        let (k, top_logp) = top.as_ref().map_or((1, &[][..]), |top| (top.k, &top.logp));
        for (what, list, each) in [
            ("a log-probability", v.logp.as_slice(), 1),
            ("a log-probability", &v.entropy, 1),
            ("a value", &v.value, 1),
            ("a log-probability", top_logp, k),
        ] {
            if let Some(at) = list.iter().position(|v| !v.is_finite()) {
                let place = format!("group {group}, sequence {index}, token {}", at / each);
                return Err(PolicyError::NotFinite { what, place });
            }
        }
        all.push(TokenValues { logp: v.logp.clone(), entropy: v.entropy.clone(), value: v.value.clone(), top });
    }
    Ok(all)
}

/// A group's derivatives as the model takes them.
///
/// - Errors: a list of another length than what it is by.
pub(crate) fn derivatives(
    group: usize,
    values: &[Values],
    grads: Vec<TokenGrads>,
    named: bool,
) -> Result<Vec<Derivatives>, PolicyError> {
    if grads.len() != values.len() {
        let (got, needed) = (grads.len(), values.len());
        return Err(PolicyError::Unsupported(format!("group {group} has {got} derivatives for {needed} sequences")));
    }
    for (index, (grads, values)) in grads.iter().zip(values).enumerate() {
        let n_top = values.top.as_ref().filter(|_| named).map_or(0, |top| top.ids.len());
        for (list, got, needed, optional) in [
            ("dlogp", grads.dlogp.len(), values.logp.len(), false),
            ("dentropy", grads.dentropy.len(), values.entropy.len(), true),
            ("dvalue", grads.dvalue.len(), values.value.len(), true),
            ("dtop", grads.dtop.len(), n_top, true),
        ] {
            if got != needed && !(optional && got == 0) {
                let place = format!("group {group}, sequence {index}");
                return Err(PolicyError::Unsupported(format!(
                    "`{list}` of {place} has {got} entries, needed {needed}"
                )));
            }
        }
    }
    let one = |g: TokenGrads| Derivatives { logp: g.dlogp, entropy: g.dentropy, value: g.dvalue, top: g.dtop };
    Ok(grads.into_iter().map(one).collect())
}

/// What stands for a group without an answer: the error is returned, and what was summed is cleared.
pub(crate) fn no_derivatives(values: &[Values]) -> Vec<Derivatives> {
    let one = |v: &Values| Derivatives { logp: vec![0.0; v.logp.len()], ..Derivatives::default() };
    values.iter().map(one).collect()
}
