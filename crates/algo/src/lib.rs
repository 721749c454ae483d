//! Algorithms: finished episodes in, what each token is worth out. One file each.
//!
//! An [`Algorithm`] is three pure methods. [`Algorithm::admit`] says of each group as it finishes whether to keep it;
//! [`Algorithm::requests`] says what it wants to know about the groups, asked again until it wants nothing;
//! [`Algorithm::signals`] says what each token is worth and which loss to descend. It knows no tensors, files or clocks,
//! and the trainer knows no algorithms.
//!
//! A new one is a file and a line in the table: `settings!` writes its settings from its own and the bundles it shares, and
//! `Method` asks for its term and for what an episode is worth; requests, penalties, masks, selections and the layout by
//! token are the same for all.
//!
//! What is counted how: group statistics count graded episodes, reductions count tokens. Failed and cancelled episodes
//! are in neither. An episode of several sequences has one reward, which all its sampled tokens share.

/// Makes, from one line an algorithm: its module, its place in the tagged settings, the registry and the docs.
macro_rules! algorithms {
    ($($name:literal => $module:ident :: $Type:ident,)+) => {
        $(pub mod $module;)+

        /// The settings of one algorithm, tagged by `kind`.
        ///
        /// - Holds: parses the tag, then exactly that algorithm's keys, then resolves: what serialises is what will run.
        /// - Errors: an unknown kind or key is refused with the known ones; a key that would do nothing is refused.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", remote = "Self")]
        pub enum Settings {
            $(
                #[doc = concat!("`", $name, "`: see [`mod@", stringify!($module), "`].")]
                #[serde(rename = $name)]
                $Type($module::$Type),
            )+
        }

        impl Settings {
            /// The names of all algorithms, in the order of the table.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The algorithm's name.
            pub fn name(&self) -> &'static str {
                match self { $(Settings::$Type(_) => $name,)+ }
            }

            /// The algorithm with these settings.
            pub fn algorithm(&self) -> &dyn Algorithm {
                match self { $(Settings::$Type(algorithm) => algorithm,)+ }
            }

            fn algorithm_mut(&mut self) -> &mut dyn Algorithm {
                match self { $(Settings::$Type(algorithm) => algorithm,)+ }
            }

            /// An algorithm's settings when nothing is set.
            ///
            /// - Errors: [`AlgoError::Unknown`] names those there are.
            pub fn of(name: &str) -> Result<Self, AlgoError> {
                let mut settings = match name {
                    $($name => Settings::$Type(<$module::$Type>::default()),)+
                    _ => return Err(AlgoError::unknown(name)),
                };
                settings.algorithm_mut().resolve()?;
                Ok(settings)
            }

            /// An algorithm's page, in Markdown: formula, source, settings, what it needs, what to watch.
            ///
            /// - Errors: [`AlgoError::Unknown`] names those there are.
            pub fn docs(name: &str) -> Result<String, AlgoError> {
                match name {
                    $($name => {
                        let head = module_docs(include_str!(concat!(stringify!($module), ".rs")));
                        Ok(head + &shared::docs::<$module::$Type>())
                    })+
                    _ => Err(AlgoError::unknown(name)),
                }
            }

            /// The algorithms that share a setting with others.
            fn sharing(key: &str) -> Vec<&'static str> {
                let all = [$(($name, <$module::$Type as shared::Shares>::SHARED)),+];
                let with = all.into_iter().filter(|(_, bundles)| bundles.iter().any(|b| b.keys().contains(&key)));
                with.map(|(name, _)| name).collect()
            }
        }

        $(impl method::Named for $module::$Type {
            const NAME: &'static str = $name;
        })+
    };
}

#[macro_use]
mod shared;

algorithms! {
    "grpo" => grpo::Grpo,
    "dr_grpo" => dr_grpo::DrGrpo,
    "rloo" => rloo::Rloo,
    "reinforce" => reinforce::Reinforce,
    "reinforce_pp" => reinforce_pp::ReinforcePp,
    "max_rl" => max_rl::MaxRl,
    "ppo" => ppo::Ppo,
    "dapo" => dapo::Dapo,
    "gspo" => gspo::Gspo,
    "cispo" => cispo::Cispo,
    "sapo" => sapo::Sapo,
    "dpo" => dpo::Dpo,
    "raft" => raft::Raft,
    "sft" => sft::Sft,
    "distill" => distill::Distill,
    "sdpo" => sdpo::Sdpo,
    "oapl" => oapl::Oapl,
    "dro" => dro::Dro,
    "reward_model" => reward_model::RewardModel,
}

mod advantage;
mod assemble;
mod error;
mod method;
mod pairs;
mod request;
mod returns;
mod settings;
mod signals;
mod step;

pub use error::AlgoError;
pub use pairs::Pairs;
pub use request::{Answers, Asked, Further, Now, PerSequence, Request, TeacherRule};
pub use settings::{
    EntropySettings, Flat, KlPlace, KlSettings, Overlong, ReductionName, ReferenceName, Spread, Truncated,
};
pub use signals::{Dropped, GroupSignals, GroupStats, Plan, Signals, Why};

use episode::{Episode, Group, Task};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Tasks drawn for a step at most, as a multiple of those wanted, where an algorithm has no setting for it.
pub const MAX_DRAWS: usize = 4;

/// Says what finished episodes teach.
///
/// - Holds: pure; the same groups and answers give the same bits.
pub trait Algorithm {
    /// Fills in the settings that were left out and depend on others, and refuses those that make no sense together.
    fn resolve(&mut self) -> Result<(), AlgoError>;

    /// Refuses, before anything is loaded, a group size that can teach nothing, naming an algorithm that works with it, and
    /// a setting that is missing though a run needs it.
    fn check(&self, group_size: usize) -> Result<(), AlgoError>;

    /// Where its episodes may come from.
    fn data(&self) -> Data {
        Data::Episodes
    }

    /// Whether the policy needs a head that estimates values.
    fn value_head(&self) -> bool {
        false
    }

    /// Whether a finished group is trained on.
    fn admit(&self, group: &Group) -> Admission;

    /// Tasks drawn for a step at most, as a multiple of those wanted, while [`Algorithm::admit`] asks for more.
    fn max_draws(&self) -> usize {
        MAX_DRAWS
    }

    /// What is still to be computed before [`Algorithm::signals`] can answer.
    ///
    /// - Holds: never asks for what `answers` holds, so asking again ends.
    fn requests(&self, groups: &[Group], answers: &Answers) -> Vec<Request>;

    /// Which weights a reference stands for; absent where no reference is asked for.
    fn reference(&self) -> Option<Reference> {
        None
    }

    /// Whose weights answer [`Request::Teacher`]; absent where no teacher is asked.
    fn teacher(&self) -> Option<TeacherRule> {
        None
    }

    /// Whether what is requested is needed of a group; of the others the answers stay empty.
    fn asks_about(&self, _group: &Group) -> bool {
        true
    }

    /// What each token of each episode is worth, and the loss to descend.
    ///
    /// - Errors: [`AlgoError`] when a reward is not finite or an answer is missing or has another shape.
    fn signals(&self, groups: &[Group], answers: &Answers) -> Result<Signals, AlgoError>;
}

/// Where an algorithm's episodes may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// The policy's own attempts, graded.
    Episodes,
    /// Given answers, each a group of one episode with a reward of 1.
    Answers,
    /// Either, given answers with rewards of their own where they have them.
    EpisodesOrAnswers,
    /// The policy's own attempts, or given pairs, each a group of two episodes with rewards of 1 and 0.
    EpisodesOrPairs,
}

impl Data {
    /// Whether the policy's own attempts will do.
    pub fn own(self) -> bool {
        self != Data::Answers
    }

    /// Whether given ones will do.
    pub fn given(self) -> bool {
        self != Data::Episodes
    }
}

/// Which weights the reference has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// The model's own, whatever checkpoint the run began with.
    Base,
    /// Those the run began with.
    Frozen,
    /// After each step they move this share of the way to the policy.
    Ema(f64),
    /// The policy's, taken anew every n steps.
    EveryN(u64),
}

/// What becomes of a finished group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It is trained on.
    Keep,
    /// It is left out; the step goes on without it.
    Drop(Why),
    /// It is left out, and another task is drawn in its place.
    DrawMore(Why),
}

/// Puts episodes together by task, in the order in which tasks are first met, whatever lies between them.
pub fn group_by_task(episodes: impl IntoIterator<Item = (Task, Episode)>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut place = std::collections::BTreeMap::new();
    for (task, episode) in episodes {
        let at = *place.entry(task.id.clone()).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Group { task, episodes: Vec::new() });
        }
        groups[at].episodes.push(episode);
    }
    groups
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Settings::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut settings = Settings::deserialize(deserializer).map_err(with_those_that_share)?;
        settings.algorithm_mut().resolve().map_err(serde::de::Error::custom)?;
        Ok(settings)
    }
}

/// The refusal of a key that this algorithm does not have but others share, with their names.
fn with_those_that_share<E: serde::de::Error>(error: E) -> E {
    let text = error.to_string();
    let key = text.split_once("unknown field `").and_then(|(_, rest)| rest.split_once('`')).map(|(key, _)| key);
    let names: Vec<String> = key.map(Settings::sharing).into_iter().flatten().map(|n| format!("`{n}`")).collect();
    match names.is_empty() {
        true => error,
        false => E::custom(format!("{}; it is a setting of {}", text.trim_end(), names.join(", "))),
    }
}

/// The `//!` lines at the head of a file.
fn module_docs(source: &str) -> String {
    let head = source.lines().take_while(|line| line.starts_with("//!"));
    let mut docs = String::new();
    for line in head {
        let line = line.trim_start_matches("//!");
        docs.push_str(line.strip_prefix(' ').unwrap_or(line));
        docs.push('\n');
    }
    docs
}
