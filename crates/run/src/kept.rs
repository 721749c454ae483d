//! The weights a run keeps beside its policy: where it began, the reference of its KL, its teacher.

use algo::{Reference, TeacherRule};
use policy::{Keep, Learner, PolicyError, Slot};

use crate::Settings;

/// A moment at which slots are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The model's own weights are there, and no checkpoint's.
    Loaded,
    /// The weights that the run begins with are there.
    Begun,
}

/// Fills the slots that are due.
pub(crate) fn keep(learner: &mut dyn Learner, settings: &Settings, moment: Moment) -> Result<(), PolicyError> {
    let algorithm = settings.algorithm.algorithm();
    let reference = algorithm.reference().map(|r| if r == Reference::Base { Moment::Loaded } else { Moment::Begun });
    let teacher = match algorithm.teacher() {
        Some(TeacherRule::Frozen | TeacherRule::Ema(_)) => Some(Moment::Begun),
        Some(TeacherRule::Current | TeacherRule::Model(_)) | None => None,
    };
    let start = (settings.checkpoint.kl_every > 0 && settings.data.is_none()).then_some(Moment::Begun);
    for (slot, due) in [(Slot::Start, start), (Slot::Reference, reference), (Slot::Teacher, teacher)] {
        if due == Some(moment) {
            learner.keep(slot, Keep::Now)?;
        }
    }
    Ok(())
}

/// Lets the slots that follow the policy do so, after a step.
pub(crate) fn follow(learner: &mut dyn Learner, settings: &Settings, step: u64) -> Result<(), PolicyError> {
    let algorithm = settings.algorithm.algorithm();
    match algorithm.reference() {
        Some(Reference::Ema(rate)) => learner.keep(Slot::Reference, Keep::Blend(rate))?,
        Some(Reference::EveryN(n)) if step.is_multiple_of(n) => learner.keep(Slot::Reference, Keep::Now)?,
        _ => {}
    }
    match algorithm.teacher() {
        Some(TeacherRule::Ema(rate)) => learner.keep(Slot::Teacher, Keep::Blend(rate)),
        _ => Ok(()),
    }
}
