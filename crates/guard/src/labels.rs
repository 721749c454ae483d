//! What is known of data: where it comes from, whether it is trusted, who may see it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Where data comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Standing instructions.
    System,
    /// Whoever the agent acts for.
    User,
    /// A tool, by name.
    Tool(String),
    /// A page or a message from outside.
    Web,
    /// The agent's memory.
    Memory,
}

/// Who may see data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Readers {
    /// Anybody.
    #[default]
    Everyone,
    /// These alone.
    Only(BTreeSet<String>),
}

/// The labels of a value.
///
/// - Holds: [`Labels::join`] is idempotent, commutative and associative, and loses no label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Labels {
    /// Where it comes from.
    pub origins: BTreeSet<Origin>,
    /// Whether any of it was written by somebody who is not trusted.
    pub untrusted: bool,
    /// The classes of data in it.
    pub sensitivity: BTreeSet<String>,
    /// Who may see it.
    pub readers: Readers,
}

impl Labels {
    /// Trusted data of one origin that anybody may see.
    pub fn of(origin: Origin) -> Self {
        Labels { origins: [origin].into(), ..Labels::default() }
    }

    /// Untrusted data of one origin that anybody may see.
    pub fn untrusted(origin: Origin) -> Self {
        Labels { untrusted: true, ..Labels::of(origin) }
    }

    /// The labels of what was made from both.
    #[must_use]
    pub fn join(&self, other: &Labels) -> Labels {
        let readers = match (&self.readers, &other.readers) {
            (Readers::Everyone, r) | (r, Readers::Everyone) => r.clone(),
            (Readers::Only(a), Readers::Only(b)) => Readers::Only(a & b),
        };
        Labels {
            origins: &self.origins | &other.origins,
            untrusted: self.untrusted || other.untrusted,
            sensitivity: &self.sensitivity | &other.sensitivity,
            readers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn some_labels()(
            origins in prop::collection::btree_set(prop_oneof![
                Just(Origin::System), Just(Origin::User), Just(Origin::Web), Just(Origin::Memory), "[ab]".prop_map(Origin::Tool),
            ], 0..4),
            untrusted: bool,
            sensitivity in prop::collection::btree_set("[abc]", 0..3),
            readers in prop::option::of(prop::collection::btree_set("[abc]", 0..3)),
        ) -> Labels {
            Labels { origins, untrusted, sensitivity, readers: readers.map_or(Readers::Everyone, Readers::Only) }
        }
    }

    fn sees(readers: &Readers, who: &str) -> bool {
        match readers {
            Readers::Everyone => true,
            Readers::Only(set) => set.contains(who),
        }
    }

    proptest! {
        #[test]
        fn join_is_a_least_upper_bound(a in some_labels(), b in some_labels(), c in some_labels()) {
            prop_assert_eq!(a.join(&a), a.clone());
            prop_assert_eq!(a.join(&b), b.join(&a));
            prop_assert_eq!(a.join(&b).join(&c), a.join(&b.join(&c)));
            prop_assert_eq!(a.join(&Labels::default()), a.clone());
            // What is above both is above their join.
            if a.join(&c) == c && b.join(&c) == c {
                prop_assert_eq!(a.join(&b).join(&c), c);
            }
        }

        #[test]
        fn join_loses_no_label_and_lets_nobody_see_who_could_not(a in some_labels(), b in some_labels()) {
            let both = a.join(&b);
            for one in [&a, &b] {
                prop_assert!(both.origins.is_superset(&one.origins) && both.sensitivity.is_superset(&one.sensitivity));
                prop_assert!(both.untrusted >= one.untrusted);
            }
            for who in ["a", "b", "c", "d"] {
                prop_assert_eq!(sees(&both.readers, who), sees(&a.readers, who) && sees(&b.readers, who));
            }
        }
    }

    #[test]
    fn labels_survive_json_and_unknown_ones_are_refused() {
        let labels = Labels {
            origins: [Origin::User, Origin::Tool("web".into())].into(),
            untrusted: true,
            sensitivity: ["health".to_owned()].into(),
            readers: Readers::Only(["ada".to_owned()].into()),
        };
        let text = serde_json::to_string(&labels).unwrap();
        assert_eq!(
            text,
            r#"{"origins":["user",{"tool":"web"}],"untrusted":true,"sensitivity":["health"],"readers":{"only":["ada"]}}"#
        );
        assert_eq!(serde_json::from_str::<Labels>(&text).unwrap(), labels);
        assert!(serde_json::from_str::<Labels>(r#"{"trusted":true}"#).is_err());
    }
}
