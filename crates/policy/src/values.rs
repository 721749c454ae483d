//! What a policy thinks of tokens that were sampled before: for corrections, selections, a KL, a value head's targets and
//! teachers.
//!
//! T tokens · k named tokens a place

use std::borrow::Cow;

use episode::{Episode, Group, Sequence, Token};
use loss::{LossError, Top};

use crate::{Batch, Learner, PolicyError, Slot, TokenValues, TrainSequence, ValueAt, Want};

/// Which weights are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Under {
    /// Those the policy has now: π_old, as a step begins.
    Now,
    /// Those kept in a slot.
    Kept(Slot),
}

/// What is read before the first sampled token, by group, episode and sequence; absent where nothing is asked.
pub type Contexts = Vec<Vec<Vec<Option<Vec<Token>>>>>;

/// What is asked about groups, beside log-probabilities and entropies.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Under which weights.
    pub under: Under,
    /// The value head, and the most likely tokens.
    pub want: Want,
    /// Which groups are asked about, `[G]`; absent for all. The others' answers are empty.
    pub about: Option<&'a [bool]>,
    /// By group, episode and sequence, values whose `top` names the tokens to be told of; not together with
    /// [`Want::top_k`].
    pub named: Option<&'a [Vec<Vec<TokenValues>>]>,
    /// What is read in the place of everything before the first sampled token, such as a teacher's context. Absent
    /// altogether, each sequence is read as it is.
    pub contexts: Option<&'a Contexts>,
}

impl Ask<'_> {
    /// Nothing but log-probabilities and entropies, of every group.
    pub fn plain(under: Under) -> Ask<'static> {
        Ask { under, want: Want::default(), about: None, named: None, contexts: None }
    }
}

/// What the policy, now or as it was kept, thinks of every sampled token.
///
/// - Shapes: by group, episode and sequence; the lists of each as [`TokenValues`] has them for the sequence as it was
///   sampled, whatever was read in the place of its prompt. Zeros in sequences without a sampled token, without a context
///   where there are contexts, and in episodes that were not graded, which are not computed.
/// - Errors: [`PolicyError::NoPrompt`] where nothing precedes the first sampled token; [`PolicyError::Unsupported`] names
///   the sequence where named tokens are missing or have another length.
pub fn values(
    learner: &mut dyn Learner,
    ask: &Ask<'_>,
    groups: &[Group],
    temperature: f32,
    banned: &[Token],
) -> Result<Vec<Vec<Vec<TokenValues>>>, PolicyError> {
    let mut read: Vec<Vec<Reading<'_>>> = Vec::with_capacity(groups.len());
    for (g, group) in groups.iter().enumerate() {
        let mut readings = Vec::new();
        for at in places(ask, g, group) {
            readings.push(Reading::of(ask, groups, at)?);
        }
        read.push(readings);
    }
    // The place of groups without a wanted sequence is kept here, not in what the learner sees.
    let full = read.iter().filter(|group| !group.is_empty());
    let full = full.map(|group| group.iter().map(Reading::train).collect()).collect();
    let batch = Batch { want: ask.want, ..Batch::new(full, temperature, banned) };
    let answers = match ask.under {
        Under::Now => learner.forward(&batch)?,
        Under::Kept(slot) => learner.forward_kept(slot, &batch)?,
    };
    let mut answers = answers.into_iter();
    let mut all = Vec::with_capacity(groups.len());
    for (g, (group, read)) in groups.iter().zip(&read).enumerate() {
        if !about(ask, g) {
            all.push(Vec::new());
            continue;
        }
        let answer = if read.is_empty() { Vec::new() } else { answers.next().unwrap_or_default() };
        if answer.len() != read.len() {
            return Err(PolicyError::Loss { group: g, source: LossError::Missing { list: "logp", sequence: 0 } });
        }
        let mut computed = read.iter().zip(answer).peekable();
        let mut episodes = Vec::with_capacity(group.episodes.len());
        for (e, episode) in group.episodes.iter().enumerate() {
            let mut sequences = Vec::with_capacity(episode.sequences.len());
            for (s, sequence) in episode.sequences.iter().enumerate() {
                sequences.push(match computed.next_if(|(reading, _)| reading.at == (g, e, s)) {
                    Some((reading, values)) => reading.back(values, sequence.len()),
                    None => blank(ask, sequence.len()),
                });
            }
            episodes.push(sequences);
        }
        all.push(episodes);
    }
    Ok(all)
}

fn about(ask: &Ask<'_>, group: usize) -> bool {
    ask.about.is_none_or(|about| about.get(group).copied().unwrap_or(false))
}

/// The sequences of a group that are computed.
fn places(ask: &Ask<'_>, g: usize, group: &Group) -> Vec<(usize, usize, usize)> {
    if !about(ask, g) {
        return Vec::new();
    }
    let wanted = |e: &Episode, s: &Sequence| e.outcome.reward().is_some() && s.n_sampled() > 0;
    let mut all = Vec::new();
    for (e, episode) in group.episodes.iter().enumerate() {
        for (s, sequence) in episode.sequences.iter().enumerate() {
            let has_context = ask.contexts.is_none_or(|all| place(all, (g, e, s)).is_some_and(Option::is_some));
            if wanted(episode, sequence) && has_context {
                all.push((g, e, s));
            }
        }
    }
    all
}

/// The tokens named for a sequence.
fn named(all: &[Vec<Vec<TokenValues>>], at: (usize, usize, usize), len: usize) -> Result<&Top, PolicyError> {
    let what = || format!("for sequence {} of episode {} of group {}", at.2, at.1, at.0);
    let top = place(all, at).and_then(|values| values.top.as_ref());
    let top = top.ok_or_else(|| PolicyError::Unsupported(format!("no tokens are named {}", what())))?;
    match (top.ids.len(), top.k) {
        (got, k) if got != len * k => {
            Err(PolicyError::Unsupported(format!("{got} tokens are named {}, needed {k} for each of {len}", what())))
        }
        _ => Ok(top),
    }
}

fn place<T>(all: &[Vec<Vec<T>>], (g, e, s): (usize, usize, usize)) -> Option<&T> {
    all.get(g)?.get(e)?.get(s)
}

/// One sequence as the learner reads it.
struct Reading<'a> {
    at: (usize, usize, usize),
    tokens: Cow<'a, [Token]>,
    trained: Cow<'a, [bool]>,
    named: Option<Cow<'a, Top>>,
    /// Where its first sampled token stands here, and in the sequence as it was sampled.
    first: (usize, usize),
}

impl<'a> Reading<'a> {
    fn of(ask: &Ask<'a>, groups: &'a [Group], at: (usize, usize, usize)) -> Result<Reading<'a>, PolicyError> {
        let sequence = &groups[at.0].episodes[at.1].sequences[at.2];
        let (tokens, trained) = (sequence.tokens(), sequence.sampled());
        let first = trained.iter().position(|t| *t).unwrap_or(trained.len());
        let context = ask.contexts.and_then(|all| place(all, at)?.as_deref());
        if first == 0 || context.is_some_and(<[Token]>::is_empty) {
            return Err(PolicyError::NoPrompt);
        }
        let named = match ask.named {
            None => None,
            Some(all) => Some(named(all, at, tokens.len())?),
        };
        let Some(context) = context else {
            let named = named.map(Cow::Borrowed);
            return Ok(Reading { at, tokens: tokens.into(), trained: trained.into(), named, first: (first, first) });
        };
        let behind = |top: &Top| {
            let ids = [&vec![0; context.len() * top.k], &top.ids[first * top.k..]].concat();
            Cow::Owned(Top { k: top.k, ids, logp: Vec::new() })
        };
        Ok(Reading {
            at,
            tokens: [context, &tokens[first..]].concat().into(),
            trained: [&vec![false; context.len()], &trained[first..]].concat().into(),
            named: named.map(behind),
            first: (context.len(), first),
        })
    }

    fn train(&self) -> TrainSequence<'_> {
        TrainSequence { tokens: &self.tokens, trained: &self.trained, top: self.named.as_deref() }
    }

    /// What was found, at the places that the tokens had when they were sampled.
    fn back(&self, found: TokenValues, len: usize) -> TokenValues {
        if self.first.0 == self.first.1 {
            return found;
        }
        let list = |list: Vec<f32>| if list.is_empty() { list } else { self.moved(&list, 1, len) };
        let top = |top: Top| {
            let (ids, logp) = (self.moved(&top.ids, top.k, len), self.moved(&top.logp, top.k, len));
            Top { k: top.k, ids, logp }
        };
        TokenValues {
            logp: list(found.logp),
            entropy: list(found.entropy),
            value: list(found.value),
            top: found.top.map(top),
        }
    }

    /// A list of `k` entries a token, moved back.
    fn moved<T: Copy + Default>(&self, list: &[T], k: usize, len: usize) -> Vec<T> {
        let mut out = vec![T::default(); len * k];
        for (out, value) in out.iter_mut().skip(self.first.1 * k).zip(list.iter().skip(self.first.0 * k)) {
            *out = *value;
        }
        out
    }
}

/// What stands for a sequence that was not computed.
fn blank(ask: &Ask<'_>, len: usize) -> TokenValues {
    let k = ask.want.top_k;
    let value = if ask.want.value == ValueAt::Nowhere { Vec::new() } else { vec![0.0; len] };
    let top = (k > 0).then(|| Top { k, ids: vec![0; len * k], logp: vec![0.0; len * k] });
    TokenValues { value, top, ..TokenValues::zeros(len) }
}

#[cfg(test)]
pub(crate) mod tests;
