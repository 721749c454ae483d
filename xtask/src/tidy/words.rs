//! Words that must not be in the tree.

use super::{Finding, Tree};

/// The folder beside the checkout that some machines have; put together here so that this file passes its own rule.
const BESIDE: &str = concat!("..", "/shared");

/// Marks of unfinished work.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Files in which a mark of unfinished work is one.
const CODE: [&str; 6] = [".rs", ".toml", ".py", ".sh", ".yml", "/run"];

/// No file names a place that only this machine has.
pub(crate) fn places(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in &tree.sources {
        for (at, line) in source.text.lines().enumerate() {
            let place = tree.here.iter().map(String::as_str).chain([BESIDE]).find(|place| line.contains(place));
            if let Some(place) = place {
                found.push(Finding::Fault(format!("`{}:{}` names `{place}`", source.path, at + 1)));
            }
        }
    }
    found
}

/// Work that is left names the issue it is left for, as in `MARK(#12)`.
pub(crate) fn left_to_do(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in tree.sources.iter().filter(|s| CODE.iter().any(|end| s.path.ends_with(end))) {
        for (at, line) in source.text.lines().enumerate() {
            let bare = MARKS.iter().find(|mark| {
                line.match_indices(*mark).any(|(start, _)| {
                    let alone = !line[..start].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
                    let after = &line[start + mark.len()..];
                    let alone = alone && !after.chars().next().is_some_and(|c| c.is_alphanumeric() || c == '_');
                    let number = after.trim_start_matches(['(', ' ', ':']).strip_prefix('#');
                    alone && !number.is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()))
                })
            });
            if let Some(mark) = bare {
                found.push(Finding::Fault(format!(
                    "`{}:{}`: needed an issue, as in `{mark}(#12)`",
                    source.path,
                    at + 1
                )));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    #[test]
    fn places_of_this_machine_are_faults() {
        let text = format!("fine\nsee /some/checkout/x\nand {BESIDE}/y\n");
        let tree = tree(&[], &[("README.md", &text), ("a.rs", "/other/checkout/")]);
        let want = [
            Finding::Fault("`README.md:2` names `/some/checkout/`".to_string()),
            Finding::Fault(format!("`README.md:3` names `{BESIDE}`")),
        ];
        assert_eq!(places(&tree), want);
    }

    #[test]
    fn unfinished_work_names_an_issue() {
        let mark = MARKS[0];
        let check = |line: String, want: usize| {
            let tree = tree(&[], &[("a.rs", &line), ("a.md", &line)]);
            assert_eq!(left_to_do(&tree).len(), want, "{line}");
        };
        check(format!("// {mark}(#12): x"), 0);
        check(format!("// {mark} #3 x"), 0);
        check(format!("{mark}S and A{mark} and {mark}_X"), 0);
        check(format!("// {mark}: x"), 1);
        check(format!("// {mark}(#): x"), 1);
        check(format!("// {mark}(me)"), 1);
    }
}
