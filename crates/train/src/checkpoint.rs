//! Weights and optimiser state in a folder, read back with the same bits.
//!
//! A value head has files of its own, so that weights saved with one can be sampled from without it, and weights saved
//! without one can be gone on from with it. What slots hold is stored where it has moved; see `kept`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use model::block::Grads;
use model::{Adapter, Config, HalfParams, Params, Target, ValueHead, params};
use policy::{Checkpoint, PolicyError, Slot};
use serde::{Deserialize, Serialize};
use tensor::weights::{OutTensor, Safetensors, TensorSource, write_safetensors};

use crate::engine::{Engine, Trainable, as_policy};
use crate::kept::{self, Kept};
use crate::optimiser::{self, Moments, Weights};

const WEIGHTS: &str = "weights.safetensors";
const FIRST: &str = "moment1.safetensors";
const SECOND: &str = "moment2.safetensors";
const VALUE: &str = "value.safetensors";
const VALUE_FIRST: &str = "value_moment1.safetensors";
const VALUE_SECOND: &str = "value_moment2.safetensors";
const STATE: &str = "engine.json";

/// What is not a tensor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    n_updates: u64,
    trainable: Trainable,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    value_head: bool,
    /// The slots whose weights are stored too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kept: Vec<Slot>,
}

/// The files of a slot: its weights and its value head.
fn kept_files(slot: Slot) -> [String; 2] {
    let name = kept::name(slot);
    [format!("kept_{name}.safetensors"), format!("kept_{name}_value.safetensors")]
}

/// Tensors that can be listed, read out and set by name.
trait Tensors {
    fn list(&self, c: &Config) -> Vec<(String, Vec<usize>, Key)>;
    fn get(&self, c: &Config, key: Key) -> Vec<f32>;
    fn set(&mut self, c: &Config, key: Key, values: &[f32]);
}

#[derive(Clone, Copy)]
enum Key {
    Slot(params::Slot),
    A(usize, Target),
    B(usize, Target),
    ValueWeight,
    ValueBias,
}

impl Tensors for Params {
    fn list(&self, c: &Config) -> Vec<(String, Vec<usize>, Key)> {
        params::Slot::all(c).into_iter().map(|s| (s.hf_name(c), s.shape(c), Key::Slot(s))).collect()
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
            _ => Vec::new(),
        }
    }

    fn set(&mut self, _: &Config, key: Key, values: &[f32]) {
        match key {
            Key::A(layer, target) => self.write_a(layer, target, values),
            Key::B(layer, target) => self.write_b(layer, target, values),
            _ => {}
        }
    }
}

impl Tensors for ValueHead {
    fn list(&self, c: &Config) -> Vec<(String, Vec<usize>, Key)> {
        vec![
            ("value_head.weight".to_owned(), vec![1, c.width], Key::ValueWeight),
            ("value_head.bias".to_owned(), vec![1], Key::ValueBias),
        ]
    }

    fn get(&self, _: &Config, key: Key) -> Vec<f32> {
        match key {
            Key::ValueWeight => self.weight(),
            Key::ValueBias => vec![self.bias()],
            _ => Vec::new(),
        }
    }

    fn set(&mut self, _: &Config, key: Key, values: &[f32]) {
        match key {
            Key::ValueWeight => self.set_weight(values),
            Key::ValueBias => self.set_bias(values[0]),
            _ => {}
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
    /// - Holds: a value head is read where the engine and the checkpoint have one; where the checkpoint has none, the
    ///   engine's stays as it is.
    /// - Errors: as for [`Checkpoint::load`]; then the engine is as it was.
    pub fn load_weights(&mut self, folder: &Path) -> Result<(), PolicyError> {
        let c = self.exact();
        let weights = Checked::open(&folder.join(WEIGHTS), &c, self.stored())?;
        if self.value.is_some() && folder.join(VALUE).exists() {
            self.load_value_head(folder)?;
        }
        weights.set(&c, self.stored_mut())?;
        self.refresh();
        Ok(())
    }

    /// Reads only the value head of a checkpoint, which must have one: what a reward model is.
    ///
    /// - Errors: as for [`Checkpoint::load`], and an engine without a value head; then the engine is as it was.
    pub fn load_value_head(&mut self, folder: &Path) -> Result<(), PolicyError> {
        let c = self.exact();
        let none = || PolicyError::Unsupported("a value head is read into a policy without one".to_owned());
        let mut head = self.value.clone().ok_or_else(none)?;
        read(&folder.join(VALUE), &c, &mut head)?;
        self.value = Some(head);
        Ok(())
    }

    /// A slot as a checkpoint holds it.
    fn read_kept(&self, folder: &Path, slot: Slot, c: &Config) -> Result<Kept, PolicyError> {
        let [weights_file, value_file] = kept_files(slot).map(|name| folder.join(name));
        let weights = match &self.adapter {
            Some(adapter) => {
                let mut adapter = adapter.clone();
                read(&weights_file, c, &mut adapter)?;
                Weights::Adapter(Box::new(Some(adapter)))
            }
            None => {
                let mut params = Params::zeroed(&self.config, false);
                read(&weights_file, c, &mut params)?;
                let half = self.half.as_ref().map(|_| HalfParams::of(&self.cpu, &params));
                Weights::Full(Box::new((params, half)))
            }
        };
        let mut value = self.value.clone();
        if let Some(value) = &mut value {
            read(&value_file, c, value)?;
        }
        Ok(Kept { weights, value, moved: true })
    }
}

/// Checks and sets tensors that nothing else refers to yet.
fn read(path: &Path, c: &Config, tensors: &mut dyn Tensors) -> Result<(), PolicyError> {
    Checked::open(path, c, tensors)?.set(c, tensors)
}

/// Whether a checkpoint holds a value head.
pub fn has_value_head(folder: &Path) -> bool {
    folder.join(VALUE).exists()
}

impl Checkpoint for Engine {
    fn save(&self, folder: &Path) -> Result<(), PolicyError> {
        let c = self.exact();
        let put = |name: &str, tensors: &dyn Tensors| write(&folder.join(name), &c, tensors);
        put(WEIGHTS, self.stored())?;
        if let Some(value) = &self.value {
            put(VALUE, value)?;
        }
        if let Some(moments) = &self.moments {
            let (first, second): (&dyn Tensors, &dyn Tensors) = match &moments.weights {
                Weights::Full(m) => (&m.0, &m.1),
                Weights::Adapter(m) => (&m.0, &m.1),
            };
            put(FIRST, first)?;
            put(SECOND, second)?;
            if let Some(m) = &moments.value {
                put(VALUE_FIRST, &m.0)?;
                put(VALUE_SECOND, &m.1)?;
            }
        }
        let mut stored = Vec::new();
        for (slot, kept) in self.kept.iter().filter(|(_, kept)| kept.moved) {
            let [weights_file, value_file] = kept_files(*slot);
            match &kept.weights {
                Weights::Full(full) => put(&weights_file, &full.0)?,
                Weights::Adapter(adapter) => match adapter.as_ref() {
                    Some(adapter) => put(&weights_file, adapter)?,
                    // Frozen weights alone cannot have moved.
                    None => continue,
                },
            }
            if let Some(value) = &kept.value {
                put(&value_file, value)?;
            }
            stored.push(*slot);
        }
        let (trainable, value_head) = (self.trainable.clone(), self.value.is_some());
        let state = State { n_updates: self.n_updates, trainable, value_head, kept: stored };
        let path = folder.join(STATE);
        let text = serde_json::to_vec_pretty(&state).expect("numbers and names always serialise");
        std::fs::write(&path, text).map_err(|source| PolicyError::Io { path, source })
    }

    /// Holds: everything is read and checked before anything is set, so that after an error the engine is as it was. A
    /// slot that the checkpoint does not hold stays as it was filled before the first update, or is emptied.
    fn load(&mut self, folder: &Path) -> Result<(), PolicyError> {
        let path = folder.join(STATE);
        let bytes = std::fs::read(&path).map_err(|source| PolicyError::Io { path: path.clone(), source })?;
        let bad = |reason: String| PolicyError::Checkpoint { path: path.clone(), reason };
        let state: State = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        if state.trainable != self.trainable {
            let show = |t: &Trainable| serde_json::to_string(t).expect("names and numbers always serialise");
            return Err(bad(format!("needed `{}`, got `{}`", show(&self.trainable), show(&state.trainable))));
        }
        if state.value_head != self.value.is_some() {
            let show = |with: bool| if with { "a value head" } else { "no value head" };
            return Err(bad(format!("needed {}, got {}", show(self.value.is_some()), show(state.value_head))));
        }
        let c = self.exact();
        let weights = Checked::open(&folder.join(WEIGHTS), &c, self.stored())?;
        let mut value = self.value.clone();
        if let Some(value) = &mut value {
            read(&folder.join(VALUE), &c, value)?;
        }
        // Only a policy that was never updated may lack moments.
        let wanted = state.n_updates > 0 || folder.join(FIRST).exists();
        let with_value = self.value.is_some();
        let started = optimiser::start(&self.config, &self.trainable, self.adapter.as_ref(), with_value);
        let (grads, moments) = match started.filter(|_| wanted) {
            None => (Grads::default(), None),
            Some((grads, mut moments)) => {
                read_moments(folder, &c, &mut moments)?;
                (grads, Some(moments))
            }
        };
        let mut kept = BTreeMap::new();
        for slot in &state.kept {
            kept.insert(*slot, self.read_kept(folder, *slot, &c)?);
        }
        weights.set(&c, self.stored_mut())?;
        self.refresh();
        self.kept.retain(|_, kept| !kept.moved);
        self.kept.extend(kept);
        self.value = value;
        (self.grads, self.moments, self.n_updates) = (grads, moments, state.n_updates);
        Ok(())
    }
}

fn read_moments(folder: &Path, c: &Config, moments: &mut Moments) -> Result<(), PolicyError> {
    let (first, second): (&mut dyn Tensors, &mut dyn Tensors) = match &mut moments.weights {
        Weights::Full(m) => (&mut m.0, &mut m.1),
        Weights::Adapter(m) => (&mut m.0, &mut m.1),
    };
    read(&folder.join(FIRST), c, first)?;
    read(&folder.join(SECOND), c, second)?;
    if let Some(m) = &mut moments.value {
        read(&folder.join(VALUE_FIRST), c, &mut m.0)?;
        read(&folder.join(VALUE_SECOND), c, &mut m.1)?;
    }
    Ok(())
}
