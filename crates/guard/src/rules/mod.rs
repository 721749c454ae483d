//! The ways in which a rule of effect `modify` may rewrite a call: one file and one line of the table each.

use serde_json::{Map, Value};

macro_rules! rewrites {
    ($($module:ident :: $kind:ident,)+) => {
        $(mod $module;)+

        /// What a rule does to the arguments of a call.
        #[derive(Debug, Clone, PartialEq)]
        pub(crate) enum Rewrite {
            $($kind($module::$kind),)+
        }

        impl Rewrite {
            /// Reads a rewriting: its word, an argument, and what it needs besides.
            ///
            /// - Errors: what was needed.
            pub(crate) fn parse(text: &str) -> Result<Rewrite, String> {
                let (word, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
                let (argument, rest) = rest.trim().split_once(char::is_whitespace).unwrap_or((rest.trim(), ""));
                $(if word == $module::WORD {
                    if argument.is_empty() {
                        return Err(format!("`{}`", $module::FORM));
                    }
                    return $module::$kind::parse(argument, rest.trim())
                        .map(Rewrite::$kind)
                        .ok_or_else(|| format!("`{}`", $module::FORM));
                })+
                Err([$($module::FORM),+].map(|form| format!("`{form}`")).join(" or "))
            }

            /// Rewrites the arguments; whether that changed them.
            ///
            /// - Errors: why they cannot be rewritten so.
            pub(crate) fn apply(&self, arguments: &mut Map<String, Value>) -> Result<bool, String> {
                match self { $(Rewrite::$kind(rewrite) => rewrite.apply(arguments),)+ }
            }
        }
    };
}

rewrites! {
    cap::Cap,
    confine::Confine,
    drop_argument::DropArgument,
    set::Set,
}

/// Finds an argument: a name, or a path of names and places from `/` on.
fn find<'a>(arguments: &'a mut Map<String, Value>, at: &str) -> Option<&'a mut Value> {
    match at.strip_prefix('/') {
        None => arguments.get_mut(at),
        Some(rest) => {
            let (first, rest) = rest.split_once('/').map_or((rest, None), |(first, rest)| (first, Some(rest)));
            let value = arguments.get_mut(&first.replace("~1", "/").replace("~0", "~"))?;
            match rest {
                Some(rest) => value.pointer_mut(&format!("/{rest}")),
                None => Some(value),
            }
        }
    }
}

/// Applies `one` to a value, or to each of a list.
fn each(value: &mut Value, one: &mut dyn FnMut(&mut Value) -> Result<bool, String>) -> Result<bool, String> {
    match value {
        Value::Array(list) => list.iter_mut().try_fold(false, |changed, v| Ok(each(v, one)? || changed)),
        value => one(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(rewrite: &str, mut arguments: Value, want: Result<Value, &str>) {
        let rewrite = Rewrite::parse(rewrite).unwrap();
        let before = arguments.clone();
        let map = arguments.as_object_mut().unwrap();
        match (rewrite.apply(map), want) {
            (Ok(changed), Ok(want)) => {
                assert_eq!(arguments, want);
                assert_eq!(changed, arguments != before, "says whether it changed something");
                assert_eq!(rewrite.apply(arguments.as_object_mut().unwrap()), Ok(false), "twice is once");
            }
            (Err(got), Err(want)) => assert_eq!(got, want),
            (got, want) => assert_eq!(got.map(|_| arguments), want.map_err(str::to_owned)),
        }
    }

    #[test]
    fn a_cap_lowers_what_is_above_it_and_nothing_else() {
        check("cap n 10", json!({"n": 50, "m": 50}), Ok(json!({"n": 10, "m": 50})));
        check("cap n 10", json!({"n": 10}), Ok(json!({"n": 10})));
        check("cap n 10", json!({"m": 1}), Ok(json!({"m": 1})));
        check("cap n 2.5", json!({"n": 2.75}), Ok(json!({"n": 2.5})));
        check("cap n 10", json!({"n": -50}), Ok(json!({"n": -50})));
        check("cap n 10", json!({"n": [5, 50, [60]]}), Ok(json!({"n": [5, 10, [10]]})));
        check("cap /a/n 1", json!({"a": {"n": 9}}), Ok(json!({"a": {"n": 1}})));
        check("cap /a/1/n 1", json!({"a": [{"n": 9}, {"n": 9}]}), Ok(json!({"a": [{"n": 9}, {"n": 1}]})));
        check("cap n 10", json!({"n": 18446744073709551615_u64}), Ok(json!({"n": 10})));
        check("cap n 10", json!({"n": "50"}), Err("cannot cap argument `n`: needed a number"));
    }

    #[test]
    fn an_argument_is_dropped_or_set() {
        check("drop bcc", json!({"to": 1, "bcc": 2}), Ok(json!({"to": 1})));
        check("drop bcc", json!({"to": 1}), Ok(json!({"to": 1})));
        check("drop /a/b", json!({"a": {"b": 1, "c": 2}}), Ok(json!({"a": {"c": 2}})));
        check("drop /a", json!({"a": 1}), Ok(json!({})));
        check("set visibility \"private\"", json!({"visibility": "public"}), Ok(json!({"visibility": "private"})));
        check("set dry_run true", json!({}), Ok(json!({"dry_run": true})));
        check("set /a/b [1]", json!({"a": {}}), Ok(json!({"a": {"b": [1]}})));
        check("set /a/b 1", json!({}), Err("cannot set argument `/a/b`: there is nothing to hold it"));
    }

    #[test]
    fn a_path_is_confined_to_a_folder() {
        check("confine path /out", json!({"path": "/etc/passwd"}), Ok(json!({"path": "/out/etc/passwd"})));
        check("confine path /out", json!({"path": "/out/a"}), Ok(json!({"path": "/out/a"})));
        check("confine path /out", json!({"path": "../../a"}), Ok(json!({"path": "/out/a"})));
        check("confine path /out", json!({"path": "/out/../b"}), Ok(json!({"path": "/out/b"})));
        check("confine path /out", json!({"path": "a\\..\\..\\b"}), Ok(json!({"path": "/out/b"})));
        check("confine p /out/", json!({"p": ["a", "/outer"]}), Ok(json!({"p": ["/out/a", "/out/outer"]})));
        check("confine path /out", json!({"path": 3}), Err("cannot confine argument `path`: needed a path"));
        check(
            "confine path /out",
            json!({"path": "~/x"}),
            Err("cannot confine argument `path`: needed a path without variables and encodings"),
        );
        check(
            "confine path /out",
            json!({"path": "%2e%2e/x"}),
            Err("cannot confine argument `path`: needed a path without variables and encodings"),
        );
    }

    #[test]
    fn what_is_no_rewriting_is_refused_with_its_form() {
        for (text, want) in [
            ("", "`cap ARGUMENT NUMBER` or `confine ARGUMENT FOLDER` or `drop ARGUMENT` or `set ARGUMENT JSON`"),
            ("cap", "`cap ARGUMENT NUMBER`"),
            ("cap n", "`cap ARGUMENT NUMBER`"),
            ("cap n many", "`cap ARGUMENT NUMBER`"),
            ("cap n NaN", "`cap ARGUMENT NUMBER`"),
            ("confine path out", "`confine ARGUMENT FOLDER`"),
            ("drop a b", "`drop ARGUMENT`"),
            ("set a {", "`set ARGUMENT JSON`"),
        ] {
            assert_eq!(Rewrite::parse(text), Err(want.to_owned()), "`{text}`");
        }
    }
}
