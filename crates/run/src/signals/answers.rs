//! Answers what an algorithm wants to know about the groups from what their lines say.

use algo::{Algorithm, Answers, Asked, Now, PerSequence, Request};
use episode::{Group, Message};
use loss::{Teacher, TokenValues, Top};

use super::given::Given;
use super::recorded::Place;
use super::shape::Tops;

/// A field that an answer needs, and a line that lacks it.
#[derive(Debug)]
pub(super) struct Lacking {
    pub(super) field: &'static str,
    pub(super) line: usize,
}

/// Asks the algorithm for requests, and answers them, until there are none.
pub(super) fn answers(
    algorithm: &dyn Algorithm,
    groups: &[Group],
    given: &[&[Given]],
    version: u32,
) -> Result<Answers, Lacking> {
    let mut answers = Answers { version: Some(version), ..Answers::new() };
    let asking = Asking { groups, places: Place::all(groups, given) };
    let is_asked: Vec<bool> = groups.iter().map(|group| algorithm.asks_about(group)).collect();
    loop {
        let requests = algorithm.requests(groups, &answers);
        if requests.is_empty() {
            break;
        }
        for request in requests {
            match request {
                Request::Reference => {
                    let reference = |place: &Place<'_>| list(place, "logp_ref", place.given.logp_ref.as_deref());
                    answers.reference = Some(asking.ask(&is_asked, reference)?);
                }
                Request::Now(wanted) => answers.now = Some(asking.ask(&is_asked, |place| now(place, wanted))?),
                Request::Teacher(asked) => {
                    answers.teacher = Some(asking.ask(&is_asked, |place| teacher(place, &asked))?);
                }
                // Nobody is there to make them.
                Request::Attempts(_) => return Err(Lacking { field: "further attempts", line: 1 }),
            }
        }
    }
    // A line that tells π_old apart from what was recorded is heard even where no rule compares the two.
    if answers.now.is_none() && asking.places.iter().any(|place| place.given.logp_old.is_some()) {
        answers.now = asking.ask(&vec![true; groups.len()], |place| now(place, Now::default())).ok();
    }
    Ok(answers)
}

/// The sequences that are asked about.
struct Asking<'a> {
    groups: &'a [Group],
    places: Vec<Place<'a>>,
}

impl Asking<'_> {
    /// Something for each sequence of the graded episodes of the groups that are asked about; for the other groups
    /// nothing.
    fn ask<T: Default>(
        &self,
        is_asked: &[bool],
        of: impl Fn(&Place<'_>) -> Result<T, Lacking>,
    ) -> Result<PerSequence<T>, Lacking> {
        let blank = |(group, is_asked): (&Group, &bool)| match is_asked {
            true => group.episodes.iter().map(|_| Vec::new()).collect(),
            false => Vec::new(),
        };
        let mut all: PerSequence<T> = self.groups.iter().zip(is_asked).map(blank).collect();
        for place in self.places.iter().filter(|place| is_asked[place.at.0]) {
            let (g, e, _) = place.at;
            let is_graded = self.groups[g].episodes[e].outcome.reward().is_some();
            all[g][e].push(if is_graded { of(place)? } else { T::default() });
        }
        Ok(all)
    }
}

/// The policy as the step begins.
fn now(place: &Place<'_>, wanted: Now) -> Result<TokenValues, Lacking> {
    let given = place.given;
    Ok(TokenValues {
        logp: list(place, "logp_sampler", given.old())?,
        // Whether the algorithm reads it cannot be seen here; it says so itself where it is missing.
        entropy: given.entropy.as_deref().map_or_else(Vec::new, |entropy| place.part(entropy).to_vec()),
        value: if wanted.value { list(place, "value", given.value.as_deref())? } else { Vec::new() },
        top: if wanted.top_k > 0 { Some(top(place, "topk.logp", Tops::old)?) } else { None },
    })
}

/// The teacher; absent where it is not asked.
fn teacher(place: &Place<'_>, asked: &Asked) -> Result<Option<Teacher>, Lacking> {
    let (g, e, _) = place.at;
    let context = |all: &Vec<Vec<Option<Vec<Message>>>>| all.get(g)?.get(e)?.as_ref().map(|_| ());
    if asked.contexts.as_ref().is_some_and(|all| context(all).is_none()) {
        return Ok(None);
    }
    let logp = list(place, "logp_teacher", place.given.logp_teacher.as_deref())?;
    let top = if asked.top { Some(top(place, "topk.logp_teacher", Tops::teacher)?) } else { None };
    Ok(Some(Teacher { logp, top }))
}

/// A sequence's part of a list; where nothing was sampled none is needed.
fn list(place: &Place<'_>, field: &'static str, list: Option<&[f32]>) -> Result<Vec<f32>, Lacking> {
    match list {
        Some(list) => Ok(place.part(list).to_vec()),
        None if place.sequence.n_sampled() == 0 => Ok(vec![0.0; place.sequence.len()]),
        None => Err(lacking(place, field)),
    }
}

/// A sequence's part of a list of other tokens; where nothing was sampled none is needed.
fn top(place: &Place<'_>, field: &'static str, list: impl Fn(&Tops) -> Option<&[f32]>) -> Result<Top, Lacking> {
    match place.given.top.as_ref().and_then(|top| place.top(list(top)?)) {
        Some(top) => Ok(top),
        None if place.sequence.n_sampled() == 0 => Ok(Top::default()),
        None => Err(lacking(place, field)),
    }
}

fn lacking(place: &Place<'_>, field: &'static str) -> Lacking {
    Lacking { field, line: place.given.line }
}
