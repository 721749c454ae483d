//! Weights and optimiser state in a folder, read back with the same bits.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

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

fn read(path: &Path, c: &Config, tensors: &mut dyn Tensors) -> Result<(), PolicyError> {
    let bad = |e: tensor::weights::WeightsError| as_policy(path)(e.into());
    let source = Safetensors::open(path).map_err(bad)?;
    let list = tensors.list(c);
    for (name, shape, key) in &list {
        let got = source.shape(name).map_err(bad)?;
        if got != shape {
            let reason = format!("tensor `{name}`: needed shape {shape:?}, got {got:?}");
            return Err(PolicyError::Checkpoint { path: path.to_owned(), reason });
        }
        let mut values = vec![0.0; shape.iter().product()];
        source.read_f32(name, &mut values).map_err(bad)?;
        tensors.set(c, *key, &values);
    }
    match source.names().into_iter().find(|n| !list.iter().any(|(name, ..)| name == n)) {
        None => Ok(()),
        Some(extra) => {
            let reason = format!("tensor `{extra}` is not part of this policy");
            Err(PolicyError::Checkpoint { path: path.to_owned(), reason })
        }
    }
}

impl Engine {
    /// The settings under which a tensor is stored as the kernels hold it, so that reading it back is exact: a norm that a
    /// file would hold as an offset from 1 is stored whole.
    fn exact(&self) -> Config {
        Config { norm_plus_one: false, ..self.config.clone() }
    }

    /// Reads only the weights of a checkpoint, to sample from or to start a new run from them.
    pub fn load_weights(&mut self, folder: &Path) -> Result<(), PolicyError> {
        let c = self.exact();
        let path = folder.join(WEIGHTS);
        match (&self.trainable, &mut self.adapter) {
            (Trainable::Full, _) | (Trainable::Frozen, None) => read(&path, &c, &mut self.params),
            (_, Some(adapter)) => read(&path, &c, adapter),
            (Trainable::Lora { .. }, None) => {
                Err(PolicyError::Unsupported("a low-rank engine always has its adapter".to_owned()))
            }
        }
    }
}

impl Checkpoint for Engine {
    fn save(&self, folder: &Path) -> Result<(), PolicyError> {
        let c = self.exact();
        let weights: &dyn Tensors = match &self.adapter {
            Some(adapter) => adapter,
            None => &self.params,
        };
        write(&folder.join(WEIGHTS), &c, weights)?;
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

    fn load(&mut self, folder: &Path) -> Result<(), PolicyError> {
        let path = folder.join(STATE);
        let bytes = std::fs::read(&path).map_err(|source| PolicyError::Io { path: path.clone(), source })?;
        let bad = |reason: String| PolicyError::Checkpoint { path: path.clone(), reason };
        let state: State = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        if state.trainable != self.trainable {
            return Err(bad(format!("needed {:?}, got {:?}", self.trainable, state.trainable)));
        }
        self.load_weights(folder)?;
        let c = self.exact();
        self.moments = None;
        if folder.join(FIRST).exists()
            && let Some((grads, mut moments)) = optimiser::start(&self.config, &self.trainable, self.adapter.as_ref())
        {
            match &mut moments {
                Moments::Full(m) => {
                    read(&folder.join(FIRST), &c, &mut m.0)?;
                    read(&folder.join(SECOND), &c, &mut m.1)?;
                }
                Moments::Adapter(m) => {
                    read(&folder.join(FIRST), &c, &mut m.0)?;
                    read(&folder.join(SECOND), &c, &mut m.1)?;
                }
            }
            (self.grads, self.moments) = (grads, Some(moments));
        }
        self.n_updates = state.n_updates;
        Ok(())
    }
}
