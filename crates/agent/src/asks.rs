//! Who is asked when the gate wants an approval.

use gate::Pending;

/// Asks a person or a program for an approval, in a terminal or elsewhere.
pub trait Asks: Send + Sync {
    /// Waits until a pending approval was answered, or gives up.
    ///
    /// What it returns is only whether it is worth asking the gate again: the answer itself is in the gate's own record,
    /// where whoever answered put it.
    fn ask(&self, pending: &Pending) -> bool;
}
