//! Answers what an algorithm wants to know about a step's groups.

use algo::{Answers, Request};
use episode::{Group, Token};
use policy::{Ask, Learner, PolicyError, Slot, TokenValues, Under, values};

use crate::Settings;

/// Asks the algorithm for requests, and answers them, until there are none.
///
/// - Holds: only groups that the algorithm asks about are computed; the others' answers stay empty.
pub(crate) fn fulfil(
    learner: &mut dyn Learner,
    settings: &Settings,
    groups: &[Group],
    banned: &[Token],
) -> Result<Answers, PolicyError> {
    let algorithm = settings.algorithm.algorithm();
    let mut answers = Answers::new();
    loop {
        let requests = algorithm.requests(groups, &answers);
        if requests.is_empty() {
            return Ok(answers);
        }
        let asked: Vec<Group> = groups.iter().filter(|g| algorithm.asks_about(g)).cloned().collect();
        let mut ask = |under| -> Result<Vec<Vec<Vec<TokenValues>>>, PolicyError> {
            let found = values(learner, &Ask::plain(under), &asked, settings.sampling.temperature, banned)?;
            let mut found = found.into_iter();
            let of = |g: &Group| if algorithm.asks_about(g) { found.next().unwrap_or_default() } else { Vec::new() };
            Ok(groups.iter().map(of).collect())
        };
        for request in requests {
            match request {
                Request::Reference => {
                    let logp = |episode: Vec<TokenValues>| episode.into_iter().map(|v| v.logp).collect();
                    let found = ask(Under::Kept(Slot::Reference))?.into_iter();
                    answers.reference = Some(found.map(|g| g.into_iter().map(logp).collect()).collect());
                }
                Request::Now(_) => answers.now = Some(ask(Under::Now)?),
                Request::Teacher(_) => {
                    return Err(PolicyError::Unsupported("no teacher answers here".to_owned()));
                }
            }
        }
    }
}
