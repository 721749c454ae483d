//! The commands: one file and one line in the table each.

use clap::Subcommand;

use crate::Done;
use crate::context::Context;

/// Makes the modules, the choices of the command line and the way to each command from one line a command.
macro_rules! commands {
    ($($module:ident => $Command:ident;)+) => {
        $(pub(crate) mod $module;)+

        /// A command with what was typed behind it.
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            $(#[allow(missing_docs, reason = "each module's arguments say what the command does")]
            $Command($module::Args),)+
        }

        impl Command {
            /// Runs the command.
            pub(crate) fn run(self, context: &Context) -> Done {
                match self { $(Command::$Command(args) => $module::run(args, context),)+ }
            }
        }
    };
}

commands! {
    quickstart => Quickstart;
    init => Init;
    train => Train;
    eval => Eval;
    study => Study;
    export => Export;
    sample => Sample;
    logprobs => Logprobs;
    grade => Grade;
    signals => Signals;
    models => Models;
    runs => Runs;
    show => Show;
    report => Report;
    env => Env;
    agent => Agent;
    approvals => Approvals;
    audit => Audit;
    verify => Verify;
    doctor => Doctor;
}
