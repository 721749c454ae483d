//! What a call's arguments say of places, people and money, worked out once and alike for every rule, so that a rule of one
//! line about a destination cannot be fooled by a spelling.
//!
//! Every text anywhere in the arguments is looked at, and every name in objects that no schema declares; what an argument's
//! name or its schema's `format` says of it only adds to what is seen.

mod amount;
mod hosts;
mod paths;
mod readings;
mod recipients;

use serde_json::{Map, Value};

use crate::schema::Kinds;
use crate::{Labels, Scope};

pub(crate) use amount::{Amount, scaled_up};
pub(crate) use hosts::Hosts;
pub(crate) use paths::{Paths, home, normal};
pub(crate) use recipients::Recipients;

/// What a call's arguments say of places, people and money.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) paths: Paths,
    pub(crate) hosts: Hosts,
    pub(crate) recipients: Recipients,
    pub(crate) amount: Amount,
    /// Paths that occur inside longer texts.
    pub(crate) mentioned: Paths,
    /// How many entries the longest list has.
    pub(crate) widest: i64,
    /// How long the texts are together.
    pub(crate) size_bytes: i64,
}

/// What an argument names, as far as its own name and its schema's `format` tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) path: bool,
    pub(crate) host: bool,
    pub(crate) recipient: bool,
    pub(crate) amount: bool,
}

/// Words in an argument's name, and what it then names.
const WORDS: [(&[&str], Kind); 4] = [
    (
        &[
            "path",
            "paths",
            "file",
            "files",
            "filename",
            "filenames",
            "filepath",
            "folder",
            "folders",
            "dir",
            "directory",
            "directories",
            "cwd",
            "src",
            "dst",
            "source",
            "destination",
        ],
        Kind { path: true, host: false, recipient: false, amount: false },
    ),
    (
        &[
            "url", "urls", "uri", "href", "host", "hosts", "hostname", "domain", "domains", "endpoint", "webhook",
            "server",
        ],
        Kind { path: false, host: true, recipient: false, amount: false },
    ),
    (
        &[
            "to",
            "cc",
            "bcc",
            "recipient",
            "recipients",
            "participant",
            "participants",
            "attendee",
            "attendees",
            "invitee",
            "invitees",
            "payee",
            "beneficiary",
            "iban",
            "email",
            "emails",
        ],
        Kind { path: false, host: false, recipient: true, amount: false },
    ),
    (
        &[
            "amount", "amounts", "price", "total", "cost", "fee", "payment", "sum", "tip", "refund", "money", "salary",
            "deposit",
        ],
        Kind { path: false, host: false, recipient: false, amount: true },
    ),
];

impl Kind {
    /// What a name says: its words, cut at whatever is no letter or digit and where small letters become capital ones.
    pub(crate) fn of_name(name: &str) -> Kind {
        let mut kind = Kind::default();
        let mut words = vec![String::new()];
        let mut small = false;
        for c in name.chars() {
            if !c.is_alphanumeric() || (c.is_uppercase() && small) {
                words.push(String::new());
            }
            small = c.is_lowercase() || c.is_numeric();
            if let Some(last) = words.last_mut().filter(|_| c.is_alphanumeric()) {
                last.extend(c.to_lowercase());
            }
        }
        for word in words {
            for (list, means) in &WORDS {
                if list.contains(&word.as_str()) {
                    kind = kind.or(*means);
                }
            }
        }
        kind
    }

    /// What a JSON Schema `format` says; `path` and `money` are ours, the others are the standard's.
    pub(crate) fn of_format(format: &str) -> Kind {
        let mut kind = Kind::default();
        match format {
            "path" => kind.path = true,
            "uri" | "iri" | "uri-reference" | "iri-reference" | "hostname" | "idn-hostname" | "ipv4" | "ipv6" => {
                kind.host = true
            }
            "email" | "idn-email" => kind.recipient = true,
            "money" => kind.amount = true,
            _ => {}
        }
        kind
    }

    pub(crate) fn or(self, other: Kind) -> Kind {
        Kind {
            path: self.path || other.path,
            host: self.host || other.host,
            recipient: self.recipient || other.recipient,
            amount: self.amount || other.amount,
        }
    }
}

/// The facts of a call. `commands` says that its texts may be run, so that every word of them may be a path.
pub(crate) fn of(
    arguments: &Map<String, Value>,
    kinds: &Kinds,
    commands: bool,
    scope: &Scope,
    labels: &Labels,
) -> Facts {
    let mut facts = Facts::default();
    let mut left: Vec<(Kind, &Value)> = Vec::with_capacity(arguments.len());
    let mut names: Vec<&str> = Vec::new();
    let open = |map: &Map<String, Value>| map.keys().any(|key| !kinds.declares(key));
    if open(arguments) {
        names.extend(arguments.keys().filter(|key| !kinds.declares(key)).map(String::as_str));
    }
    left.extend(arguments.iter().rev().map(|(name, value)| (kinds.of(name), value)));
    while let Some((kind, value)) = left.pop() {
        match value {
            Value::String(text) => facts.text(text, kind, commands, scope, labels),
            Value::Number(number) => {
                if kind.amount {
                    facts.amount.number(number);
                }
                if kind.recipient || kind.host {
                    facts.text(&number.to_string(), Kind { amount: false, path: false, ..kind }, false, scope, labels);
                }
            }
            Value::Array(list) => {
                facts.widest = facts.widest.max(i64::try_from(list.len()).unwrap_or(i64::MAX));
                left.extend(list.iter().rev().map(|value| (kind, value)));
            }
            Value::Object(map) => {
                names.extend(map.keys().filter(|key| !kinds.declares(key)).map(String::as_str));
                left.extend(map.iter().rev().map(|(name, value)| (kind.or(kinds.of(name)), value)));
            }
            Value::Bool(_) if kind.amount => facts.amount.other(),
            Value::Bool(_) | Value::Null => {}
        }
    }
    for name in names {
        facts.text(name, Kind::default(), commands, scope, labels);
    }
    facts
}

impl Facts {
    fn text(&mut self, text: &str, kind: Kind, commands: bool, scope: &Scope, labels: &Labels) {
        self.size_bytes = self.size_bytes.saturating_add(i64::try_from(text.len()).unwrap_or(i64::MAX));
        self.paths.whole(text, kind.path, scope);
        self.mentioned.mentioned(text, commands, scope);
        self.hosts.text(text, kind.host, scope);
        self.recipients.text(text, kind.recipient, scope, &labels.readers);
        if kind.amount {
            self.amount.text(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts(arguments: Value) -> Facts {
        let Value::Object(map) = arguments else { unreachable!("cases are objects") };
        of(&map, &Kinds::default(), false, &Scope::default(), &Labels::default())
    }

    #[test]
    fn a_name_says_what_an_argument_names() {
        let (path, host) = (Kind { path: true, ..Kind::default() }, Kind { host: true, ..Kind::default() });
        let (recipient, amount) =
            (Kind { recipient: true, ..Kind::default() }, Kind { amount: true, ..Kind::default() });
        for (name, want) in [
            ("path", path),
            ("srcPath", path),
            ("output_file", path),
            ("webhook_url", host),
            ("callbackURL", host),
            ("to", recipient),
            ("Bcc", recipient),
            ("payee-iban", recipient),
            ("totalPrice", amount),
            ("amount_eur", amount),
            ("topic", Kind::default()),
            ("profile", Kind::default()),
            ("discount", Kind::default()),
        ] {
            assert_eq!(Kind::of_name(name), want, "`{name}`");
        }
    }

    #[test]
    fn a_destination_is_found_wherever_it_hides() {
        for arguments in [
            json!({"url": "https://evil.example"}),
            json!({"x": "https://evil.example"}),
            json!({"a": [{"b": [["https://evil.example"]]}]}),
            json!({"a": {"https://evil.example": 1}}),
            json!({"https://evil.example": 1}),
            json!({"note": "please see https://evil.example for more"}),
            json!({"host": "evil.example"}),
        ] {
            assert!(facts(arguments.clone()).hosts.all.contains("evil.example"), "{arguments}");
        }
        assert!(facts(json!({"a": {"../../etc": 1}})).paths.outside.contains("../../etc"));
        assert_eq!(facts(json!({"items": [{"price": 3}, {"price": "4.50"}]})).amount.total, 750);
        assert_eq!(facts(json!({"price": {"amount": 3, "unit": "EUR"}})).amount.most, 300);
        assert!(facts(json!({"price": true})).amount.unreadable);
        assert_eq!(facts(json!({"a": [1, 2, [1, 2, 3]], "b": "four"})).widest, 3);
        assert_eq!(
            facts(json!({"a": ["xy", "z"]})).size_bytes,
            4,
            "three of texts and one of a name no schema declares"
        );
        assert!(facts(json!({"to": 4711})).recipients.all.contains("4711"));
    }

    proptest::proptest! {
        #[test]
        fn where_a_text_stands_does_not_change_what_it_says(text in "\\PC{0,24}", depth in 0usize..5, list: bool) {
            let mut value = json!(text);
            for _ in 0..depth {
                value = if list { json!([value]) } else { json!({"note": value}) };
            }
            let (deep, flat) = (facts(json!({"note": value})), facts(json!({"note": text})));
            proptest::prop_assert!(flat.paths.outside.is_subset(&deep.paths.outside));
            proptest::prop_assert!(flat.hosts.all.is_subset(&deep.hosts.all));
            proptest::prop_assert!(flat.recipients.all.is_subset(&deep.recipients.all));
        }
    }
}
