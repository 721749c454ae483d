//! One `[[env]]` of a run file.

use std::path::Path;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::tasks::Loaded;
use crate::{EnvError, Kind, TaskSet, grader};

/// What a run file says of one environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Its name; the kind if not given.
    pub name: String,
    /// Its share of the training tasks, in proportion to the other weights.
    pub weight: f64,
    /// The highest mean share of full marks that one constant answer may earn before the audit refuses the environment.
    pub max_constant: f64,
    /// The kind with its fields.
    pub kind: Kind,
    /// The graders, in place of the kind's own; empty to keep that.
    pub graders: Vec<grader::Settings>,
}

impl Settings {
    /// An environment called after its kind, with weight 1 and the kind's own grader.
    pub fn plain(kind: Kind) -> Self {
        let name = kind.tag().to_owned();
        Settings { name, weight: 1.0, max_constant: DEFAULT_MAX_CONSTANT, kind, graders: Vec::new() }
    }

    /// Makes the environment; `base` is the folder that relative paths start from.
    pub fn load(&self, base: &Path) -> Result<TaskSet, EnvError> {
        let env = &self.name;
        let refuse = |key: &str, reason: String| EnvError::Setting { env: env.clone(), key: key.to_owned(), reason };
        if env.is_empty() || env.contains(|c: char| c == '/' || c.is_control()) {
            return Err(refuse("name", format!("is `{env}`, needed a text without `/`")));
        }
        if !(0.0..=1.0).contains(&self.max_constant) {
            return Err(refuse("max_constant", format!("is {}, needed a number from 0 to 1", self.max_constant)));
        }
        let graders = match (self.kind.family().own_grader(), &self.graders[..]) {
            (Some(own), []) => vec![grader::Settings::plain(own)],
            (None, []) => return Err(refuse("grader", "is missing, needed at least 1 `[[env.grader]]`".to_owned())),
            (Some(grader::Kind::Command(_)), _) => {
                let reason = "would replace `command`: list the program among them and use kind `jsonl`".to_owned();
                return Err(refuse("grader", reason));
            }
            (_, listed) => listed.to_vec(),
        };
        let graders = grader::make_all(env, &graders, base)?;
        let Loaded { train, held_out, gold_reply, stage } = self.kind.family().load(env, base)?;
        for task in train.iter().chain(&held_out) {
            for one in &graders {
                one.grader.accepts(task).map_err(|reason| {
                    let reason = format!("cannot judge task `{}`: {reason}", task.id);
                    refuse(&format!("grader.{}", one.name), reason)
                })?;
            }
        }
        Ok(TaskSet { name: env.clone(), train, held_out, gold_reply, graders, stage })
    }
}

/// A guess has a one in four chance at most, as with four choices.
const DEFAULT_MAX_CONSTANT: f64 = 0.25;

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut map = Map::deserialize(deserializer)?;
        let read = |map: &mut Map<String, Value>| {
            let name = take(map, "name")?;
            let weight = take_weight(map)?;
            let max_constant = take(map, "max_constant")?.unwrap_or(DEFAULT_MAX_CONSTANT);
            let graders = take(map, "grader")?.unwrap_or_default();
            let kind = Kind::from_map(std::mem::take(map))?;
            Ok(Settings { name: name.unwrap_or_else(|| kind.tag().to_owned()), weight, max_constant, kind, graders })
        };
        read(&mut map).map_err(|e: String| D::Error::custom(e))
    }
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = self.kind.to_map();
        map.insert("name".to_owned(), self.name.clone().into());
        map.insert("weight".to_owned(), self.weight.into());
        map.insert("max_constant".to_owned(), self.max_constant.into());
        if !self.graders.is_empty() {
            let graders = serde_json::to_value(&self.graders).map_err(serde::ser::Error::custom)?;
            map.insert("grader".to_owned(), graders);
        }
        map.serialize(serializer)
    }
}

/// Takes a key that every kind has.
pub(crate) fn take<V: DeserializeOwned>(map: &mut Map<String, Value>, key: &str) -> Result<Option<V>, String> {
    let Some(value) = map.remove(key) else { return Ok(None) };
    serde_json::from_value(value).map(Some).map_err(|e| format!("`{key}`: {e}"))
}

pub(crate) fn take_weight(map: &mut Map<String, Value>) -> Result<f64, String> {
    let weight: f64 = take(map, "weight")?.unwrap_or(1.0);
    let is_usable = weight.is_finite() && weight > 0.0;
    if is_usable { Ok(weight) } else { Err(format!("`weight` is {weight}, needed a number above 0")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Environments, Split, Submission};
    use std::sync::atomic::AtomicBool;

    #[derive(Debug, Deserialize, Serialize)]
    struct RunFile {
        env: Vec<Settings>,
    }

    fn parse(text: &str) -> Result<Vec<Settings>, String> {
        toml::from_str::<RunFile>(text).map(|f| f.env).map_err(|e| e.message().to_owned())
    }

    fn check_refused(text: &str, want: &str) {
        assert_eq!(parse(text).err().as_deref(), Some(want), "{text}");
    }

    #[test]
    fn every_kind_is_read_and_written_back_the_same() {
        let text = r#"
            [[env]]
            kind = "files"
            levels = { lookup = 1, tidy = 2 }
            injections = 0.5
            [[env]]
            kind = "shop"
            levels = { single = 1, claim = 0.5 }
            n_others = 9
            [[env]]
            kind = "countdown"
            levels = { six = 1 }
            use_all = true
            [[env]]
            kind = "wordgrid"
            guesses = 4
            openers = 2
            [[env]]
            kind = "sums"
            levels = { two_digit = 1, plus_times = 0.5 }
            few_shot = 2
            weight = 3
            [[env]]
            kind = "gsm8k"
            name = "words"
            tasks = "train.jsonl"
            held_out = "test.jsonl"
            [[env]]
            kind = "jsonl"
            tasks = "mine.jsonl"
            max_constant = 0.5
            [[env.grader]]
            kind = "text"
            ignore_case = true
            [[env.grader]]
            kind = "command"
            command = ["python3", "style.py"]
            stay_alive = true
            weight = 0.1
            [[env]]
            kind = "command"
            tasks = "mine.jsonl"
            command = ["./grade"]
            deadline_s = 5
        "#;
        let settings = parse(text).unwrap();
        let tags: Vec<&str> = settings.iter().map(|s| s.kind.tag()).collect();
        let table: Vec<&str> = Kind::TABLE.iter().map(|(tag, _)| *tag).collect();
        assert_eq!(tags, table);
        let of = |tag: &str| settings.iter().find(|s| s.kind.tag() == tag).unwrap();
        assert_eq!((of("sums").weight, of("gsm8k").name.as_str(), of("jsonl").max_constant), (3.0, "words", 0.5));
        assert_eq!((of("jsonl").graders[1].name.as_str(), of("jsonl").graders[1].weight), ("command", 0.1));
        let written = toml::to_string(&RunFile { env: settings.clone() }).unwrap();
        assert_eq!(parse(&written).unwrap(), settings, "{written}");
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
        check_refused("[[env]]\nname = 'a'", "missing field `kind`");
        check_refused(
            "[[env]]\nkind = 'sum'",
            "unknown kind `sum`, needed one of `files`, `shop`, `countdown`, `wordgrid`, `sums`, `gsm8k`, `jsonl`, `command`",
        );
        check_refused(
            "[[env]]\nkind = 'sums'\nlevel = 3",
            "kind `sums`: unknown field `level`, expected one of `levels`, `n_train`, `n_held_out`, `seed`, `prompt`, \
             `system`, `few_shot`",
        );
        check_refused(
            "[[env]]\nkind = 'sums'\nlevels = { four_digit = 1 }",
            "kind `sums`: unknown variant `four_digit`, expected one of `one_digit`, `one_two_digit`, `two_digit`, \
             `three_digit`, `product`, `plus_minus`, `plus_times`",
        );
        check_refused("[[env]]\nkind = 'gsm8k'", "kind `gsm8k`: missing field `tasks`");
        check_refused("[[env]]\nkind = 'sums'\nweight = 0", "`weight` is 0, needed a number above 0");
        check_refused(
            "[[env]]\nkind = 'sums'\nn_train = 'many'",
            "kind `sums`: invalid type: string \"many\", expected usize",
        );
        check_refused(
            "[[env]]\nkind = 'sums'\n[[env.grader]]\nkind = 'vibes'",
            "`grader`: unknown kind `vibes`, needed one of `command`, `expression`, `final_number`, `goal`, \
             `last_number`, `only_number`, `text`",
        );
        check_refused(
            "[[env]]\nkind = 'sums'\n[[env.grader]]\nkind = 'only_number'\nstrict = true",
            "`grader`: kind `only_number`: unknown field `strict`, there are no fields",
        );
    }

    #[test]
    fn a_setting_that_would_be_ignored_is_refused() {
        let load = |text: &str| parse(text).unwrap()[0].load(Path::new("")).err().unwrap().to_string();
        assert_eq!(
            load("[[env]]\nkind = 'command'\ntasks = 'x'\ncommand = ['g']\n[[env.grader]]\nkind = 'only_number'"),
            "environment `command`: `grader` would replace `command`: list the program among them and use kind `jsonl`"
        );
        assert_eq!(
            load("[[env]]\nkind = 'jsonl'\ntasks = 'x'"),
            "environment `jsonl`: `grader` is missing, needed at least 1 `[[env.grader]]`"
        );
        assert_eq!(
            load("[[env]]\nkind = 'sums'\nname = 'a/b'"),
            "environment `sums`: `name` is `a/b`, needed a text without `/`".replace("`sums`", "`a/b`")
        );
    }

    #[test]
    fn two_environments_or_graders_of_one_name_are_refused() {
        let two = parse("[[env]]\nkind = 'sums'\n[[env]]\nkind = 'sums'\nseed = 2").unwrap();
        let error = Environments::load(&two, Path::new("")).err().unwrap().to_string();
        assert_eq!(error, "two environments are called `sums`: give one of them another `name`");
        let twice =
            "[[env]]\nkind = 'sums'\n[[env.grader]]\nkind = 'only_number'\n[[env.grader]]\nkind = 'only_number'";
        let error = parse(twice).unwrap()[0].load(Path::new("")).err().unwrap().to_string();
        assert_eq!(
            error,
            "two graders of environment `sums` are called `only_number`: give one of them another `name`"
        );
        let error = Environments::load(&[], Path::new("")).err().unwrap().to_string();
        assert_eq!(error, "a run needs at least 1 `[[env]]`, got 0");
    }

    #[test]
    fn g5_the_reward_is_the_weighted_sum_and_every_part_is_kept() {
        let text = "[[env]]\nkind = 'sums'\n[[env.grader]]\nkind = 'last_number'\n[[env.grader]]\nkind = 'only_number'\n\
                    weight = 0.1";
        let env = parse(text).unwrap()[0].load(Path::new("")).unwrap();
        let task = &env.tasks(Split::Train)[0];
        let cancel = AtomicBool::new(false);
        let grade = |reply: String| {
            env.grade(&Submission { task, reply: &reply, state: &Value::Null, cancel: &cancel }).unwrap()
        };
        let both = grade(task.gold.to_string());
        assert_eq!((both.reward, env.full_marks()), (1.1, 1.1));
        let parts: Vec<_> = both.parts.iter().map(|p| (p.name.as_str(), p.value, p.weight)).collect();
        assert_eq!(parts, [("last_number", 1.0, 1.0), ("only_number", 1.0, 0.1)]);
        assert_eq!(grade(format!("It is {}", task.gold)).reward, 1.0);
        assert_eq!(grade("0".to_owned()).reward, 0.1);
    }

    #[test]
    fn an_opinion_is_part_of_the_reward_and_no_proof() {
        let opinion = "[[env]]\nkind = 'sums'\n[[env.grader]]\nkind = 'only_number'\nopinion = true\nweight = 0.5";
        let text = format!("{opinion}\n[[env.grader]]\nkind = 'last_number'");
        let settings = &parse(&text).unwrap()[0];
        let again = toml::to_string(&RunFile { env: vec![settings.clone()] }).unwrap();
        assert_eq!(parse(&again).unwrap()[0], *settings);
        let env = settings.load(Path::new("")).unwrap();
        assert_eq!(env.full_marks(), 1.0);
        let task = &env.tasks(Split::Train)[0];
        let cancel = AtomicBool::new(false);
        let check = |reply: String, want: (f64, f64)| {
            let verdict = env.grade(&Submission { task, reply: &reply, state: &Value::Null, cancel: &cancel });
            let outcome = crate::outcome(verdict);
            assert_eq!((outcome.reward(), outcome.verified()), (Some(want.0), Some(want.1)), "{reply}");
        };
        check(task.gold.to_string(), (1.5, 1.0));
        check(format!("It is {}", task.gold), (1.0, 1.0));
        check("0".to_owned(), (0.5, 0.0));
        // An opinion that pleases nobody does not keep the environment from starting.
        let audit = crate::audit(settings, Path::new(""), &crate::Probe::default(), &cancel).unwrap().unwrap();
        assert!(audit.passed(), "{audit}");
        let error = parse(opinion).unwrap()[0].load(Path::new("")).err().unwrap().to_string();
        assert!(error.ends_with("`grader` are all opinions, needed at least 1 that can tell a solved task"), "{error}");
    }

    #[test]
    fn a_task_that_a_grader_cannot_judge_is_refused_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t"), r#"{"prompt": "a", "gold": "many"}"#).unwrap();
        let text = "[[env]]\nkind = 'jsonl'\ntasks = 't'\n[[env.grader]]\nkind = 'last_number'";
        let error = parse(text).unwrap()[0].load(folder.path()).err().unwrap().to_string();
        assert!(error.ends_with(r#"needed a number as `gold`, got `"many"`"#), "{error}");
        assert!(error.starts_with("environment `jsonl`: `grader.last_number` cannot judge task `jsonl/"), "{error}");
    }
}
