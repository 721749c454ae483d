//! The floors of the house: the one table of which crate stands where and what it must not know.

/// One crate.
pub(crate) struct Place {
    /// Dependencies point to lower floors only, never within one.
    pub(crate) floor: u8,
    /// Its folder below `crates`; the package is `surefoot-NAME`.
    pub(crate) name: &'static str,
    holds: &'static str,
    must_not_know: &'static str,
}

const fn at(floor: u8, name: &'static str, holds: &'static str, must_not_know: &'static str) -> Place {
    Place { floor, name, holds, must_not_know }
}

/// Every crate there is or is planned, from the roof down.
pub(crate) const FLOORS: &[Place] = &[
    at(
        10,
        "cli",
        "arguments, environment variables, progress, printing; the binary `surefoot`",
        "anything about maths",
    ),
    at(
        9,
        "server",
        "HTTP in: OpenAI API, Tinker API, evaluation protocol, dashboard, approvals",
        "how training works inside",
    ),
    at(8, "run", "`post_train` (the main loop), run file, resume, studies", "HTTP, terminals"),
    at(
        8,
        "view",
        "a stored run turned into report pages and JSON; one code for file and dashboard",
        "where it is shown",
    ),
    at(
        7,
        "remote",
        "HTTP and protocols out; the model store and its downloads; implements traits from below",
        "rewards, losses",
    ),
    at(6, "eval", "suites, statistics, bundles, re-execution", "training"),
    at(
        5,
        "rollout",
        "many episodes at once; joins sampler, agent, environment; limits and deadlines",
        "losses, the embedded engine",
    ),
    at(4, "env", "environments and graders, one file each", "weights"),
    at(3, "agent", "the one turn loop, tools, memory, teams", "who trains it"),
    at(
        3,
        "train",
        "packing, forward, loss, backward, optimiser; the embedded `Learner` and `Sampler`",
        "algorithm names",
    ),
    at(2, "policy", "the traits `Sampler` and `Learner`, and a scripted fake", "which engine answers"),
    at(2, "algo", "algorithms: finished episodes in, requests and signals out", "tensors, files, clocks"),
    at(
        2,
        "model",
        "architectures, weights, KV cache, sampler kernels, forward and backward of a block",
        "rewards, episodes",
    ),
    at(
        2,
        "gate",
        "coordinator: token, boundary, guard, budget, approval, receipt; pending approvals",
        "HTTP, terminals",
    ),
    at(
        1,
        "loss",
        "loss terms, importance corrections, KL, reductions: scalar maths over log-probabilities",
        "tensors, models",
    ),
    at(1, "guard", "rules over a proposed call; labels; temporal engine", "clock, disk, network (they are arguments)"),
    at(1, "text", "tokenizer, chat template, tool-call dialects", "models"),
    at(1, "store", "run directory, index, checkpoints, episode files", "meaning of what it stores"),
    at(1, "ledger", "Merkle log, checkpoints, signatures, witnesses", "what is logged; verifying links no engine"),
    at(1, "jail", "child processes: process group, deadlines, limits, system-call rules", "what runs in it"),
    at(0, "episode", "the nouns: task, episode, sequence, turn, span, outcome, group, signal", "everything"),
    at(0, "tensor", "deterministic kernels, the arithmetic contract, one pool; weight-file readers", "models"),
];

/// Libraries that one crate keeps to itself, so that what they stand for cannot leak into the others.
pub(crate) const ONLY_IN: &[(&str, &str)] = &[
    ("anstream", "cli"),
    ("anyhow", "cli"),
    ("axum", "server"),
    ("cedar-policy", "guard"),
    ("clap", "cli"),
    ("ed25519-dalek", "ledger"),
    ("indicatif", "cli"),
    ("landlock", "jail"),
    ("parquet", "store"),
    ("ratatui", "cli"),
    ("reqwest", "remote"),
    ("rmcp", "remote"),
    ("rusqlite", "store"),
    ("seccompiler", "jail"),
    ("ureq", "remote"),
    ("zip", "remote"),
];

/// The crates that may hold unsafe code.
pub(crate) const UNSAFE_IN: &[&str] = &["tensor", "jail"];

/// The crate of that name.
pub(crate) fn find(name: &str) -> Option<&'static Place> {
    FLOORS.iter().find(|p| p.name == name)
}

/// The table in Markdown, of the crates that exist.
pub(crate) fn table(existing: &[&str]) -> String {
    let mut out = String::from("| floor | crate | holds | must not know |\n|---|---|---|---|\n");
    for Place { floor, name, holds, must_not_know } in FLOORS.iter().filter(|p| existing.contains(&p.name)) {
        out.push_str(&format!("| {floor} | `{name}` | {holds} | {must_not_know} |\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_goes_down_and_names_each_crate_once() {
        assert!(FLOORS.is_sorted_by(|a, b| a.floor >= b.floor));
        let names: std::collections::BTreeSet<_> = FLOORS.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), FLOORS.len());
        assert!(ONLY_IN.iter().all(|(_, owner)| names.contains(owner)));
        assert!(UNSAFE_IN.iter().all(|owner| names.contains(owner)));
    }

    #[test]
    fn the_printed_table_holds_what_exists() {
        let want = "| floor | crate | holds | must not know |\n|---|---|---|---|\n\
                    | 1 | `jail` | child processes: process group, deadlines, limits, system-call rules | what runs in it |\n";
        assert_eq!(table(&["jail", "nothing"]), want);
    }
}
