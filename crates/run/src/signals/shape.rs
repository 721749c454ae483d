//! Per-token lists: one entry a token, read where it was sampled and nowhere else.
//!
//! T tokens of the line · k other tokens in the place of each

use super::line::{List, TopField};

/// What a number must be.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    holds: fn(f32) -> bool,
    needed: &'static str,
}

pub(super) const LOG_PROBABILITY: Rule =
    Rule { holds: |v| v.is_finite() && v <= 0.0, needed: "a finite number at most 0" };
pub(super) const AT_LEAST_0: Rule = Rule { holds: |v| v.is_finite() && v >= 0.0, needed: "a finite number at least 0" };
pub(super) const FINITE: Rule = Rule { holds: f32::is_finite, needed: "a finite number" };

/// What probabilities of k tokens may add up to: rounded numbers pass 1 by less.
const MOST_PROBABILITY: f64 = 1.001;

/// Log-probabilities of other tokens, `[T · k]` each.
#[derive(Debug, Default)]
pub(super) struct Tops {
    pub(super) k: usize,
    pub(super) ids: Vec<u32>,
    pub(super) old: Option<Vec<f32>>,
    pub(super) now: Option<Vec<f32>>,
    pub(super) teacher: Option<Vec<f32>>,
}

impl Tops {
    /// As the step begins.
    pub(super) fn old(&self) -> Option<&[f32]> {
        self.old.as_deref().or(self.now.as_deref())
    }

    /// As it is now.
    pub(super) fn now(&self) -> Option<&[f32]> {
        self.now.as_deref().or(self.old.as_deref())
    }

    /// Of the teacher.
    pub(super) fn teacher(&self) -> Option<&[f32]> {
        self.teacher.as_deref()
    }
}

/// Which tokens of a line were sampled, and how many stand before them.
pub(super) struct Shape<'a> {
    pub(super) sampled: &'a [bool],
    pub(super) offset: usize,
}

impl Shape<'_> {
    /// Checks that a list has an entry a token.
    pub(super) fn length<V>(&self, name: &str, list: Option<&[V]>) -> Result<(), String> {
        match list.map(<[V]>::len) {
            Some(got) if got != self.sampled.len() => {
                Err(format!("`{name}` has {got} entries, needed {}, one a token", self.sampled.len()))
            }
            _ => Ok(()),
        }
    }

    /// The entry of each sampled token, the default elsewhere, without anything before the line's own tokens.
    pub(super) fn entries<V: Default>(&self, name: &str, list: List<V>) -> Result<Option<Vec<V>>, String> {
        let Some(list) = list else { return Ok(None) };
        self.length(name, Some(&list))?;
        let mut out = Vec::with_capacity(list.len());
        for (t, (entry, sampled)) in list.into_iter().zip(self.sampled).enumerate() {
            out.push(match (entry, sampled) {
                (_, false) => V::default(),
                (Some(entry), true) => entry,
                (None, true) => return Err(format!("`{name}` is null at token {t}, which was sampled")),
            });
        }
        Ok(Some(out))
    }

    /// Checked numbers, with 0 before the line's own tokens.
    pub(super) fn numbers(&self, name: &str, list: List<f32>, rule: Rule) -> Result<Option<Vec<f32>>, String> {
        let Some(entries) = self.entries(name, list)? else { return Ok(None) };
        if let Some(t) = (0..entries.len()).find(|t| self.sampled[*t] && !(rule.holds)(entries[*t])) {
            return Err(format!("`{name}` is {} at token {t}, needed {}", entries[t], rule.needed));
        }
        let mut padded = vec![0.0; self.offset];
        padded.extend(entries);
        Ok(Some(padded))
    }

    /// The log-probabilities of other tokens, as many everywhere.
    pub(super) fn tops(&self, top: TopField) -> Result<Tops, String> {
        let mut k = None;
        let ids = self.places("topk.ids", top.ids, &mut k)?;
        let old = self.distribution("topk.logp_old", top.logp_old, &mut k)?;
        let now = self.distribution("topk.logp", top.logp, &mut k)?;
        let teacher = self.distribution("topk.logp_teacher", top.logp_teacher, &mut k)?;
        let k = k.unwrap_or_default();
        // Where the line does not name the tokens, they are numbered: formulas read their log-probabilities alone.
        let ids = ids.unwrap_or_else(|| (0..self.offset + self.sampled.len()).flat_map(|_| 0..k as u32).collect());
        Ok(Tops { k, ids, old, now, teacher })
    }

    fn distribution(
        &self,
        name: &str,
        list: List<Vec<f32>>,
        k: &mut Option<usize>,
    ) -> Result<Option<Vec<f32>>, String> {
        let Some(flat) = self.places(name, list, k)? else { return Ok(None) };
        let k = k.unwrap_or_default().max(1);
        for (place, values) in flat.chunks(k).enumerate().skip(self.offset) {
            let t = place - self.offset;
            if !self.sampled[t] {
                continue;
            }
            if let Some(bad) = values.iter().find(|v| !(LOG_PROBABILITY.holds)(**v)) {
                return Err(format!("`{name}` is {bad} at token {t}, needed {}", LOG_PROBABILITY.needed));
            }
            let sum: f64 = values.iter().map(|v| loss::exp(f64::from(*v))).sum();
            if sum > MOST_PROBABILITY {
                return Err(format!("`{name}` has probabilities that add up to {sum} at token {t}, needed at most 1"));
            }
        }
        Ok(Some(flat))
    }

    /// k entries a token one after the other, defaults where it was not sampled.
    fn places<V: Copy + Default>(
        &self,
        name: &str,
        list: List<Vec<V>>,
        k: &mut Option<usize>,
    ) -> Result<Option<Vec<V>>, String> {
        let Some(entries) = self.entries(name, list)? else { return Ok(None) };
        let sampled = || entries.iter().map(Vec::as_slice).enumerate().filter(|(t, _)| self.sampled[*t]);
        let needed = match (*k, sampled().next()) {
            (Some(k), _) => k,
            (None, Some((t, []))) => return Err(format!("`{name}` has 0 entries at token {t}, needed at least 1")),
            (None, Some((_, first))) => *k.insert(first.len()),
            (None, None) => return Ok(Some(Vec::new())),
        };
        if let Some((t, values)) = sampled().find(|(_, values)| values.len() != needed) {
            return Err(format!("`{name}` has {} entries at token {t}, needed {needed}, as before", values.len()));
        }
        let mut flat = vec![V::default(); self.offset * needed];
        for (values, sampled) in entries.iter().zip(self.sampled) {
            match sampled {
                true => flat.extend_from_slice(values),
                false => flat.resize(flat.len() + needed, V::default()),
            }
        }
        Ok(Some(flat))
    }
}

/// Checks that a number is finite.
pub(super) fn finite(name: &str, value: f64) -> Result<(), String> {
    if value.is_finite() { Ok(()) } else { Err(format!("`{name}` is {value}, needed a finite number")) }
}
