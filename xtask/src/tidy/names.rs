//! Names of files and modules, and files nobody names.

use super::lines::{code_of, has_word};
use super::{Finding, Tree};

/// Names under which everything and nothing can be put.
const SAY_NOTHING: [&str; 9] = ["core", "common", "helper", "helpers", "manager", "misc", "types", "util", "utils"];

/// Where each file is an entry of a table, and what tells an entry from its neighbours.
const ENTRIES: [(&str, &str); 3] =
    [("crates/algo/src/", "impl Algorithm for"), ("crates/loss/src/correction/", ""), ("crates/loss/src/term/", "")];

/// No crate or module has a name that says nothing.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in tree.crate_names().into_iter().filter(|n| SAY_NOTHING.contains(n)) {
        found.push(Finding::Fault(format!("crate `{name}` says nothing of what is inside")));
    }
    for source in tree.rust() {
        let part = source.path.trim_end_matches(".rs").split('/').find(|part| SAY_NOTHING.contains(part));
        if let Some(part) = part {
            found.push(Finding::Fault(format!("`{}`: `{part}` says nothing of what is inside", source.path)));
            continue;
        }
        let code = code_of(&source.text);
        let inline = SAY_NOTHING.iter().find(|n| code.lines().any(|l| has_word(l, &format!("mod {n}"))));
        if let Some(name) = inline {
            found.push(Finding::Fault(format!("`{}`: module `{name}` says nothing of what is inside", source.path)));
        }
    }
    found
}

/// A file that no other file of its crate names is compiled by nobody.
pub(crate) fn orphans(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in tree.rust() {
        let Some((package, inside)) = source.path.split_once("/src/") else { continue };
        let folder_module = inside.strip_suffix("/mod.rs");
        let stem = folder_module.unwrap_or(inside.trim_end_matches(".rs")).rsplit('/').next().unwrap_or_default();
        if matches!(inside, "lib.rs" | "main.rs") || inside.starts_with("bin/") {
            continue;
        }
        let prefix = format!("{package}/src/");
        let named = tree
            .rust()
            .any(|other| other.path != source.path && other.path.starts_with(&prefix) && has_word(&other.text, stem));
        if !named {
            found.push(Finding::Fault(format!("`{}` is named by no other file of its crate", source.path)));
        }
    }
    let manifest = tree.sources.iter().find(|s| s.path == "fuzz/Cargo.toml");
    for source in tree.rust().filter(|s| s.path.starts_with("fuzz/fuzz_targets/")) {
        if !manifest.is_some_and(|m| m.text.contains(&source.path["fuzz/".len()..])) {
            found.push(Finding::Fault(format!("`{}` has no line in `fuzz/Cargo.toml`", source.path)));
        }
    }
    found
}

/// Every entry of a table of formulas says where its formula comes from.
pub(crate) fn sources(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (folder, mark) in ENTRIES {
        for source in tree.rust().filter(|s| s.path.starts_with(folder) && !s.is_test()) {
            if code_of(&source.text).contains(mark) && !source.text.contains("Source:") {
                found.push(Finding::Fault(format!("`{}` has no `Source:`", source.path)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    fn check_rule(rule: fn(&Tree) -> Vec<Finding>, sources: &[(&str, &str)], want: &[&str]) {
        let want: Vec<Finding> = want.iter().map(|w| Finding::Fault(w.to_string())).collect();
        assert_eq!(rule(&tree(&[], sources)), want);
    }

    #[test]
    fn names_that_say_nothing_are_faults() {
        check_rule(check, &[("crates/a/src/rollout.rs", "use std::core; // mod utils\nlet types = 1;")], &[]);
        check_rule(
            check,
            &[("crates/a/src/utils.rs", ""), ("crates/a/src/helpers/x.rs", ""), ("crates/a/src/y.rs", "mod misc {}")],
            &[
                "`crates/a/src/utils.rs`: `utils` says nothing of what is inside",
                "`crates/a/src/helpers/x.rs`: `helpers` says nothing of what is inside",
                "`crates/a/src/y.rs`: module `misc` says nothing of what is inside",
            ],
        );
        let packages: &[(&str, &[&str])] = &[("surefoot-core", &[])];
        assert_eq!(check(&tree(packages, &[])).len(), 1);
    }

    #[test]
    fn files_nobody_names_are_faults() {
        check_rule(
            orphans,
            &[
                ("crates/a/src/lib.rs", "mod one;\nalgorithms! { \"x\" => three::Three }\nmod folder;"),
                ("crates/a/src/one.rs", "#[path = \"one_tests.rs\"]\nmod tests;"),
                ("crates/a/src/one_tests.rs", ""),
                ("crates/a/src/three.rs", ""),
                ("crates/a/src/folder/mod.rs", ""),
                ("crates/a/src/lost.rs", "lost"),
                ("crates/b/src/lib.rs", "mod lost;"),
                ("fuzz/Cargo.toml", "path = \"fuzz_targets/here.rs\""),
                ("fuzz/fuzz_targets/here.rs", ""),
                ("fuzz/fuzz_targets/gone.rs", ""),
            ],
            &[
                "`crates/a/src/lost.rs` is named by no other file of its crate",
                "`fuzz/fuzz_targets/gone.rs` has no line in `fuzz/Cargo.toml`",
            ],
        );
    }

    #[test]
    fn formulas_name_their_source() {
        check_rule(
            sources,
            &[
                ("crates/algo/src/grpo.rs", "/// - Source: x\nimpl Algorithm for Grpo {}"),
                ("crates/algo/src/other.rs", "impl Algorithm for Other {}"),
                ("crates/algo/src/error.rs", "enum E {}"),
                ("crates/loss/src/term/a.rs", "//! A."),
            ],
            &["`crates/algo/src/other.rs` has no `Source:`", "`crates/loss/src/term/a.rs` has no `Source:`"],
        );
    }
}
