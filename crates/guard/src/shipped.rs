//! The packs that come with this crate: one line each; their rules and cases are data beside it.

use crate::{Cases, GuardError, Pack};

macro_rules! shipped {
    ($($(#[doc = $about:literal])+ $name:ident = $folder:literal,)+) => {
        /// A pack that comes with this crate.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Shipped {
            $($(#[doc = $about])+ $name,)+
        }

        impl Shipped {
            /// All of them, in the order in which they are laid over one another.
            pub const ALL: &[Shipped] = &[$(Shipped::$name,)+];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Shipped::$name => $folder,)+ }
            }

            fn texts(self) -> [&'static str; 4] {
                match self {
                    $(Shipped::$name => [
                        include_str!(concat!("../packs/", $folder, "/pack.toml")),
                        include_str!(concat!("../packs/", $folder, "/rules.cedar")),
                        include_str!(concat!("../packs/", $folder, "/history.toml")),
                        include_str!(concat!("../packs/", $folder, "/cases.json")),
                    ],)+
                }
            }
        }
    };
}

shipped! {
    /// Everything in a simulation.
    Open = "open",
    /// Least privilege: the ground for agents at work.
    Baseline = "baseline",
    /// What no agent may do, by classes.
    RedLines = "red-lines",
    /// Destinations, deletion, credentials, remotes, payments, scores.
    Workspace = "workspace",
}

impl Shipped {
    /// The pack a name stands for, if any.
    pub fn named(name: &str) -> Option<Shipped> {
        Shipped::ALL.iter().copied().find(|pack| pack.name() == name)
    }

    /// The pack.
    ///
    /// - Errors: none, as a test sees to; the texts are part of this crate.
    pub fn pack(self) -> Result<Pack, GuardError> {
        let [header, rules, history, _] = self.texts();
        Pack::read(header, rules, history)
    }

    /// What shows that each of its rules stops and lets through what it should.
    ///
    /// - Errors: none, as a test sees to.
    pub fn cases(self) -> Result<Cases, GuardError> {
        Cases::read(self.texts()[3])
    }
}
