//! Direct preference optimisation: the better of two answers becomes likelier than the worse one, measured from a reference.
//!
//! Formula: −log σ(β · (log π(y⁺)/ref(y⁺) − log π(y⁻)/ref(y⁻))) a pair, log-probabilities summed over an answer's tokens;
//! mean over pairs. Summed and not averaged, which is what the derivation has: length counts.
//!
//! Source: arXiv:2305.18290, β = 0.1. The reference has the weights the run began with.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `beta` | 0.1 | how strongly the reference holds |
//! | `pairs` | `best_worst` | of attempts with rewards: `best_worst` makes one pair a task; `ranked` puts the best against the worst, the second best against the second worst, and so on while rewards differ |
//!
//! Needs: given pairs, or rewards with a spread over the attempts at a task; reference log-probabilities.
//!
//! Watch: held-out accuracy; the margin and accuracy of pairs (`pair_margin`, `pair_accuracy`), since both answers may
//! become less likely while their difference grows.

use episode::Group;
use loss::{Reduction, Term};

use crate::method::Method;
use crate::pairs::Pairs;
use crate::step::{Step, Worth};
use crate::{AlgoError, Data, Reference};

settings! {
    /// The settings of DPO; see the [module](self).
    pub struct Dpo {
        /// How strongly the reference holds.
        beta: f64 = 0.1,
        /// Which attempts are put against each other.
        pairs: Pairs = Pairs::BestWorst,
    }
    shares { updates, }
}

impl Method for Dpo {
    const NEEDED: usize = 2;

    fn term(&self) -> Term {
        Term::Dpo(loss::Dpo { beta: self.beta })
    }

    fn reduction(&self) -> Result<Reduction, AlgoError> {
        Ok(Reduction::PairMean)
    }

    fn data(&self) -> Data {
        Data::EpisodesOrPairs
    }

    fn reference(&self) -> Option<Reference> {
        Some(Reference::Frozen)
    }

    fn asks_about(&self, group: &Group) -> bool {
        Pairs::any(group)
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(self.pairs.worth(step))
    }
}
