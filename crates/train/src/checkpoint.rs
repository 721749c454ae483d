//! Weights and optimiser state in a folder, read back with the same bits.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use model::block::Grads;
use model::params::Slot;
use model::{Adapter, Config, Params, Target};
use policy::{Checkpoint, PolicyError};
use serde::{Deserialize, Serialize};
use tensor::weights::{OutTensor, Safetensors, TensorSource, write_safetensors};

use crate::engine::{Engine, Trainable, as_policy};
use crate::optimiser::{self, Moments};

const WEIGHTS: &str = "weights.safetensors";
const FIRST: &str = "moment1.safetensors";
const SECOND: &str = "moment2.safetensors";
const STATE: &str = "engine.json";

/// What is not a tensor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    n_updates: u64,
    trainable: Trainable,
}

/// Tensors that can be listed, read out and set by name.
trait Tensors {
    fn list(&self, c: &Config) -> Vec<(String, Vec<usize>, Key)>;
    fn get(&self, c: &Config, key: Key) -> Vec<f32>;
    fn set(&mut self, c: &Config, key: Key, values: &[f32]);
}

#[derive(Clone, Copy)]
enum Key {
    Slot(Slot),
    A(usize, Target),
    B(usize, Target),
}

impl Tensors for Params {
    fn list(&self, c: &Config) -> Vec<(String, Vec<usize>, Key)> {
        Slot::all(c).into_iter().map(|s| (s.hf_name(c), s.shape(c), Key::Slot(s))).collect()
    }

    fn get(&self, c: &Config, key: Key) -> Vec<f32> {
        let Key::Slot(slot) = key else { return Vec::new() };
        self.read(c, slot)
    }

    fn set(&mut self, c: &Config, key: Key, values: &[f32]) {
        if let Key::Slot(slot) = key {
            self.write(c, slot, values);
        }
    }
}

impl Tensors for Adapter {
    fn list(&self, c: &Config) -> Vec<(String, Vec<usize>, Key)> {
        let mut all = Vec::new();
        for layer in 0..c.n_layers {
            for target in self.targets.iter().copied() {
                let name = |half| format!("layers.{layer}.{}.lora_{half}", target.name());
                all.push((name('A'), self.a_shape(c, target).to_vec(), Key::A(layer, target)));
                all.push((name('B'), self.b_shape(c, target).to_vec(), Key::B(layer, target)));
            }
        }
        all
    }

    fn get(&self, _: &Config, key: Key) -> Vec<f32> {
        match key {
            Key::A(layer, target) => self.read_a(layer, target),
            Key::B(layer, target) => self.read_b(layer, target),
            Key::Slot(_) => Vec::new(),
        }
    }

    fn set(&mut self, _: &Config, key: Key, values: &[f32]) {
        match key {
            Key::A(layer, target) => self.write_a(layer, target, values),
            Key::B(layer, target) => self.write_b(layer, target, values),
            Key::Slot(_) => {}
        }
    }
}

fn write(path: &Path, c: &Config, tensors: &dyn Tensors) -> Result<(), PolicyError> {
    let failed = |source| PolicyError::Io { path: path.to_owned(), source };
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    let made = |(name, shape, key): (String, Vec<usize>, Key)| {
        OutTensor::made(name, shape, move || Cow::Owned(tensors.get(c, key)))
    };
    let list: Vec<OutTensor<'_>> = tensors.list(c).into_iter().map(made).collect();
    write_safetensors(path, &mut out, list, &BTreeMap::new()).map_err(|e| as_policy(path)(e.into()))?;
    out.flush().map_err(failed)
}

/// A file that was read once and holds exactly the tensors of a policy, every value a finite number.
struct Checked {
    source: Safetensors,
    list: Vec<(String, Vec<usize>, Key)>,
}

impl Checked {
    fn open(path: &Path, c: &Config, like: &dyn Tensors) -> Result<Checked, PolicyError> {
        let bad = |e: tensor::weights::WeightsError| as_policy(path)(e.into());
        let unfit = |reason: String| PolicyError::Checkpoint { path: path.to_owned(), reason };
        let source = Safetensors::open(path).map_err(bad)?;
        let list = like.list(c);
        for (name, shape, _) in &list {
            let got = source.shape(name).map_err(bad)?;
            if got != shape {
                return Err(unfit(format!("tensor `{name}`: needed shape {shape:?}, got {got:?}")));
            }
            source.read_f32(name, &mut vec![0.0; shape.iter().product()]).map_err(bad)?;
        }
        match source.names().into_iter().find(|n| !list.iter().any(|(name, ..)| name == n)) {
            None => Ok(Checked { source, list }),
            Some(extra) => Err(unfit(format!("tensor `{extra}` is not part of this policy"))),
        }
    }

    /// Sets the tensors: the file's second reading, so that a bad one is known before anything is set.
    fn set(self, c: &Config, tensors: &mut dyn Tensors) -> Result<(), PolicyError> {
        for (name, shape, key) in &self.list {
            let mut values = vec![0.0; shape.iter().product()];
            let read = self.source.read_f32(name, &mut values);
            read.map_err(|e| as_policy(self.source.path())(e.into()))?;
            tensors.set(c, *key, &values);
        }
        Ok(())
    }
}

impl Engine {
    /// The settings under which a tensor is stored as the kernels hold it, so that reading it back is exact: a norm that a
    /// file would hold as an offset from 1 is stored whole.
    fn exact(&self) -> Config {
        Config { norm_plus_one: false, ..self.config.clone() }
    }

    /// What a checkpoint holds the weights of.
    fn stored(&self) -> &dyn Tensors {
        match &self.adapter {
            Some(adapter) => adapter,
            None => &self.params,
        }
    }

    fn stored_mut(&mut self) -> &mut dyn Tensors {
        match &mut self.adapter {
            Some(adapter) => adapter,
            None => &mut self.params,
        }
    }

    /// Reads only the weights of a checkpoint, to sample from or to start a new run from them.
    ///
    /// - Errors: as for [`Checkpoint::load`]; then the engine is as it was.
    pub fn load_weights(&mut self, folder: &Path) -> Result<(), PolicyError> {
        let c = self.exact();
        Checked::open(&folder.join(WEIGHTS), &c, self.stored())?.set(&c, self.stored_mut())?;
        self.refresh();
        Ok(())
    }
}

impl Checkpoint for Engine {
    fn save(&self, folder: &Path) -> Result<(), PolicyError> {
        let c = self.exact();
        write(&folder.join(WEIGHTS), &c, self.stored())?;
        match &self.moments {
            None => {}
            Some(Moments::Full(m)) => {
                write(&folder.join(FIRST), &c, &m.0)?;
                write(&folder.join(SECOND), &c, &m.1)?;
            }
            Some(Moments::Adapter(m)) => {
                write(&folder.join(FIRST), &c, &m.0)?;
                write(&folder.join(SECOND), &c, &m.1)?;
            }
        }
        let state = State { n_updates: self.n_updates, trainable: self.trainable.clone() };
        let path = folder.join(STATE);
        let text = serde_json::to_vec_pretty(&state).expect("numbers and names always serialise");
        std::fs::write(&path, text).map_err(|source| PolicyError::Io { path, source })
    }

    /// Holds: everything is read and checked before anything is set, so that after an error the engine is as it was.
    fn load(&mut self, folder: &Path) -> Result<(), PolicyError> {
        let path = folder.join(STATE);
        let bytes = std::fs::read(&path).map_err(|source| PolicyError::Io { path: path.clone(), source })?;
        let bad = |reason: String| PolicyError::Checkpoint { path: path.clone(), reason };
        let state: State = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        if state.trainable != self.trainable {
            let show = |t: &Trainable| serde_json::to_string(t).expect("names and numbers always serialise");
            return Err(bad(format!("needed `{}`, got `{}`", show(&self.trainable), show(&state.trainable))));
        }
        let c = self.exact();
        let weights = Checked::open(&folder.join(WEIGHTS), &c, self.stored())?;
        // Only a policy that was never updated may lack moments.
        let wanted = state.n_updates > 0 || folder.join(FIRST).exists();
        let started = optimiser::start(&self.config, &self.trainable, self.adapter.as_ref()).filter(|_| wanted);
        let (grads, moments) = match started {
            None => (Grads::default(), None),
            Some((grads, mut moments)) => {
                let (first, second): (&mut dyn Tensors, &mut dyn Tensors) = match &mut moments {
                    Moments::Full(m) => (&mut m.0, &mut m.1),
                    Moments::Adapter(m) => (&mut m.0, &mut m.1),
                };
                for (file, tensors) in [(FIRST, first), (SECOND, second)] {
                    Checked::open(&folder.join(file), &c, &*tensors)?.set(&c, tensors)?;
                }
                (grads, Some(moments))
            }
        };
        weights.set(&c, self.stored_mut())?;
        self.refresh();
        (self.grads, self.moments, self.n_updates) = (grads, moments, state.n_updates);
        Ok(())
    }
}
