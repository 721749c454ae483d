//! Rows that held, each with when it last did: what an operator over the past remembers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::value::{Value, wide};

/// One value a column.
pub(crate) type Row = Arc<[Value]>;

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Stamp {
    /// Seconds.
    pub(crate) at: i64,
    /// The number of the event.
    pub(crate) point: i64,
}

/// The largest amount that is summed strictly, in millionths: larger ones are faults, so that sums cannot reach their end.
const LARGEST: i128 = 1_000_000_000_000_000_000_000_000;

/// What a table is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Every row with when it last held.
    Latest,
    /// The rows of the last point.
    Last,
    /// The rows of the last point, each with the point since which it held at every one.
    Streak,
}

/// How a table is laid out.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) keep: Keep,
    /// How long a row counts; forever where none.
    pub(crate) within: Option<i64>,
    /// Whether rows are looked at one by one; else only their tally is kept.
    pub(crate) rows: bool,
    /// The columns by which rows are found, as sets of bits.
    pub(crate) indexes: BTreeSet<u64>,
    /// The count or sum that is kept up.
    pub(crate) tally: Option<TallyBy>,
}

/// Which rows are tallied together, and what of them.
#[derive(Debug, Clone)]
pub(crate) struct TallyBy {
    pub(crate) group: Vec<usize>,
    /// The column that is summed, and whether strictly.
    pub(crate) sum: Option<(usize, bool)>,
}

/// A count and a sum over the rows of one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) rows: i64,
    #[serde(with = "wide")]
    pub(crate) sum: i128,
    /// Rows that could not be summed.
    pub(crate) faults: i64,
}

impl Tally {
    /// Adds a row, or takes it away where `sign` is negative.
    pub(crate) fn add(&mut self, by: &TallyBy, row: &[Value], sign: i64) {
        self.rows += sign;
        let summed = match by.sum {
            None => return,
            Some((column, true)) => match row.get(column) {
                Some(Value::Number(n)) if (0..=LARGEST).contains(n) => Some(*n),
                _ => {
                    self.faults += sign;
                    None
                }
            },
            Some((column, false)) => row.get(column).and_then(Value::int).map(i128::from),
        };
        // Cannot reach an end: that takes 10^14 rows of the largest amount.
        self.sum = self.sum.saturating_add(summed.unwrap_or(0).saturating_mul(i128::from(sign)));
    }
}

/// Rows by the values in some columns.
type Index = HashMap<Box<[Value]>, BTreeSet<Row>>;

/// Rows that held.
///
/// - Holds: with a window, memory grows with the distinct rows in it and with how often each held again in it, at most once
///   a second; without one, with the distinct rows ever, or with the groups ever where only a tally is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    rows: HashMap<Row, Stamp>,
    /// Rows in the order in which they held, so that the oldest can leave.
    queue: VecDeque<(i64, Row)>,
    indexes: Vec<(u64, Index)>,
    tallies: HashMap<Box<[Value]>, Tally>,
}

fn pick(row: &[Value], mask: u64) -> Box<[Value]> {
    row.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).map(|(_, value)| value.clone()).collect()
}

fn group(row: &[Value], columns: &[usize]) -> Box<[Value]> {
    columns.iter().filter_map(|i| row.get(*i).cloned()).collect()
}

impl Table {
    pub(crate) fn new(layout: &Layout) -> Table {
        let indexes = layout.indexes.iter().map(|mask| (*mask, HashMap::new())).collect();
        Table { indexes, ..Table::default() }
    }

    /// How much it remembers.
    pub(crate) fn size(&self) -> usize {
        self.rows.len() + self.queue.len() + self.tallies.len()
    }

    /// When a row last held, if it is remembered.
    pub(crate) fn get(&self, row: &[Value]) -> Option<Stamp> {
        self.rows.get(row).copied()
    }

    /// The rows that have `key` in the columns of `mask`.
    pub(crate) fn find<'a>(&'a self, mask: u64, key: &'a [Value]) -> Box<dyn Iterator<Item = (&'a Row, Stamp)> + 'a> {
        if mask == 0 {
            return Box::new(self.rows.iter().map(|(row, stamp)| (row, *stamp)));
        }
        match self.indexes.iter().find(|(of, _)| *of == mask) {
            Some((_, index)) => Box::new(
                index.get(key).into_iter().flatten().filter_map(|row| self.rows.get(row).map(|stamp| (row, *stamp))),
            ),
            None => Box::new(
                self.rows.iter().filter(move |(row, _)| *pick(row, mask) == *key).map(|(row, stamp)| (row, *stamp)),
            ),
        }
    }

    /// The tally of a group, of rows no older than `cutoff`.
    pub(crate) fn tally(&self, layout: &Layout, key: &[Value], cutoff: i64) -> Tally {
        let mut tally = self.tallies.get(key).copied().unwrap_or_default();
        let Some(by) = &layout.tally else { return tally };
        for (at, row) in self.queue.iter().take_while(|(at, _)| *at < cutoff) {
            let leaves = !layout.rows || self.get(row).is_some_and(|stamp| stamp.at == *at);
            if leaves && *group(row, &by.group) == *key {
                tally.add(by, row, -1);
            }
        }
        tally
    }

    /// Forgets what is older than `cutoff`.
    pub(crate) fn forget(&mut self, layout: &Layout, cutoff: i64) {
        while self.queue.front().is_some_and(|(at, _)| *at < cutoff) {
            let Some((at, row)) = self.queue.pop_front() else { return };
            if layout.rows {
                // It held again later: that later time has its own place in the queue.
                if self.get(&row).is_none_or(|stamp| stamp.at != at) {
                    continue;
                }
                self.remove(&row);
            }
            self.count(layout, &row, -1);
        }
    }

    fn remove(&mut self, row: &Row) {
        self.rows.remove(row);
        for (mask, index) in &mut self.indexes {
            let key = pick(row, *mask);
            if let Some(rows) = index.get_mut(&key) {
                rows.remove(row);
                if rows.is_empty() {
                    index.remove(&key);
                }
            }
        }
    }

    fn insert(&mut self, row: &Row, stamp: Stamp) {
        if self.rows.insert(row.clone(), stamp).is_none() {
            for (mask, index) in &mut self.indexes {
                index.entry(pick(row, *mask)).or_default().insert(row.clone());
            }
        }
    }

    fn count(&mut self, layout: &Layout, row: &[Value], sign: i64) {
        let Some(by) = &layout.tally else { return };
        let key = group(row, &by.group);
        let tally = self.tallies.entry(key).or_default();
        tally.add(by, row, sign);
        if tally.rows == 0 {
            self.tallies.remove(&group(row, &by.group));
        }
    }

    /// Takes in the rows that hold at a point.
    pub(crate) fn take(&mut self, layout: &Layout, rows: Vec<Row>, now: Stamp) {
        match layout.keep {
            Keep::Latest => rows.into_iter().for_each(|row| self.refresh(layout, row, now)),
            Keep::Last | Keep::Streak => {
                let stamps: Vec<Stamp> = rows
                    .iter()
                    .map(|row| match layout.keep {
                        Keep::Streak => self.get(row).unwrap_or(now),
                        _ => now,
                    })
                    .collect();
                self.rows.clear();
                self.indexes.iter_mut().for_each(|(_, index)| index.clear());
                for (row, stamp) in rows.iter().zip(stamps) {
                    self.insert(row, stamp);
                }
            }
        }
    }

    fn refresh(&mut self, layout: &Layout, row: Row, now: Stamp) {
        if layout.rows {
            let before = self.get(&row);
            self.insert(&row, now);
            if before.is_none() {
                self.count(layout, &row, 1);
            }
            if before.is_some_and(|stamp| stamp.at == now.at) {
                return;
            }
        } else {
            self.count(layout, &row, 1);
        }
        if layout.within.is_some() {
            self.queue.push_back((now.at, row));
        }
    }

    /// What must be stored to go on later, in a fixed order.
    pub(crate) fn save(&self, layout: &Layout) -> Saved {
        let mut rows: Vec<(Vec<Value>, Stamp)> = self.rows.iter().map(|(row, stamp)| (row.to_vec(), *stamp)).collect();
        rows.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        let queue = match layout.rows {
            true => Vec::new(),
            false => self.queue.iter().map(|(at, row)| (*at, row.to_vec())).collect(),
        };
        let mut tallies: Vec<(Vec<Value>, Tally)> =
            self.tallies.iter().map(|(key, tally)| (key.to_vec(), *tally)).collect();
        tallies.sort_by(|a, b| a.0.cmp(&b.0));
        Saved { rows, queue, tallies }
    }

    /// The table that was stored.
    pub(crate) fn load(layout: &Layout, saved: Saved) -> Table {
        let mut table = Table::new(layout);
        for (row, stamp) in saved.rows {
            let row: Row = row.into();
            table.insert(&row, stamp);
            if layout.keep == Keep::Latest && layout.within.is_some() {
                table.queue.push_back((stamp.at, row));
            }
        }
        table.queue.extend(saved.queue.into_iter().map(|(at, row)| (at, Row::from(row))));
        table.tallies = saved.tallies.into_iter().map(|(key, tally)| (key.into(), tally)).collect();
        table
    }
}

/// A table as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Saved {
    rows: Vec<(Vec<Value>, Stamp)>,
    queue: Vec<(i64, Vec<Value>)>,
    tallies: Vec<(Vec<Value>, Tally)>,
}

impl Saved {
    /// Whether every row has this many columns.
    pub(crate) fn fits(&self, columns: usize) -> bool {
        self.rows.iter().all(|(row, _)| row.len() == columns) && self.queue.iter().all(|(_, row)| row.len() == columns)
    }
}
