//! How long files may be.

use super::{Finding, Tree};

/// Where the question begins whether a file is one thing.
const ASK: usize = 500;

/// Where it has been answered.
const REFUSE: usize = 800;

/// Long files are listed, too long ones refused; inline tests do not count, files of tests are only listed.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in tree.rust() {
        let lines = without_tests(&source.text);
        let text = format!("`{}` has {lines} lines without tests, needed at most {REFUSE}, better 250", source.path);
        if lines > REFUSE && !source.is_test() {
            found.push(Finding::Fault(text));
        } else if lines > ASK && !source.is_test() {
            found.push(Finding::Notice(text));
        } else if lines > REFUSE {
            found.push(Finding::Notice(format!("`{}` has {lines} lines of tests", source.path)));
        }
    }
    found
}

/// The number of lines outside inline test modules, which stand at the margin and end with a brace there.
fn without_tests(text: &str) -> usize {
    let mut count = 0;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let module = lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        if line == "#[cfg(test)]" && module {
            for inside in lines.by_ref() {
                if inside == "}" {
                    break;
                }
            }
        } else {
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    #[test]
    fn inline_tests_do_not_count() {
        assert_eq!(without_tests("a\n#[cfg(test)]\nmod tests {\n    x\n}\nb\n"), 2);
        assert_eq!(without_tests("a\n#[cfg(test)]\nfn f() {}\n"), 3);
        assert_eq!(without_tests("#[cfg(test)]\nmod tests;\nb\n"), 3);
    }

    #[test]
    fn long_files_are_listed_and_too_long_ones_refused() {
        let lines = |n| "x\n".repeat(n);
        let tree = tree(
            &[],
            &[
                ("crates/a/src/fine.rs", &lines(500)),
                ("crates/a/src/long.rs", &lines(501)),
                ("crates/a/src/over.rs", &lines(801)),
                ("crates/a/tests/over.rs", &lines(801)),
                ("crates/a/src/over_tests.rs", &lines(700)),
                ("crates/a/src/data.json", &lines(9000)),
            ],
        );
        let found: Vec<(bool, String)> = check(&tree)
            .into_iter()
            .map(|f| match f {
                Finding::Fault(text) => (true, text),
                Finding::Notice(text) => (false, text),
            })
            .collect();
        assert_eq!(found.len(), 3);
        assert!(!found[0].0 && found[0].1.starts_with("`crates/a/src/long.rs` has 501 lines"));
        assert!(found[1].0 && found[1].1.starts_with("`crates/a/src/over.rs` has 801 lines"));
        assert!(!found[2].0 && found[2].1.starts_with("`crates/a/tests/over.rs`"));
    }
}
