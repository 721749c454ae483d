//! On-policy distillation: the policy speaks, and another model says of every token how likely it finds it.
//!
//! Formula: A_t = −`coefficient` · (log π_old − log π_T), π_T being the teacher on the very same tokens; loss −min(ρA, clip(ρ,
//! `ratio_min`, `ratio_max`)·A) with ρ = π/π_old. Its expected gradient descends KL(π‖teacher): the policy seeks what the
//! teacher would say rather than covering all of it. No reward is read beyond the episode being graded at all.
//!
//! Source: arXiv:2306.13649 for learning from the policy's own words; the estimate token by token, without looking ahead,
//! K. Lu and Thinking Machines Lab, "On-policy distillation", 2025. Bounds of the ratio, which is 1 on the first update of a
//! step, are as commonly implemented.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `teacher` | none, needed in a run | a model's name or path, with the policy's own tokenizer; no endpoint |
//! | `coefficient` | 1 | what the difference is multiplied with |
//!
//! Needs: the teacher's log-probabilities of every sampled token; works with one attempt a task.
//!
//! Watch: the mean of log π − log π_T; held-out accuracy beside the teacher's own.

use episode::Group;

use crate::assemble::whole;
use crate::method::Method;
use crate::settings::setting;
use crate::step::{Step, Worth, sampled};
use crate::{AlgoError, Answers, Asked, TeacherRule};

settings! {
    /// The settings of on-policy distillation; see the [module](self).
    pub struct Distill {
        /// A model's name or path.
        #[serde(skip_serializing_if = "Option::is_none")]
        teacher: Option<String> = None,
        /// What the difference is multiplied with.
        coefficient: f64 = 1.0,
    }
    shares { clip = 0.8 to 1.2, reduction = TokenMean, entropy, correction, select, updates, }
}

impl Method for Distill {
    const NEEDED: usize = 1;

    fn settle(&mut self) -> Result<(), AlgoError> {
        let c = self.coefficient;
        setting("coefficient", c, c.is_finite() && c > 0.0, "a finite number above 0")
    }

    fn check_run(&self) -> Result<(), AlgoError> {
        match self.teacher {
            Some(_) => Ok(()),
            None => Err(AlgoError::Needed { key: "teacher", with: "`distill`".to_owned() }),
        }
    }

    fn asked(&self, _groups: &[Group], _answers: &Answers) -> Option<Asked> {
        Some(Asked { contexts: None, top: false })
    }

    fn teacher(&self) -> Option<TeacherRule> {
        self.teacher.clone().map(TeacherRule::Model)
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        step.each(|step, (g, e), _| {
            let group = &step.groups[g];
            let mut all = Vec::with_capacity(group.episodes[e].sequences.len());
            for (s, sequence) in group.episodes[e].sequences.iter().enumerate() {
                let at = (g, e, s);
                let found = step.answers.teacher_of(at).map(|t| t.logp.as_slice());
                let teacher = whole("teacher", found, group, at, sequence.len())?;
                let old = step.old(at, sequence)?;
                let mut own = vec![0.0; sequence.len()];
                for t in sampled(sequence) {
                    own[t] = (-self.coefficient * (f64::from(old[t]) - f64::from(teacher[t]))) as f32;
                }
                all.push(own);
            }
            Ok(Some(Worth::each(all)))
        })
    }
}
