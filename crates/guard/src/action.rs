//! The classes of action and of data that rules speak of: one line each, and nothing else knows them.

macro_rules! classes {
    ($(#[$doc:meta])* $name:ident, $list:ident : $($(#[doc = $meaning:literal])+ $variant:ident = $word:literal,)+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl $name {
            /// The word tools and rules use.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }

            /// What it means, in one line.
            pub fn meaning(self) -> &'static str {
                match self { $($name::$variant => concat!($($meaning),+).trim_ascii(),)+ }
            }

            /// The class a word names, if any.
            pub fn parse(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }
        }

        /// Every class, in the table's order.
        pub fn $list() -> &'static [$name] {
            &[$($name::$variant,)+]
        }
    };
}

classes! {
    /// What a tool does, as far as rules care. A tool of a class that is not here is denied.
    ActionClass, action_classes:
    /// Looks at something inside the agent's own world, leaving it as it is.
    Read = "read",
    /// Finds things inside the agent's own world, leaving it as it is.
    Search = "search",
    /// Makes something new that can be taken away again.
    Create = "create",
    /// Changes something that is there.
    Update = "update",
    /// Takes something away, perhaps for good.
    Delete = "delete",
    /// Puts something in another place or under another name.
    Move = "move",
    /// Hands something to named recipients.
    Send = "send",
    /// Shows something to whoever cares to look.
    Publish = "publish",
    /// Moves money, or binds somebody to do so.
    Pay = "pay",
    /// Runs code or commands.
    Execute = "execute",
    /// Reads from outside the agent's own world.
    Fetch = "fetch",
    /// Opens a lasting connection to, or writes at, a place outside.
    Connect = "connect",
    /// Reads, makes, changes or uses keys, passwords and tokens.
    Credential = "credential",
    /// Changes settings of a system.
    Configure = "configure",
    /// Grades work, or touches what grades it.
    Score = "score",
    /// Decides about a person: credit, benefits, employment, schooling, liberty.
    DecidePerson = "decide_person",
    /// Follows, identifies or profiles persons.
    TrackPerson = "track_person",
    /// Directs, aims or releases a weapon, or picks its target.
    DirectWeapon = "direct_weapon",
    /// Changes rules, limits, logging, approvals or other safeguards.
    Safeguard = "safeguard",
    /// Starts another agent or hands work to it.
    Delegate = "delegate",
    /// Gives the answer that ends the task.
    Answer = "answer",
}

classes! {
    /// What data is about, as far as rules care. A tool that touches a class that is not here is denied.
    DataClass, data_classes:
    /// Anybody may see it.
    Public = "public",
    /// For the organisation alone.
    Internal = "internal",
    /// About a person who can be told from it.
    Personal = "personal",
    /// Where persons are or were.
    Location = "location",
    /// Bodies measured to tell persons apart: faces, voices, prints, gaits.
    Biometric = "biometric",
    /// About the health of a person.
    Health = "health",
    /// Accounts, cards, income, debts.
    Financial = "financial",
    /// Keys, passwords, tokens.
    Credentials = "credentials",
    /// Programs and their history.
    Code = "code",
    /// Gold answers, graders, held-out tasks.
    Evaluation = "evaluation",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_found_by_its_word_and_says_what_it_means() {
        for class in action_classes() {
            assert_eq!(ActionClass::parse(class.as_str()), Some(*class));
            assert!(class.meaning().ends_with('.'), "`{}` has a meaning", class.as_str());
        }
        for class in data_classes() {
            assert_eq!(DataClass::parse(class.as_str()), Some(*class));
            assert!(class.meaning().ends_with('.'), "`{}` has a meaning", class.as_str());
        }
        assert_eq!((action_classes().len(), data_classes().len()), (21, 10));
    }

    #[test]
    fn nothing_near_a_word_names_a_class() {
        for word in ["", "Read", "read ", "reads", "direct-weapon", "сreate"] {
            assert_eq!(ActionClass::parse(word), None, "`{word}`");
        }
    }
}
