//! Proximal policy optimisation with a value head: a token is worth how much better things went than was expected.
//!
//! Formula: δ_t = r_t + γ·V_{t+1} − V_t and A_t = δ_t + γλ·A_{t+1} over an episode's sampled tokens alone, whatever lies
//! between them, with V = 0 after the last; r as in `reinforce_pp`. The value head learns R_t = A_t + V_t, by
//! `value_coefficient` · ½·max((V − R)², (clip(V, V_old ± `value_clip`) − R)²). With `whiten` A is then centred and scaled
//! over the step's sampled tokens. Loss −min(ρA, clip(ρ, `ratio_min`, `ratio_max`)·A) with ρ = π/π_old.
//!
//! Source: arXiv:1707.06347, with its λ = 0.95 and a value loss that counts as much as the policy's (its c₁ = 1); advantages
//! arXiv:1506.02438. On language models arXiv:2203.02155 has γ = 1, bounds of 0.2, one pass over a step and a KL in the
//! reward, token by token; the default here is none. The bound on values, and whitening where it is wanted, are as commonly
//! implemented; dual clip is arXiv:1912.09729.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `gamma` | 1 | what a later reward is discounted by, a sampled token at a time |
//! | `lambda` | 0.95 | from 0, which trusts the values, to 1, which trusts what happened |
//! | `whiten` | false | centre and scale the advantages over the step |
//! | `value_clip` | 0.2 | how far a value may move in a step before its error stops counting; `inf` for no bound |
//! | `value_coefficient` | 1 | how much the value head's loss counts beside the policy's |
//!
//! Needs: rewards; a value head, and its estimates from a pass through the policy when the step begins; works with one
//! attempt a task.
//!
//! Watch: the value loss, which must fall before advantages mean anything; `clip_share`; the policy's KL.

use loss::ValueLoss;

use crate::assemble::whole;
use crate::method::Method;
use crate::returns::{by_token, generalised, lay_out};
use crate::settings::setting;
use crate::step::{Step, Worth, sampled};
use crate::{AlgoError, Now};

settings! {
    /// The settings of PPO; see the [module](self).
    pub struct Ppo {
        /// What a later reward is discounted by.
        gamma: f64 = 1.0,
        /// From 0, which trusts the values, to 1, which trusts what happened.
        lambda: f64 = 0.95,
        /// Whether advantages are centred and scaled over the step.
        whiten: bool = false,
        /// How far a value may move in a step before its error stops counting; infinite for no bound.
        value_clip: f64 = 0.2,
        /// How much the value head's loss counts beside the policy's.
        value_coefficient: f64 = 1.0,
    }
    shares {
        clip = 0.8 to 1.2, reduction = TokenMean, kl = K1 in Reward, entropy, correction, select, truncated, overlong, updates,
    }
}

impl Method for Ppo {
    const NEEDED: usize = 1;
    const BY_TOKEN: bool = true;

    fn settle(&mut self) -> Result<(), AlgoError> {
        setting("gamma", self.gamma, (0.0..=1.0).contains(&self.gamma), "a number from 0 to 1")?;
        setting("lambda", self.lambda, (0.0..=1.0).contains(&self.lambda), "a number from 0 to 1")?;
        setting("value_clip", self.value_clip, self.value_clip > 0.0, "a number above 0, or `inf`")?;
        let c = self.value_coefficient;
        setting("value_coefficient", c, c.is_finite() && c > 0.0, "a finite number above 0")
    }

    fn value_loss(&self) -> Option<ValueLoss> {
        let clip = self.value_clip.is_finite().then_some(self.value_clip);
        Some(ValueLoss { clip, coefficient: self.value_coefficient })
    }

    fn now(&self) -> Option<Now> {
        Some(Now { value: true, top_k: 0 })
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        // In the order in which episodes are asked about, which is that of the graded ones.
        let mut targets = Vec::new();
        let mut all = by_token(step, self.whiten, |(g, e), rewards| {
            let group = &step.groups[g];
            let episode = &group.episodes[e];
            let mut values = Vec::with_capacity(rewards.len());
            for (s, sequence) in episode.sequences.iter().enumerate() {
                let at = (g, e, s);
                let found = step.answers.now_of(at).map(|now| now.value.as_slice());
                let found = whole("now.value", found, group, at, sequence.len())?;
                values.extend(sampled(sequence).map(|t| f64::from(found[t])));
            }
            let advantages = generalised(&rewards, &values, self.gamma, self.lambda);
            let returns: Vec<f64> = advantages.iter().zip(&values).map(|(a, v)| a + v).collect();
            let (old, returns) = (lay_out(episode, &values), lay_out(episode, &returns));
            let target = |(old, returns)| loss::ValueTarget { old, returns };
            targets.push(old.into_iter().zip(returns).map(target).collect::<Vec<_>>());
            Ok(advantages)
        })?;
        for (worth, target) in all.iter_mut().flatten().flatten().zip(targets) {
            worth.value = Some(target);
        }
        Ok(all)
    }
}
