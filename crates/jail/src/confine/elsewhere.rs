//! Systems without these walls: nothing is confined there, so nothing confined is started.

use std::collections::BTreeMap;
use std::convert::Infallible;

use rustix::process::Pid;

use super::Pipes;
use crate::{JailError, Layer, Layers, Rules, Spec};

/// A confined program; there is none.
pub(crate) struct Jailed(Infallible);

impl Jailed {
    pub(crate) fn pid(&self) -> Pid {
        match self.0 {}
    }

    pub(crate) fn kill(&self) {
        match self.0 {}
    }

    pub(crate) fn end(&mut self) {
        match self.0 {}
    }
}

pub(crate) fn start(spec: &Spec, _: &Rules, layers: &Layers) -> Result<(Jailed, Pipes), JailError> {
    Err(JailError::Missing { program: spec.name(), layers: layers.reasons(&Layer::ALL) })
}

pub(crate) fn probe() -> Layers {
    let why = "only Linux has it".to_owned();
    let absent: BTreeMap<_, _> = Layer::ALL.into_iter().map(|layer| (layer, why.clone())).collect();
    Layers { absent, landlock: 0, own_proc: false }
}
