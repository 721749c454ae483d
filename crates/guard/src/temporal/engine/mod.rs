//! The engine: sentences about the past, kept up event by event.
//!
//! It knows neither calls nor rules: events have a kind, a name and fields. Nothing of it is public.

pub(crate) mod formula;
pub(crate) mod plan;
pub(crate) mod solve;
pub(crate) mod survey;
pub(crate) mod table;
pub(crate) mod value;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use plan::Plan;
use solve::{Env, Fault, Moment, Slot, View};
use table::{Saved, Stamp, Table};
use value::Value;

/// How much one source of a history may remember: more than any episode needs, and a bound on what a hostile one takes.
const ROOM: usize = 1 << 20;

/// What is remembered of the events before.
///
/// - Holds: what an event costs does not grow with the number of events before it.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    tables: Vec<Table>,
    /// When the last event was, or when somebody last said how late it is.
    last: i64,
    /// How many events there were.
    points: i64,
    /// How many entries one source may take.
    room: usize,
}

/// A memory as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedMemory {
    tables: Vec<Saved>,
    last: i64,
    points: i64,
}

impl Memory {
    pub(crate) fn new(plan: &Plan) -> Memory {
        let tables = plan.sources.iter().map(|source| Table::new(&source.layout)).collect();
        Memory { tables, last: i64::MIN, points: 0, room: ROOM }
    }

    /// How many entries are remembered.
    pub(crate) fn size(&self) -> usize {
        self.tables.iter().map(Table::size).sum()
    }

    fn view<'v>(&'v self, plan: &'v Plan, moment: &'v dyn Moment, at: i64) -> Result<View<'v>, Fault> {
        if at < self.last {
            return Err(Fault::Backwards { last: self.last, got: at });
        }
        let symbol = plan.symbol_of(moment.kind(), moment.name());
        Ok(View { plan, tables: &self.tables, moment, symbol, now: Stamp { at, point: self.points } })
    }

    /// Whether a sentence holds at an event, were it the next one.
    pub(crate) fn ask(
        &self,
        plan: &Plan,
        sentence: usize,
        given: Vec<Option<Value>>,
        moment: &dyn Moment,
        at: i64,
    ) -> Result<bool, Fault> {
        let view = self.view(plan, moment, at)?;
        let Some((node, sentence)) = plan.sentences.get(sentence) else { return Ok(false) };
        let mut env: Env = vec![Slot::Free; sentence.vars];
        for (var, value) in sentence.given.iter().zip(given) {
            env[*var] = value.map_or(Slot::Missing, Slot::Is);
        }
        view.holds(node, &mut env)
    }

    /// Forgets what no window reaches any more.
    pub(crate) fn advance(&mut self, plan: &Plan, at: i64) -> Result<(), Fault> {
        if at < self.last {
            return Err(Fault::Backwards { last: self.last, got: at });
        }
        self.last = at;
        for (table, source) in self.tables.iter_mut().zip(&plan.sources) {
            if let Some(within) = source.layout.within {
                table.forget(&source.layout, at.saturating_sub(within));
            }
        }
        Ok(())
    }

    /// Takes in an event.
    ///
    /// - Errors: time went backwards, or there is no room; nothing is taken in.
    pub(crate) fn observe(&mut self, plan: &Plan, moment: &dyn Moment, at: i64) -> Result<(), Fault> {
        self.advance(plan, at)?;
        let view = self.view(plan, moment, at)?;
        let now = view.now;
        let rows = plan.sources.iter().map(|source| view.rows(source)).collect::<Result<Vec<_>, _>>()?;
        if let Some(full) = self.tables.iter().zip(&rows).find(|(table, new)| table.size() + new.len() > self.room) {
            return Err(Fault::Full(full.0.size()));
        }
        for ((table, source), rows) in self.tables.iter_mut().zip(&plan.sources).zip(rows) {
            table.take(&source.layout, rows, now);
        }
        self.points += 1;
        Ok(())
    }

    pub(crate) fn save(&self, plan: &Plan) -> SavedMemory {
        let tables = self.tables.iter().zip(&plan.sources).map(|(table, source)| table.save(&source.layout)).collect();
        SavedMemory { tables, last: self.last, points: self.points }
    }

    /// The memory that was stored, if it fits the plan.
    pub(crate) fn load(plan: &Plan, saved: SavedMemory) -> Option<Memory> {
        let fits = saved.tables.len() == plan.sources.len()
            && saved.tables.iter().zip(&plan.sources).all(|(table, source)| table.fits(source.columns.len()));
        fits.then(|| Memory {
            tables: plan.sources.iter().zip(saved.tables).map(|(s, saved)| Table::load(&s.layout, saved)).collect(),
            last: saved.last,
            points: saved.points,
            room: ROOM,
        })
    }
}
