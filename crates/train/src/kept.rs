//! Weights kept beside those that learn: references, teachers, and the start of a run.
//!
//! **Checkpoints.** A slot that the moving weights were written to, or blended into, belongs to a checkpoint: it cannot be
//! had again from what the run began with. A slot filled before the first update, and not changed since, is not stored:
//! whoever resumes has filled it before reading the checkpoint, as whoever started had, and the bits are the same.

use std::sync::atomic::{AtomicBool, Ordering};

use model::params::Storage;
use model::{Adapter, HalfParams, Params, ValueHead};
use policy::{Keep, PolicyError, Slot};
use tensor::Cpu;

use crate::Engine;
use crate::engine::Trainable;
use crate::optimiser::Weights;

/// Elements of a tensor that are blended at once.
const PIECE: usize = 16_384;

/// What a slot holds.
pub(crate) struct Kept {
    /// A copy of all weights with their rounded twins, or the adapter on the frozen ones.
    pub(crate) weights: Weights<(Params, Option<HalfParams>), Option<Adapter>>,
    /// The value head, where there is one.
    pub(crate) value: Option<ValueHead>,
    /// Whether it differs from what a run fills it with before its first update.
    pub(crate) moved: bool,
}

/// A slot as users and files call it.
pub(crate) fn name(slot: Slot) -> &'static str {
    match slot {
        Slot::Start => "start",
        Slot::Reference => "reference",
        Slot::Teacher => "teacher",
    }
}

pub(crate) fn empty(slot: Slot) -> PolicyError {
    PolicyError::Unsupported(format!("no weights were kept as `{}`", name(slot)))
}

impl Engine {
    /// Fills a slot with the weights as they are, or moves it a share of the way to them.
    pub(crate) fn fill(&mut self, slot: Slot, how: Keep) -> Result<(), PolicyError> {
        match how {
            Keep::Now => {
                let moved = self.n_updates > 0 || self.kept.get(&slot).is_some_and(|kept| kept.moved);
                let weights = match self.trainable {
                    Trainable::Full {} => Weights::Full(Box::new((self.params.clone(), self.half.clone()))),
                    Trainable::Lora { .. } | Trainable::Frozen {} => Weights::Adapter(Box::new(self.adapter.clone())),
                };
                self.kept.insert(slot, Kept { weights, value: self.value.clone(), moved });
                Ok(())
            }
            Keep::Blend(rate) if !(0.0..=1.0).contains(&rate) => {
                let name = name(slot);
                Err(PolicyError::Unsupported(format!("`{name}` cannot be blended at a rate of {rate}, needed 0 to 1")))
            }
            Keep::Blend(_) if !self.kept.contains_key(&slot) => Err(empty(slot)),
            // The formula would leave a rounding between the two.
            Keep::Blend(1.0) => self.fill(slot, Keep::Now),
            Keep::Blend(rate) => {
                let kept = self.kept.get_mut(&slot).expect("an empty slot was refused");
                let moved = match (&mut kept.weights, &self.adapter) {
                    (Weights::Full(kept), _) => {
                        let moved = blend(&self.cpu, rate, self.params.storage(), kept.0.storage_mut());
                        if let Some(half) = &mut kept.1 {
                            half.refresh(&self.cpu, &kept.0);
                        }
                        moved
                    }
                    (Weights::Adapter(kept), Some(now)) => match kept.as_mut() {
                        Some(kept) => blend(&self.cpu, rate, now.storage(), kept.storage_mut()),
                        None => return Err(empty(slot)),
                    },
                    (Weights::Adapter(_), None) => false,
                };
                let value = kept.value.as_mut().zip(self.value.as_ref());
                let value = value.is_some_and(|(kept, now)| blend(&self.cpu, rate, now.storage(), kept.storage_mut()));
                kept.moved |= moved || value;
                Ok(())
            }
        }
    }
}

/// kept + rate · (now − kept), element by element; whether a bit changed.
///
/// - Holds: exactly `kept` where the two are equal.
fn blend<'a>(
    cpu: &Cpu,
    rate: f64,
    now: impl IntoIterator<Item = Storage<&'a [f32]>>,
    kept: impl IntoIterator<Item = Storage<&'a mut [f32]>>,
) -> bool {
    let (rate, changed) = (rate as f32, AtomicBool::new(false));
    let piece = |now: &[f32], kept: &mut [f32]| {
        for (kept, now) in kept.iter_mut().zip(now) {
            let new = *kept + rate * (now - *kept);
            if new.to_bits() != kept.to_bits() {
                changed.store(true, Ordering::Relaxed);
            }
            *kept = new;
        }
    };
    for (now, kept) in now.into_iter().zip(kept) {
        let (now, kept) = (now.into_inner(), kept.into_inner());
        let whole = kept.len() / PIECE * PIECE;
        let (pieces, rest) = kept.split_at_mut(whole);
        cpu.each_row(whole / PIECE, 1, (pieces, PIECE), |i, kept| piece(&now[i * PIECE..(i + 1) * PIECE], kept));
        piece(&now[whole..], rest);
    }
    changed.into_inner()
}
