//! Which walls this system has, known before anything runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use crate::Rules;

/// One wall a confined program stands behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Own user, mount, process, network, message and host-name namespaces: nothing outside is visible, and everything in
    /// them dies with their first process, which dies with this one.
    Namespaces,
    /// Landlock over files.
    Files,
    /// Landlock over binding and connecting TCP.
    Network,
    /// Landlock over abstract unix sockets and signals.
    Scopes,
    /// Seccomp: system calls that no tool needs and that widen the kernel's surface do not exist.
    SystemCalls,
    /// A bound on the number of processes that holds for this user.
    Processes,
}

impl Layer {
    /// Every layer, outermost first.
    pub const ALL: [Layer; 6] =
        [Layer::Namespaces, Layer::Files, Layer::Network, Layer::Scopes, Layer::SystemCalls, Layer::Processes];

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Namespaces => "namespaces",
            Layer::Files => "files",
            Layer::Network => "network",
            Layer::Scopes => "scopes",
            Layer::SystemCalls => "system-calls",
            Layer::Processes => "processes",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was found when the layers were tried; printed, one line a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    /// Why, for each layer that is not there.
    pub(crate) absent: BTreeMap<Layer, String>,
    /// The version of Landlock's interface, 0 for none.
    pub(crate) landlock: i32,
    /// Whether a confined program gets a `/proc` of its own; without it has none.
    pub(crate) own_proc: bool,
}

impl Layers {
    /// Whether a layer is there.
    pub fn has(&self, layer: Layer) -> bool {
        !self.absent.contains_key(&layer)
    }

    /// The layers that are not there, with the reason.
    pub fn absent(&self) -> impl Iterator<Item = (Layer, &str)> {
        self.absent.iter().map(|(layer, why)| (*layer, why.as_str()))
    }

    /// The layers that these rules need, that are not there, and that they do not allow to be missing.
    ///
    /// A wall that another one stands behind is not needed twice: with namespaces Landlock's network and scopes are the
    /// second wall, except that a program with the machine's network sees its abstract sockets.
    pub fn missing(&self, rules: &Rules) -> Vec<Layer> {
        let alone = !self.has(Layer::Namespaces);
        let needs = |layer: &Layer| match layer {
            Layer::Namespaces | Layer::Files | Layer::SystemCalls | Layer::Processes => true,
            // Without a network the system calls' wall lets no internet socket be made at all.
            Layer::Network => alone && !rules.network && !self.has(Layer::SystemCalls),
            Layer::Scopes => alone || rules.network,
        };
        Layer::ALL.into_iter().filter(|l| needs(l) && !self.has(*l) && !rules.allow_missing.contains(l)).collect()
    }

    /// Names and reasons of some layers, for a message.
    pub(crate) fn reasons(&self, layers: &[Layer]) -> String {
        let one = |layer: &Layer| format!("`{layer}` ({})", self.absent.get(layer).map_or("", String::as_str));
        layers.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for layer in Layer::ALL {
            match self.absent.get(&layer) {
                Some(why) => writeln!(f, "{layer}: missing, {why}")?,
                None => writeln!(f, "{layer}: there")?,
            }
        }
        writeln!(f, "landlock's interface: {}", self.landlock)?;
        writeln!(f, "own /proc: {}", if self.own_proc { "there" } else { "none" })
    }
}

/// Tries every layer once in this process and remembers what was found.
///
/// - Holds: a layer found here that fails later is still an error of that run, never a run without it.
pub fn layers() -> &'static Layers {
    // What the kernel offers is a fact of the machine; trying costs as much as a start.
    static FOUND: OnceLock<Layers> = OnceLock::new();
    FOUND.get_or_init(crate::confine::probe)
}
