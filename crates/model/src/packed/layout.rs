//! Where the tokens of a training pass lie: groups of sequences as rows, a group's common start there once.

use std::collections::BTreeMap;
use std::ops::Range;

use episode::Token;
use tensor::attention::packed::Segment;

/// One sequence to train on.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Token ids, `[T]`.
    pub tokens: &'a [Token],
    /// Which tokens are trained, `[T]`; never the first.
    pub trained: &'a [bool],
    /// Tokens whose log-probabilities are wanted in the place of each trained one: how many a token, and their ids,
    /// `[T · k]`; absent where [`Layout::top_k`] asks for the most likely ones.
    pub top: Option<(usize, &'a [Token])>,
}

impl<'a> Sequence<'a> {
    /// A sequence of which only its own tokens are asked.
    pub fn new(tokens: &'a [Token], trained: &'a [bool]) -> Self {
        Sequence { tokens, trained, top: None }
    }
}

/// Where the value head is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ValueAt {
    /// Nowhere.
    #[default]
    Nowhere,
    /// At the state that predicts a trained token.
    Before,
    /// At the state that has read a trained token.
    After,
}

/// How sequences are laid out, and what is asked of them beside log-probabilities and entropies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    /// Lay out a group's common start once.
    pub share: bool,
    /// Where the value head is asked.
    pub value: ValueAt,
    /// How many of the most likely tokens are named in the place of each trained one; 0 for none.
    pub top_k: usize,
}

/// One group's place in the pack.
#[derive(Debug)]
pub(super) struct Group {
    /// Its rows among those that the heads are asked about.
    pub(super) asked: Range<usize>,
    /// Its sequences.
    pub(super) sequences: Vec<Room>,
}

/// The room that a sequence's values take.
#[derive(Debug)]
pub(super) struct Room {
    /// Tokens.
    pub(super) len: usize,
    /// The tokens named in the place of each of them, `[T · k]`.
    pub(super) top: Option<(usize, Vec<Token>)>,
}

/// A row that the heads are asked about.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Which row of the pack.
    pub(super) row: usize,
    /// The (sequence, position) it predicts; several where sequences share it, none where only the value is asked.
    pub(super) places: Vec<(usize, usize)>,
    /// The (sequence, position) whose value it gives.
    pub(super) values: Vec<(usize, usize)>,
    /// The tokens whose log-probabilities are wanted: those at its places, then those named for each place.
    pub(super) targets: Vec<Token>,
}

/// Groups of sequences laid out as rows: each group's common start, then each sequence's rest.
#[derive(Debug, Default)]
pub struct Pack {
    pub(super) layout: Layout,
    pub(super) tokens: Vec<Token>,
    pub(super) positions: Vec<usize>,
    pub(super) groups: Vec<Group>,
    pub(super) segments: Vec<Vec<Segment>>,
    /// Group by group, within a group by row.
    pub(super) asked: Vec<Asked>,
}

impl Pack {
    /// An empty pack.
    pub fn new(layout: Layout) -> Pack {
        Pack { layout, ..Pack::default() }
    }

    /// Rows a group takes.
    pub fn rows_of(group: &[Sequence<'_>], layout: &Layout) -> usize {
        let common = common_start(group, layout);
        common + group.iter().map(|s| last_row(s, layout.value).saturating_sub(common)).sum::<usize>()
    }

    /// Adds a group.
    pub fn push(&mut self, group: &[Sequence<'_>]) {
        let common = common_start(group, &self.layout);
        let mut segments = Vec::new();
        let mut rows: BTreeMap<usize, Asked> = BTreeMap::new();
        let start = self.tokens.len();
        if common > 0 {
            segments.push(Segment { first: start, len: common, parent: None });
            self.lay(&group[0].tokens[..common], 0);
        }
        for (index, sequence) in group.iter().enumerate() {
            let end = last_row(sequence, self.layout.value);
            let first = self.tokens.len();
            if end > common {
                segments.push(Segment { first, len: end - common, parent: (common > 0).then_some(0) });
                self.lay(&sequence.tokens[common..end], common);
            }
            let row = |at: usize| if at < common { start + at } else { first + at - common };
            for position in (1..sequence.tokens.len()).filter(|p| sequence.trained[*p]) {
                let place = (index, position);
                let (before, after) = (row(position - 1), row(position));
                rows.entry(before).or_default().places.push(place);
                match self.layout.value {
                    ValueAt::Nowhere => (),
                    ValueAt::Before => rows.entry(before).or_default().values.push(place),
                    ValueAt::After => rows.entry(after).or_default().values.push(place),
                }
            }
        }
        self.segments.push(segments);
        let first = self.asked.len();
        self.asked.extend(rows.into_iter().map(|(row, asked)| Asked { row, targets: targets(group, &asked), ..asked }));
        let room = |s: &Sequence<'_>| Room { len: s.tokens.len(), top: s.top.map(|(k, ids)| (k, ids.to_vec())) };
        self.groups.push(Group { asked: first..self.asked.len(), sequences: group.iter().map(room).collect() });
    }

    /// Runs of whole groups whose asked rows are at most `most` together, or one group.
    pub(super) fn runs(&self, most: usize) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            let start = |run: &Range<usize>| self.groups[run.start].asked.start;
            match runs.last_mut().filter(|run| group.asked.end - start(run) <= most) {
                Some(run) => run.end = index + 1,
                None => runs.push(index..index + 1),
            }
        }
        runs
    }

    fn lay(&mut self, tokens: &[Token], position: usize) {
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(position..position + tokens.len());
    }

    /// The asked rows of a run of groups.
    pub(super) fn rows_asked(&self, run: &Range<usize>) -> Range<usize> {
        self.groups[run.start].asked.start..self.groups[run.end - 1].asked.end
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.tokens.len()
    }
}

/// The tokens at a row's places, then those named for each place.
fn targets(group: &[Sequence<'_>], asked: &Asked) -> Vec<Token> {
    let mut targets: Vec<Token> = asked.places.iter().map(|(s, p)| group[*s].tokens[*p]).collect();
    for (s, p) in &asked.places {
        if let Some((k, ids)) = group[*s].top {
            targets.extend_from_slice(&ids[p * k..(p + 1) * k]);
        }
    }
    targets
}

/// Rows a sequence needs: up to the one that predicts its last trained token, or has read it.
fn last_row(s: &Sequence<'_>, value: ValueAt) -> usize {
    let read = usize::from(value == ValueAt::After);
    s.trained.iter().rposition(|t| *t).map_or(0, |last| last + read)
}

/// Tokens that all sequences of a group begin with and that none of them trains, all of them laid out as rows.
fn common_start(group: &[Sequence<'_>], layout: &Layout) -> usize {
    if !layout.share || group.len() < 2 {
        return 0;
    }
    let first = &group[0];
    let mut common = group.iter().map(|s| last_row(s, layout.value)).min().unwrap_or(0);
    for s in group {
        let same = s.tokens.iter().zip(first.tokens).take_while(|(a, b)| a == b).count();
        let untrained = s.trained.iter().position(|t| *t).unwrap_or(s.tokens.len());
        common = common.min(same).min(untrained);
    }
    common
}
