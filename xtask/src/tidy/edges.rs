//! What may depend on what.

use super::lines::{code_of, has_word};
use super::{Finding, PREFIX, Tree, may_be_unsafe};
use crate::floors;

/// Every edge goes to a lower floor, those for tests too.
pub(crate) fn floors(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in &tree.packages {
        let Some(name) = package.name.strip_prefix(PREFIX) else {
            let ours = package.dependencies.iter().filter(|d| d.starts_with(PREFIX));
            found.extend(ours.map(|d| Finding::Fault(format!("`{}` depends on `{d}`, needed no crate", package.name))));
            continue;
        };
        let Some(from) = floors::find(name) else {
            found.push(Finding::Fault(format!("`{name}` has no floor, needed a line in `xtask/src/floors.rs`")));
            continue;
        };
        let below = package.dependencies.iter().filter_map(|d| d.strip_prefix(PREFIX));
        for to in below.filter_map(floors::find).filter(|to| to.floor >= from.floor) {
            let (a, b) = (from.floor, to.floor);
            found.push(Finding::Fault(format!(
                "`{name}` on floor {a} depends on `{}` on floor {b}, needed a lower one",
                to.name
            )));
        }
    }
    found
}

/// Libraries that belong to one crate are used by that crate alone.
pub(crate) fn only_in(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (library, owner) in floors::ONLY_IN {
        for package in tree.packages.iter().filter(|p| p.name.strip_prefix(PREFIX) != Some(owner)) {
            if package.dependencies.iter().any(|d| d == library) {
                found.push(Finding::Fault(format!("`{}` uses `{library}`, which only `{owner}` may", package.name)));
            }
        }
    }
    found
}

/// The word is found where the compiler's lint could be switched off.
pub(crate) fn unsafe_code(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in tree.rust().filter(|s| !s.crate_name().is_some_and(may_be_unsafe)) {
        let at = code_of(&source.text).lines().position(|line| has_word(line, "unsafe"));
        if let Some(at) = at {
            found.push(Finding::Fault(format!("`{}:{}` is unsafe", source.path, at + 1)));
        }
    }
    found
}

/// A crate that does not take the workspace's lints has none.
pub(crate) fn lints(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.sources.iter().filter(|s| s.crate_name().is_some() && s.path.ends_with("/Cargo.toml"));
    manifests
        .filter(|s| !s.crate_name().is_some_and(may_be_unsafe))
        .filter(|s| {
            let mut lines = s.text.lines().map(str::trim).skip_while(|l| *l != "[lints]").skip(1);
            !lines.by_ref().take_while(|l| !l.starts_with('[')).any(|l| l.replace(' ', "") == "workspace=true")
        })
        .map(|s| Finding::Fault(format!("`{}` lacks `[lints] workspace = true`", s.path)))
        .collect()
}

/// The page on the architecture, once it is there, shows the table as it is.
pub(crate) fn architecture(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.sources.iter().find(|s| s.path == "ARCHITECTURE.md") else { return Vec::new() };
    let table = floors::table(&tree.crate_names());
    let lacks = table.lines().find(|row| !page.text.lines().any(|line| line == *row));
    let fault = |row| Finding::Fault(format!("needed the line `{row}`; `cargo xtask floors` prints the table"));
    lacks.into_iter().map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    fn check(rule: fn(&Tree) -> Vec<Finding>, tree: Tree, want: &[&str]) {
        let want: Vec<Finding> = want.iter().map(|w| Finding::Fault(w.to_string())).collect();
        assert_eq!(rule(&tree), want);
    }

    #[test]
    fn edges_up_and_within_a_floor_are_faults() {
        check(floors, tree(&[("surefoot-env", &["surefoot-agent", "surefoot-jail", "serde"])], &[]), &[]);
        check(
            floors,
            tree(&[("surefoot-policy", &["surefoot-algo", "surefoot-run"]), ("surefoot-odd", &[])], &[]),
            &[
                "`policy` on floor 2 depends on `algo` on floor 2, needed a lower one",
                "`policy` on floor 2 depends on `run` on floor 8, needed a lower one",
                "`odd` has no floor, needed a line in `xtask/src/floors.rs`",
            ],
        );
        check(
            floors,
            tree(&[("xtask", &["surefoot-run"])], &[]),
            &["`xtask` depends on `surefoot-run`, needed no crate"],
        );
    }

    #[test]
    fn libraries_stay_with_their_owner() {
        check(only_in, tree(&[("surefoot-cli", &["clap"]), ("surefoot-remote", &["ureq"])], &[]), &[]);
        check(only_in, tree(&[("xtask", &["clap"])], &[]), &["`xtask` uses `clap`, which only `cli` may"]);
        let up = tree(&[("surefoot-run", &["ureq"])], &[]);
        check(only_in, up, &["`surefoot-run` uses `ureq`, which only `remote` may"]);
    }

    #[test]
    fn unsafe_is_seen_in_code_only() {
        let quiet = "// unsafe\nlet s = \"unsafe\";\n#![forbid(unsafe_code)]\n";
        check(unsafe_code, tree(&[], &[("crates/run/src/a.rs", quiet), ("crates/jail/src/b.rs", "unsafe {}")]), &[]);
        let loud = tree(&[], &[("crates/run/src/a.rs", "fn f() {\n    unsafe { g() }\n}\n")]);
        check(unsafe_code, loud, &["`crates/run/src/a.rs:2` is unsafe"]);
    }

    #[test]
    fn lints_are_taken_from_the_workspace() {
        let none = tree(&[], &[("crates/run/Cargo.toml", "[lints]\n[dependencies]\nworkspace = true\n")]);
        check(lints, none, &["`crates/run/Cargo.toml` lacks `[lints] workspace = true`"]);
        check(lints, tree(&[], &[("crates/tensor/Cargo.toml", "")]), &[]);
    }

    #[test]
    fn the_architecture_page_shows_the_table() {
        let packages: &[(&str, &[&str])] = &[("surefoot-jail", &[])];
        let page = format!("# Architecture\n\n{}\nMore.\n", crate::floors::table(&["jail"]));
        check(architecture, tree(packages, &[("ARCHITECTURE.md", &page)]), &[]);
        let old = page.replace("| 1 | `jail`", "| 2 | `jail`");
        assert_eq!(architecture(&tree(packages, &[("ARCHITECTURE.md", &old)])).len(), 1);
    }
}
