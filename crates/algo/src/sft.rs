//! Supervised fine-tuning: every given token is worth the same.
//!
//! Formula: loss −log π on the tokens marked as sampled, which are those the policy would have said, its stop token
//! included. No reward is read beyond the episode being graded at all.
//!
//! Source: maximum likelihood on demonstrations, as in arXiv:2203.02155, section 3.5.
//!
//! Needs: episodes whose target tokens are marked as sampled; what is recorded as their log-probability is not read.
//!
//! Watch: the loss, here a true one; held-out accuracy, since it goes on falling after that has turned.

use loss::{Nll, Term};

use crate::method::Method;
use crate::step::{Step, Worth};
use crate::{AlgoError, Data};

settings! {
    /// The settings of supervised fine-tuning; see the [module](self).
    pub struct Sft {}
    shares { reduction = TokenMean, }
}

impl Method for Sft {
    const NEEDED: usize = 1;

    fn term(&self) -> Term {
        Term::Nll(Nll {})
    }

    fn data(&self) -> Data {
        Data::Answers
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.alone(|_| 1.0))
    }
}
