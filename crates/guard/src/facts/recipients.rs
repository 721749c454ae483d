//! To whom a call would hand something: every address and account in its arguments, in one normal form.

use std::collections::BTreeSet;

use super::readings;
use crate::{Readers, Scope};

/// What is known of the recipients in a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Recipients {
    /// Each recipient, in lower case.
    pub(crate) all: BTreeSet<String>,
    /// What follows the `@` of each.
    pub(crate) domains: BTreeSet<String>,
    /// Those that the scope does not name.
    pub(crate) outside: BTreeSet<String>,
    /// Those that may not see all of what the call may carry.
    pub(crate) not_readers: BTreeSet<String>,
}

impl Recipients {
    /// Takes in a text: every mail address in it, and, when its argument says that it names recipients, each of its names.
    pub(super) fn text(&mut self, text: &str, named: bool, scope: &Scope, readers: &Readers) {
        if !named && !text.contains(['@', '%']) && text.is_ascii() {
            return;
        }
        for reading in readings::of(text).0 {
            let mut mails = 0;
            for word in reading.split(|c: char| c.is_whitespace() || "<>,;()[]\"'|?&=".contains(c)) {
                let word = word.strip_prefix("mailto:").unwrap_or(word).trim_matches([':', '.']);
                if word.rsplit_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()) {
                    self.add(word, scope, readers);
                    mails += 1;
                }
            }
            if named && mails == 0 {
                reading.split([',', ';', '\n']).for_each(|name| self.add(name, scope, readers));
            }
        }
    }

    fn add(&mut self, name: &str, scope: &Scope, readers: &Readers) {
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            return;
        }
        if let Some((_, domain)) = name.rsplit_once('@') {
            self.domains.insert(domain.to_owned());
        }
        if !scope.delivers_to(&name) {
            self.outside.insert(name.clone());
        }
        if let Readers::Only(who) = readers
            && !who.iter().any(|reader| reader.to_lowercase() == name)
        {
            self.not_readers.insert(name.clone());
        }
        self.all.insert(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, named: bool) -> Recipients {
        let scope =
            Scope::default().with_recipient("ada@good.example").unwrap().with_recipient("@ours.example").unwrap();
        let mut recipients = Recipients::default();
        recipients.text(text, named, &scope, &Readers::Only(["Ada@good.example".to_owned()].into()));
        recipients
    }

    #[test]
    fn every_spelling_of_a_recipient_is_that_recipient() {
        for text in [
            "eve@evil.example",
            "EVE@evil.example",
            "Ada <eve@evil.example>",
            "ada@good.example,eve@evil.example",
            "ada@good.example; eve@evil.example",
            "\"ada@good.example\" <eve@evil.example>",
            "mailto:eve@evil.example?subject=x",
            "eve%40evil.example",
            "eve\u{ff20}evil.example",
            "to eve@evil.example, please",
            "mailto:ada@good.example?bcc=eve@evil.example",
        ] {
            for named in [false, true] {
                let recipients = of(text, named);
                assert!(recipients.all.contains("eve@evil.example"), "`{text}`: {recipients:?}");
                assert!(recipients.outside.contains("eve@evil.example"), "`{text}`: {recipients:?}");
                assert!(recipients.not_readers.contains("eve@evil.example"), "`{text}`: {recipients:?}");
            }
        }
    }

    #[test]
    fn who_is_named_in_the_scope_is_inside() {
        for (text, inside) in [
            ("ada@good.example", true),
            ("Ada@Good.Example", true),
            ("bob@ours.example", true),
            ("bob@good.example", false),
            ("bob@ours.example.evil.example", false),
            ("bob@notours.example", false),
            ("GB33 BUKB 2020 1555 5555 55", false),
        ] {
            assert_eq!(of(text, true).outside.is_empty(), inside, "`{text}`");
        }
        assert!(of("ada@good.example", true).not_readers.is_empty());
        assert!(!of("bob@ours.example", true).not_readers.is_empty());
        assert_eq!(of("some words", false), Recipients::default());
        assert!(of("bob", true).all.contains("bob"));
    }
}
