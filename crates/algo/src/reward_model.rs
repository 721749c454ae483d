//! A reward model: a score for an answer, learned from which of two was preferred.
//!
//! Formula: −log σ(s(y⁺) − s(y⁻)) a pair, s being what the value head says when it has read an answer's last token; mean
//! over pairs. Only differences are learned: a score has no zero of its own.
//!
//! Source: the Bradley–Terry model (Biometrika 39, 1952), as in arXiv:2203.02155, section 3.5. One score an answer.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `pairs` | `best_worst` | of attempts with rewards: `best_worst` makes one pair a task; `ranked` puts the best against the worst, the second best against the second worst, and so on while rewards differ |
//!
//! Needs: given pairs, or rewards with a spread over the attempts at a task; a value head.
//!
//! Watch: held-out accuracy, as the loss goes on falling after that has turned; whether length alone explains the score.

use episode::Group;
use loss::{Reduction, Term};

use crate::method::Method;
use crate::pairs::Pairs;
use crate::step::{Step, Worth};
use crate::{AlgoError, Data};

settings! {
    /// The settings of a reward model; see the [module](self).
    pub struct RewardModel {
        /// Which attempts are put against each other.
        pairs: Pairs = Pairs::BestWorst,
    }
    shares { updates, }
}

impl Method for RewardModel {
    const NEEDED: usize = 2;

    fn term(&self) -> Term {
        Term::BradleyTerry(loss::BradleyTerry {})
    }

    fn reduction(&self) -> Result<Reduction, AlgoError> {
        Ok(Reduction::PairMean)
    }

    fn value_head(&self) -> bool {
        true
    }

    fn data(&self) -> Data {
        Data::EpisodesOrPairs
    }

    fn asks_about(&self, group: &Group) -> bool {
        Pairs::any(group)
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(self.pairs.worth(step))
    }
}
