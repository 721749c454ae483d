//! Weights with the adapter merged in, one tensor at a time.
//!
//! K inputs · N outputs · r adapter rank

use tensor::Cpu;

use crate::adapter::{Adapter, Lora, Target};
use crate::params::{In, Slot};
use crate::{Config, ModelError, Params};

/// Weights as they are after merging; nothing is copied until it is read.
///
/// - Holds: an element is `W + (alpha / r) · B·A` summed in f64 over ascending r and rounded once to f32, so it is within
///   half a unit in the last place of the exact sum. Merged and unmerged runs of a model therefore agree to the rounding of
///   f32 products, not to the bit. Without an adapter the bits are those of the weights.
#[derive(Debug, Clone, Copy)]
pub struct Merged<'a> {
    cpu: &'a Cpu,
    config: &'a Config,
    params: &'a Params,
    adapter: Option<&'a Adapter>,
}

impl<'a> Merged<'a> {
    /// The weights of a policy.
    ///
    /// - Errors: an adapter without targets, of another number of layers, of other widths, or with a scale that is not a
    ///   number above 0: it would be merged into nothing, or into the wrong thing.
    pub fn new(
        cpu: &'a Cpu,
        config: &'a Config,
        params: &'a Params,
        adapter: Option<&'a Adapter>,
    ) -> Result<Self, ModelError> {
        if let Some(adapter) = adapter {
            check(config, adapter)?;
        }
        Ok(Merged { cpu, config, params, adapter })
    }

    /// The configuration the weights belong to.
    pub fn config(&self) -> &'a Config {
        self.config
    }

    /// How many tensors the adapter changes.
    pub fn n_changed(&self) -> usize {
        self.adapter.map_or(0, |a| a.targets.len() * self.config.n_layers)
    }

    /// Copies one tensor out, row by row; norms are held ready for use, and lose 1 where `stored` has them as offsets from it.
    ///
    /// - Shapes: [`Slot::shape`].
    pub fn read(&self, stored: &Config, slot: Slot) -> Vec<f32> {
        let mut w = self.params.read(&Config { norm_plus_one: stored.norm_plus_one, ..self.config.clone() }, slot);
        let Some(adapter) = self.adapter else { return w };
        let Some((layer, target)) = target_of(slot).filter(|(_, t)| adapter.targets.contains(t)) else { return w };
        let [rank, k] = adapter.a_shape(self.config, target);
        let [n, _] = adapter.b_shape(self.config, target);
        let a: Vec<f64> = adapter.read_a(layer, target).into_iter().map(f64::from).collect();
        let b = adapter.read_b(layer, target);
        let scale = f64::from(adapter.alpha) / rank as f64;
        self.cpu.each_row(n, 8, (&mut w, k), |row, w| {
            let mut sum = vec![0.0_f64; k];
            for (b, a) in b[row * rank..(row + 1) * rank].iter().zip(a.chunks(k)) {
                let b = f64::from(*b);
                // The product of two f32 is exact in f64.
                sum.iter_mut().zip(a).for_each(|(s, a)| *s += b * a);
            }
            w.iter_mut().zip(&sum).for_each(|(w, s)| *w = (f64::from(*w) + scale * s) as f32);
        });
        w
    }
}

fn target_of(slot: Slot) -> Option<(usize, Target)> {
    let Slot::Layer(layer, part) = slot else { return None };
    let target = match part {
        In::Q => Target::Q,
        In::K => Target::K,
        In::V => Target::V,
        In::O => Target::O,
        In::Gate => Target::Gate,
        In::Up => Target::Up,
        In::Down => Target::Down,
        _ => return None,
    };
    Some((layer, target))
}

fn check(c: &Config, adapter: &Adapter) -> Result<(), ModelError> {
    // What is zeroed with the same numbers has the shapes this model needs; it refuses bad numbers itself.
    let needed = Adapter::zeroed(c, adapter.rank, adapter.alpha, &adapter.targets)?;
    if adapter.layers.len() != c.n_layers {
        let (got, needed) = (adapter.layers.len(), c.n_layers);
        return Err(ModelError::Adapter(format!("it has {got} layers, needed {needed}")));
    }
    let shapes = |a: &Adapter| -> Vec<_> {
        let of = |l: &Lora| [&l.a, &l.b].map(|p| (p.n_outputs(), p.n_inputs()));
        a.layers.iter().flatten().map(|lora| lora.as_ref().map(of)).collect()
    };
    if shapes(adapter) != shapes(&needed) {
        return Err(ModelError::Adapter("its products have other widths than this model's".to_owned()));
    }
    Ok(())
}
