//! Where a call would go in a file system: every path in its arguments, in one normal form.
//!
//! - Holds: a path counts as outside as soon as one reading of it is; links cannot be followed here, which is the jail's
//!   part.

use std::collections::BTreeSet;

use super::readings;
use crate::Scope;

/// Longer texts are content, unless their argument's name or format says path.
const LONGEST: usize = 4096;

/// Levels of folders that are told; a deeper path counts as one that cannot be told, so that no text costs more than its
/// length many times over.
const DEEPEST: usize = 64;

/// Dots of a name that endings are told for.
const DOTS: usize = 8;

/// What is known of the paths in a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Paths {
    /// Each path in its normal form, by every reading.
    pub(crate) all: BTreeSet<String>,
    /// Each path and each folder above it.
    pub(crate) within: BTreeSet<String>,
    /// Each name on the way, in lower case.
    pub(crate) parts: BTreeSet<String>,
    /// What follows each dot of the last names, in lower case: `gz` and `tar.gz`.
    pub(crate) endings: BTreeSet<String>,
    /// Those that may lie outside the scope's folders.
    pub(crate) outside: BTreeSet<String>,
    /// Whether one may be a scope's folder itself, or the root.
    pub(crate) top: bool,
    /// Whether one holds a wildcard.
    pub(crate) wild: bool,
    /// Whether one cannot be told from here: a variable, a home, an encoding without end.
    pub(crate) unresolved: bool,
}

impl Paths {
    /// Takes in a text that is a path as a whole: because its argument says so (`named`), or because it looks like one.
    pub(super) fn whole(&mut self, text: &str, named: bool, scope: &Scope) {
        if !named && !looks_whole(text) {
            return;
        }
        self.add(text, scope);
        if named && text.contains(['\n', ',', ';']) {
            text.split(['\n', ',', ';']).for_each(|part| self.add(part, scope));
        }
    }

    /// Takes in every path that a text mentions: words with a separator, a leading dot or tilde; all words when `bare`.
    pub(super) fn mentioned(&mut self, text: &str, bare: bool, scope: &Scope) {
        for word in text.split(|c: char| c.is_whitespace() || "\"'`=,;()<>|&{}[]".contains(c)) {
            let like = bare || word.starts_with(['.', '~']) || word.contains(['/', '\\', '%']) || !word.is_ascii();
            if like && !word.is_empty() {
                self.add(word, scope);
            }
        }
    }

    fn add(&mut self, text: &str, scope: &Scope) {
        let (all, more) = readings::of(text);
        self.unresolved |= more;
        for reading in all {
            let reading = reading.trim_matches(|c: char| c.is_whitespace() || "\"'`".contains(c));
            self.one(reading, scope);
            if reading.contains('\\') {
                self.one(&reading.replace('\\', "/"), scope);
            }
        }
    }

    fn one(&mut self, reading: &str, scope: &Scope) {
        if reading.is_empty() {
            return;
        }
        let reading = without_scheme(reading);
        self.wild |= reading.contains(['*', '?', '[', '{']);
        let away = has_variable(reading) || windows_variable(reading) || home(reading);
        self.unresolved |= away;
        let path = normal(reading, scope.root());
        for part in path.split('/').filter(|p| !p.is_empty()) {
            let lower = part.to_lowercase();
            let trimmed = lower.trim_end_matches(['.', ' ']);
            if trimmed.len() != lower.len() && !trimmed.is_empty() {
                self.parts.insert(trimmed.to_owned());
            }
            self.parts.insert(lower);
        }
        let last = path.rsplit('/').next().unwrap_or_default().trim_end_matches(['.', ' ']).to_lowercase();
        for (at, _) in last.rmatch_indices('.').take(DOTS) {
            self.endings.insert(last[at + 1..].to_owned());
        }
        self.top |= path == "/" || path == "." || scope.folders().contains(&path);
        let levels = path.bytes().filter(|b| *b == b'/').count();
        let untold = levels > DEEPEST || path.len() > LONGEST;
        self.unresolved |= untold;
        if away || untold || !scope.holds(&path) {
            self.outside.insert(path.clone());
        }
        for (at, _) in path.match_indices('/').take(DEEPEST) {
            self.within.insert(if at == 0 { "/".to_owned() } else { path[..at].to_owned() });
        }
        self.within.insert(path.clone());
        self.all.insert(path);
    }
}

fn looks_whole(text: &str) -> bool {
    if text.is_empty() || text.len() > LONGEST || text.contains('\n') {
        return false;
    }
    text.contains(['/', '\\']) || text.starts_with(['~', '.', '$', '%']) || !text.contains(char::is_whitespace)
}

/// Whether a text holds what a shell replaces: `$NAME`, `${`, `$(` or a backtick.
fn has_variable(text: &str) -> bool {
    text.contains('`')
        || text
            .match_indices('$')
            .any(|(at, _)| text[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic() || "_{(".contains(c)))
}

/// Whether a text is or begins with somebody's home: `~`, `~/` or `~name`.
pub(crate) fn home(text: &str) -> bool {
    text.strip_prefix('~').is_some_and(|rest| {
        let name = rest.split('/').next().unwrap_or_default();
        name.is_empty()
            || name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    })
}

/// Whether a text holds `%NAME%`: a name of three letters or more, so that what is percent encoded is none.
fn windows_variable(text: &str) -> bool {
    let mut between = text.split('%').skip(1).peekable();
    while let Some(name) = between.next() {
        let named = name.len() >= 3
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_()".contains(c));
        if named && between.peek().is_some() {
            return true;
        }
    }
    false
}

/// A `file:` address as the path it names. An address of another scheme stays what it is and is a relative path at most.
fn without_scheme(reading: &str) -> &str {
    let Some(head) = reading.get(..5).filter(|h| h.eq_ignore_ascii_case("file:")) else { return reading };
    let rest = &reading[head.len()..];
    match rest.strip_prefix("//") {
        // What stands before the path is a host, which the hosts count.
        Some(authority) => authority.find('/').map_or("/", |at| &authority[at..]),
        None => rest,
    }
}

/// The normal form: absolute where a root is known, no empty or `.` parts, `..` resolved; what climbs above a root that is
/// not known keeps its `..`.
pub(crate) fn normal(path: &str, root: Option<&str>) -> String {
    let bytes = path.as_bytes();
    let drive = bytes.get(1) == Some(&b':') && bytes.first().is_some_and(u8::is_ascii_alphabetic);
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    let base = if absolute || drive || home(path) { None } else { root };
    for part in base.into_iter().flat_map(|b| b.split('/')).chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => match parts.last() {
                Some(&"..") => parts.push(".."),
                // A drive, a home and a variable are not left by climbing in text.
                Some(last) if !last.starts_with(['~', '$', '%']) && (parts.len() > 1 || !drive) => {
                    parts.pop();
                }
                _ if absolute || base.is_some() => {}
                _ => parts.push(".."),
            },
            other => parts.push(other),
        }
    }
    let joined = parts.join("/");
    match () {
        () if absolute || base.is_some() => format!("/{joined}"),
        () if joined.is_empty() => ".".to_owned(),
        () => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        Scope::default().rooted_at("/desk/repo").unwrap().with_folder("/tmp/out").unwrap()
    }

    fn of(text: &str) -> Paths {
        let mut paths = Paths::default();
        paths.whole(text, true, &scope());
        paths
    }

    #[test]
    fn a_normal_form_has_no_dots_and_starts_at_the_root() {
        for (path, root, want) in [
            ("a/./b//c", Some("/w"), "/w/a/b/c"),
            ("../x", Some("/w"), "/x"),
            ("../../../x", Some("/w"), "/x"),
            ("/a/../../b", Some("/w"), "/b"),
            ("a/../../b", None, "../b"),
            ("../../b", None, "../../b"),
            ("", None, "."),
            ("/", None, "/"),
            ("C:/x/../../y", Some("/w"), "C:/../y"),
            ("~/x", Some("/w"), "~/x"),
            ("~/../x", None, "~/../x"),
        ] {
            assert_eq!(normal(path, root), want, "`{path}` under {root:?}");
        }
    }

    #[test]
    fn every_spelling_of_a_place_outside_is_outside() {
        for text in [
            "/etc/passwd",
            "../../etc/passwd",
            "a/../../../etc/passwd",
            "..\\..\\secret",
            "%2e%2e/%2e%2e/etc/passwd",
            "file:///etc/passwd",
            "FILE:/etc/passwd",
            "file://localhost/etc/passwd",
            "~/.ssh/id_rsa",
            "$HOME/x",
            "${HOME}/x",
            "C:\\Windows",
            "\\\\host\\share",
            "\u{ff0f}etc",
            "/desk/repo2/x",
            "/desk/repo/../repo2",
            " /etc/passwd",
            "\"/etc/passwd\"",
            "a.txt, /etc/passwd",
            "ok\n/etc/passwd",
            "/tmp/out/../x",
            "%USERPROFILE%\\x",
            "..%255c..%255cx",
            "/desk/repo\0/../../etc",
        ] {
            let paths = of(text);
            assert!(!paths.outside.is_empty(), "`{text}` is outside: {paths:?}");
        }
    }

    #[test]
    fn what_stays_within_the_folders_is_inside() {
        for text in [
            "a.txt",
            "./a/b",
            "/desk/repo/a",
            "a/../b",
            "/tmp/out/x",
            "src\\main.rs",
            "file:/desk/repo/a",
            "50% done.txt",
            "~100",
            "$5",
            "a~b",
        ] {
            let paths = of(text);
            assert!(paths.outside.is_empty(), "`{text}` is inside: {paths:?}");
        }
    }

    #[test]
    fn names_endings_and_folders_above_are_told() {
        let paths = of("Src/.SSH/key.tar.GZ");
        assert!(["src", ".ssh", "key.tar.gz"].iter().all(|p| paths.parts.contains(*p)), "{paths:?}");
        assert_eq!(paths.endings, ["gz", "tar.gz"].map(str::to_owned).into());
        assert!(["/", "/desk", "/desk/repo", "/desk/repo/Src"].iter().all(|p| paths.within.contains(*p)), "{paths:?}");
        assert!(of(".env. ").parts.contains(".env"));
        assert!(of(".").top && of("/").top && of("/desk/repo/").top && of("x/..").top && !of("x").top);
        assert!(of("*.rs").wild && !of("a.rs").wild);
    }

    #[test]
    fn content_is_not_taken_for_a_path_unless_its_argument_says_so() {
        let mut paths = Paths::default();
        paths.whole("#!/bin/sh\ncat ../../x\n", false, &scope());
        paths.whole("some words", false, &scope());
        assert_eq!(paths, Paths::default());
        paths.mentioned("cat ../../x > 'y z'", false, &scope());
        assert_eq!(paths.outside, ["/x".to_owned()].into());
    }

    #[test]
    fn no_text_costs_more_than_its_length_some_times_over() {
        for text in ["/a".repeat(300_000), "a.".repeat(300_000), "../".repeat(200_000), "a/../".repeat(100_000) + "x"] {
            let paths = of(&text);
            let told: usize = paths.within.iter().chain(&paths.endings).map(String::len).sum();
            assert!(told <= 2_000_000, "{told}");
        }
        let deep = of(&"a/".repeat(100));
        assert!(deep.unresolved && !deep.outside.is_empty(), "what is too deep to be told is not taken for inside");
        assert!(!of(&"a/".repeat(60)).unresolved);
    }

    proptest::proptest! {
        #[test]
        fn no_walk_that_ends_outside_is_taken_for_one_inside(
            parts in proptest::collection::vec(proptest::sample::select(vec!["a", "b", ".", "..", "", "c.txt"]), 0..12),
            absolute: bool,
        ) {
            let text = format!("{}{}", if absolute { "/" } else { "./" }, parts.join("/"));
            // A second, plainer way to walk.
            let mut at: Vec<&str> = if absolute { vec![] } else { vec!["work", "repo"] };
            for part in &parts {
                match *part {
                    "" | "." => {}
                    ".." => { at.pop(); }
                    p => at.push(p),
                }
            }
            let inside = at.starts_with(&["work", "repo"]) || at.starts_with(&["tmp", "out"]);
            for text in [text.clone(), text.replace('/', "\\"), text.replace('.', "%2e"), text.replace('/', "\u{2215}")] {
                let paths = of(&text);
                if !inside {
                    proptest::prop_assert!(!paths.outside.is_empty(), "`{text}`: {paths:?}");
                }
            }
            if inside {
                proptest::prop_assert!(of(&text).outside.is_empty(), "`{text}`: {:?}", of(&text));
            }
        }
    }
}
