//! What an algorithm adds to what all of them do: its own settings, its term, and what an episode is worth to it.
//!
//! Everything that implements [`Method`] is an [`Algorithm`]. One that does not fit implements [`Algorithm`] itself.

use episode::{Episode, Group};
use loss::{Loss, Reduction, Term, ValueLoss};

use crate::advantage::all_equal;
use crate::assemble::{Assembly, given};
use crate::shared::Shares;
use crate::step::{Step, Worth};
use crate::{
    Admission, AlgoError, Algorithm, Answers, Asked, Data, Flat, Now, Reference, Request, Signals, TeacherRule, Why,
};

/// The name in the table; written by `algorithms!`.
pub(crate) trait Named {
    const NAME: &'static str;
}

/// What an algorithm adds.
pub(crate) trait Method: Named + Shares {
    /// Graded episodes of a task without which the task is left out.
    const NEEDED: usize;

    /// Whether tokens have rewards of their own, so that a KL in the reward stays with its token.
    const BY_TOKEN: bool = false;

    /// Fills in its own settings, and refuses those that make no sense.
    fn settle(&mut self) -> Result<(), AlgoError> {
        Ok(())
    }

    /// Refuses settings that are only needed where there is a run.
    fn check_run(&self) -> Result<(), AlgoError> {
        Ok(())
    }

    /// What is descended; the clipped surrogate with the shared bounds unless it says otherwise.
    fn term(&self) -> Term {
        Term::PolicyGradient(self.common().clip)
    }

    /// How tokens become one number.
    fn reduction(&self) -> Result<Reduction, AlgoError> {
        let common = self.common();
        common.reduction.with(common.horizon)
    }

    /// What a value head descends.
    fn value_loss(&self) -> Option<ValueLoss> {
        None
    }

    /// Whether the policy needs a head that estimates values.
    fn value_head(&self) -> bool {
        self.value_loss().is_some()
    }

    /// Where its episodes may come from.
    fn data(&self) -> Data {
        Data::Episodes
    }

    /// What becomes of a group with enough graded episodes.
    fn admit(&self, _group: &Group) -> Admission {
        Admission::Keep
    }

    /// What becomes of a group with too few of them.
    fn admit_few(&self, why: Why) -> Admission {
        Admission::Drop(why)
    }

    /// Tasks drawn for a step at most, as a multiple of those wanted.
    fn max_draws(&self) -> usize {
        crate::MAX_DRAWS
    }

    /// Which weights a reference stands for.
    fn reference(&self) -> Option<Reference> {
        self.common().kl.reference()
    }

    /// Whether what is requested is needed of a group.
    fn asks_about(&self, group: &Group) -> bool {
        let common = self.common();
        if common.flat == Flat::Keep {
            return true;
        }
        // A KL in the reward, which would have to be asked for first, does not go with `drop`.
        let (groups, answers) = (std::slice::from_ref(group), Answers::new());
        let step = Step::new(groups, &answers, common, Self::BY_TOKEN);
        step.map_or(true, |step| !step.leaves_out(0, Self::NEEDED))
    }

    /// What is asked of the policy as the step begins.
    fn now(&self) -> Option<Now> {
        let common = self.common();
        (common.correction.needs_forward() || common.select.needs_entropy()).then(Now::default)
    }

    /// What is asked of a teacher, once what it depends on is answered.
    fn asked(&self, _groups: &[Group], _answers: &Answers) -> Option<Asked> {
        None
    }

    /// Who the teacher is.
    fn teacher(&self) -> Option<TeacherRule> {
        None
    }

    /// What each episode is worth, by group and episode; absent for those that are nowhere.
    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError>;

    /// A checked loss.
    fn loss(&self) -> Result<Loss, AlgoError> {
        self.common().loss(self.term(), self.reduction()?, self.value_loss())
    }
}

impl<M: Method> Algorithm for M {
    fn resolve(&mut self) -> Result<(), AlgoError> {
        self.fill()?;
        self.settle()?;
        let loss = self.loss()?;
        self.common().check(M::NAME, &loss)
    }

    fn check(&self, group_size: usize) -> Result<(), AlgoError> {
        let hint = match M::NEEDED {
            0 | 1 => "",
            _ => ", since it compares the attempts at one task; `reinforce` works with 1",
        };
        if group_size < M::NEEDED {
            return Err(AlgoError::GroupSize { algorithm: M::NAME, needed: M::NEEDED, got: group_size, hint });
        }
        self.check_run()
    }

    fn data(&self) -> Data {
        Method::data(self)
    }

    fn value_head(&self) -> bool {
        Method::value_head(self)
    }

    fn admit(&self, group: &Group) -> Admission {
        match too_few(group, M::NEEDED) {
            Some(why) => self.admit_few(why),
            None => Method::admit(self, group),
        }
    }

    fn max_draws(&self) -> usize {
        Method::max_draws(self)
    }

    fn requests(&self, groups: &[Group], answers: &Answers) -> Vec<Request> {
        let graded = |e: &Episode| e.outcome.reward().is_some();
        if !groups.iter().any(|g| g.episodes.iter().any(graded) && Method::asks_about(self, g)) {
            return Vec::new();
        }
        let mut requests = Vec::new();
        if answers.reference.is_none() && Method::reference(self).is_some() {
            requests.push(Request::Reference);
        }
        if let (None, Some(now)) = (&answers.now, self.now()) {
            requests.push(Request::Now(now));
        }
        if answers.teacher.is_none() {
            requests.extend(self.asked(groups, answers).map(Request::Teacher));
        }
        requests
    }

    fn reference(&self) -> Option<Reference> {
        Method::reference(self)
    }

    fn teacher(&self) -> Option<TeacherRule> {
        Method::teacher(self)
    }

    fn asks_about(&self, group: &Group) -> bool {
        Method::asks_about(self, group)
    }

    fn signals(&self, groups: &[Group], answers: &Answers) -> Result<Signals, AlgoError> {
        let mut step = Step::new(groups, answers, self.common(), M::BY_TOKEN)?;
        let worth = self.worth(&mut step)?;
        let Step { common, dropped, .. } = step;
        let data = Method::data(self);
        let assembly = Assembly { groups, answers, loss: self.loss()?, common, given: given(data), dropped };
        assembly.finish(worth)
    }
}

/// Why a group is too small for a comparison, if it is.
pub(crate) fn too_few(group: &Group, needed: usize) -> Option<Why> {
    let (got, of) = (group.rewards().len(), group.episodes.len());
    (got < needed).then_some(Why::TooFewGraded { needed, got, of })
}

/// Why comparing a group's episodes says nothing, if it does not.
pub(crate) fn why_nothing(group: &Group, graded: &[f64], needed: usize) -> Option<Why> {
    too_few(group, needed).or_else(|| all_equal(graded).then_some(Why::NoSpread))
}
