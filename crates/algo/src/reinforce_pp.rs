//! REINFORCE++: a token is worth all that followed it, whitened over the whole step instead of compared within a task.
//!
//! Formula: A_t = Σ_{s ≥ t} γ^{s−t} · r_s over an episode's sampled tokens, where r holds each turn's own reward at its
//! last token, the rest of the episode's at the very last one, and −`kl.coefficient` · KL at each (`kl.place = "reward"`);
//! then A ← (A − mean)/std over all sampled tokens of the step, those that weigh nothing excluded. Loss −min(ρA, clip(ρ,
//! `ratio_min`, `ratio_max`)·A) with ρ = π/π_old.
//!
//! Source: arXiv:2501.03262, with γ = 1 and bounds of 0.2. It pays a KL in the reward, token by token; the default here
//! is none. The spread over n and the token mean are as commonly implemented.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `gamma` | 1 | what a later reward is discounted by, a sampled token at a time |
//! | `whiten` | true | centre and scale the advantages over the step |
//!
//! Needs: rewards; works with one attempt a task; reference log-probabilities with a KL.
//!
//! Watch: the mean reward of a step: an easy task is worth less than nothing beside a hard one, whatever was tried at it;
//! `clip_share`.

use crate::AlgoError;
use crate::method::Method;
use crate::returns::{by_token, to_go};
use crate::settings::setting;
use crate::step::{Step, Worth};

settings! {
    /// The settings of REINFORCE++; see the [module](self).
    pub struct ReinforcePp {
        /// What a later reward is discounted by.
        gamma: f64 = 1.0,
        /// Whether advantages are centred and scaled over the step.
        whiten: bool = true,
    }
    shares {
        clip = 0.8 to 1.2, reduction = TokenMean, kl = K1 in Reward, entropy, correction, select, truncated, overlong, updates,
    }
}

impl Method for ReinforcePp {
    const NEEDED: usize = 1;
    const BY_TOKEN: bool = true;

    fn settle(&mut self) -> Result<(), AlgoError> {
        setting("gamma", self.gamma, (0.0..=1.0).contains(&self.gamma), "a number from 0 to 1")
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        by_token(step, self.whiten, |_, rewards| Ok(to_go(&rewards, self.gamma)))
    }
}
