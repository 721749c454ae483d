//! DAPO: GRPO for long reasoning, with more room upwards, every token counting the same, tasks redrawn until each has
//! something to compare, and a price on responses that come near their limit.
//!
//! Formula: A = (r − mean)/(std + `std_eps`) over the graded episodes of a task, r less the over-long penalty; loss
//! −min(ρA, clip(ρ, `ratio_min`, `ratio_max`)·A) with ρ = π/π_old, averaged over all tokens of the step. A group whose
//! rewards, as graded, are all equal is left out and another task drawn in its place.
//!
//! Source: arXiv:2503.14476: bounds 0.8 and 1.28, limit 20480 with a buffer of 4096 and a penalty of 1, no KL; sample
//! spread and `max_draws` are as in its public code. The limit is that of the paper's long responses: set `overlong` to the
//! run's own, or to `{}` for none. The paper makes several updates a step, `minibatch_groups`.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `max_draws` | 10 | tasks drawn for a step at most, as a multiple of those wanted |
//!
//! Needs: rewards, at least two graded episodes a task.
//!
//! Watch: how many tasks a step draws: when nearly all are solved or nearly none, most work is thrown away; entropy, which
//! the upper bound is to keep up; the length of responses.

use episode::Group;

use crate::method::Method;
use crate::settings::setting;
use crate::step::{Step, Worth};
use crate::{Admission, AlgoError, Overlong, Why};

settings! {
    /// The settings of DAPO; see the [module](self).
    pub struct Dapo {
        /// Tasks drawn for a step at most, as a multiple of those wanted.
        max_draws: u32 = 10,
    }
    shares {
        spread, clip = 0.8 to 1.28, reduction = TokenMean, kl = K3 in Loss, entropy, correction, select, truncated,
        overlong = Overlong { limit: Some(20_480), buffer: Some(4096), factor: Some(1.0) }, updates,
    }
}

impl Method for Dapo {
    const NEEDED: usize = 2;

    fn settle(&mut self) -> Result<(), AlgoError> {
        setting("max_draws", f64::from(self.max_draws), self.max_draws >= 1, "a whole number at least 1")
    }

    fn admit(&self, group: &Group) -> Admission {
        if group.has_spread() { Admission::Keep } else { Admission::DrawMore(Why::NoSpread) }
    }

    fn admit_few(&self, why: Why) -> Admission {
        Admission::DrawMore(why)
    }

    fn max_draws(&self) -> usize {
        self.max_draws as usize
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        Ok(step.compare_by_spread(Self::NEEDED))
    }
}
