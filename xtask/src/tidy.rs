//! Compares the tree with the rules of the house.

mod edges;
mod lines;
mod names;
mod sizes;
mod words;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::floors;

/// Something a rule found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// It must be changed.
    Fault(String),
    /// It should be looked at; fails nothing.
    Notice(String),
}

/// A text file of the tree.
pub(crate) struct Source {
    /// Its path from the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A package of the workspace.
pub(crate) struct Package {
    pub(crate) name: String,
    /// Real names of what it depends on, for building, running or testing.
    pub(crate) dependencies: Vec<String>,
}

/// All that the rules look at.
pub(crate) struct Tree {
    pub(crate) packages: Vec<Package>,
    pub(crate) sources: Vec<Source>,
    /// Places of this machine that no file may name.
    pub(crate) here: Vec<String>,
}

/// The prefix of our packages' names.
const PREFIX: &str = "surefoot-";

/// A rule looks at everything and says what it found.
type Rule = fn(&Tree) -> Vec<Finding>;

/// Every rule with its name, in the order of the report. A new one is a function and a line here.
const RULES: &[(&str, Rule)] = &[
    ("crates stand on lower floors only", edges::floors),
    ("some libraries stay in one crate", edges::only_in),
    ("unsafe code stays in its crates", edges::unsafe_code),
    ("crates take the workspace's lints", edges::lints),
    ("ARCHITECTURE.md holds the table of crates", edges::architecture),
    ("files are short", sizes::check),
    ("names say what is inside", names::check),
    ("every source file belongs to its crate", names::orphans),
    ("entries of tables name their source", names::sources),
    ("no file names this machine", words::places),
    ("what is left to do carries an issue", words::left_to_do),
];

/// Runs every rule and prints what they found.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let tree = Tree::read(root)?;
    let mut faults = 0;
    for (rule, check) in RULES {
        for finding in check(&tree) {
            match finding {
                Finding::Fault(text) => {
                    faults += 1;
                    println!("tidy: {rule}: {text}");
                }
                Finding::Notice(text) => println!("tidy: note: {rule}: {text}"),
            }
        }
    }
    if faults > 0 {
        return Err(format!("tidy: {faults} faults"));
    }
    println!("tidy: {} rules, {} files, no fault", RULES.len(), tree.sources.len());
    Ok(())
}

impl Tree {
    /// Reads the workspace as Cargo sees it and the text files that git would commit.
    pub(crate) fn read(root: &Path) -> Result<Tree, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let metadata =
            output(Command::new(cargo).args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root))?;
        let metadata: serde_json::Value =
            serde_json::from_slice(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
        let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
        let package = |p: &serde_json::Value| Package {
            name: text(&p["name"]),
            dependencies: list(&p["dependencies"]).iter().map(|d| text(&d["name"])).collect(),
        };
        let packages = list(&metadata["packages"]).iter().map(package).collect();
        let listed = output(
            Command::new("git")
                // A checkout that belongs to another user is read all the same.
                .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
                .current_dir(root),
        )?;
        let mut sources = Vec::new();
        for path in String::from_utf8_lossy(&listed).split('\0').filter(|p| !p.is_empty()) {
            // Deleted but not yet committed, or not text: nothing to read.
            if let Ok(text) = fs::read_to_string(root.join(path)) {
                sources.push(Source { path: path.to_string(), text });
            }
        }
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { packages, sources, here: places(root) })
    }

    /// The folder names of our crates.
    pub(crate) fn crate_names(&self) -> Vec<&str> {
        self.packages.iter().filter_map(|p| p.name.strip_prefix(PREFIX)).collect()
    }

    /// The Rust files.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|s| s.path.ends_with(".rs"))
    }
}

impl Source {
    /// The crate whose folder it lies in.
    pub(crate) fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Whether all of it is test code.
    pub(crate) fn is_test(&self) -> bool {
        let stem = self.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        self.path.split('/').any(|part| matches!(part, "tests" | "benches" | "fuzz_targets"))
            || stem == "tests"
            || stem.ends_with("_tests")
    }
}

/// This checkout, the folder around it and the user's own folder, where they are specific enough to be a slip.
fn places(root: &Path) -> Vec<String> {
    const EVERYWHERE: [&str; 10] = ["", "/", "/home", "/tmp", "/usr", "/opt", "/var", "/mnt", "/srv", "/Users"];
    let home = std::env::var("HOME").unwrap_or_default();
    let around = [Some(root), root.parent()].into_iter().flatten().map(|p| p.display().to_string());
    let mut places: Vec<String> = around
        .chain([home])
        .filter(|p| !EVERYWHERE.contains(&p.trim_end_matches('/')))
        .map(|p| format!("{}/", p.trim_end_matches('/')))
        .collect();
    places.sort();
    places.dedup();
    places
}

fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("cannot start `{program}`: {e}"))?;
    if !output.status.success() {
        return Err(format!("`{program}` failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(output.stdout)
}

/// Whether a crate may hold unsafe code.
pub(crate) fn may_be_unsafe(name: &str) -> bool {
    floors::UNSAFE_IN.contains(&name)
}

/// A small tree for the rules' tests.
#[cfg(test)]
pub(crate) fn tree(packages: &[(&str, &[&str])], sources: &[(&str, &str)]) -> Tree {
    let package = |(name, deps): &(&str, &[&str])| Package {
        name: name.to_string(),
        dependencies: deps.iter().map(|d| d.to_string()).collect(),
    };
    let source = |(path, text): &(&str, &str)| Source { path: path.to_string(), text: text.to_string() };
    Tree {
        packages: packages.iter().map(package).collect(),
        sources: sources.iter().map(source).collect(),
        here: vec!["/some/checkout/".to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_quiet_on_a_tidy_tree() {
        let lib = "//! A crate.\n\nmod part;\n";
        let manifest = "[package]\n\n[lints]\nworkspace = true\n";
        let tree = tree(
            &[("surefoot-episode", &["serde"]), ("surefoot-store", &["surefoot-episode"]), ("xtask", &[])],
            &[
                ("crates/episode/Cargo.toml", manifest),
                ("crates/episode/src/lib.rs", lib),
                ("crates/episode/src/part.rs", "//! A part.\n"),
                ("crates/store/Cargo.toml", manifest),
                ("crates/store/src/lib.rs", "//! A crate.\n"),
            ],
        );
        for (rule, check) in RULES {
            assert_eq!(check(&tree), [], "{rule}");
        }
    }

    #[test]
    fn places_of_this_machine_are_specific() {
        assert!(places(Path::new("/tmp/checkout")).contains(&"/tmp/checkout/".to_string()));
        assert!(!places(Path::new("/tmp/checkout")).contains(&"/tmp/".to_string()));
        assert!(places(Path::new("/build/place/checkout")).contains(&"/build/place/".to_string()));
    }

    #[test]
    fn the_real_workspace_can_be_read() {
        let tree = Tree::read(&crate::root()).unwrap();
        assert!(tree.crate_names().contains(&"episode"));
        assert!(tree.rust().any(|s| s.path == "xtask/src/tidy.rs"));
        let episode = tree.packages.iter().find(|p| p.name == "surefoot-episode").unwrap();
        assert!(episode.dependencies.contains(&"serde".to_string()));
    }
}
