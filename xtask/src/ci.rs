//! Everything CI runs, in its order; `.ci/run` calls this, so that a green run here is a green run there.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// One step: its name, what it does, and how.
struct Step {
    name: &'static str,
    about: &'static str,
    run: fn(&Shell<'_>) -> Result<(), String>,
}

const fn step(name: &'static str, about: &'static str, run: fn(&Shell<'_>) -> Result<(), String>) -> Step {
    Step { name, about, run }
}

/// The steps in their order: cheap ones first, the tests last. A new check is one function below and one line here.
const STEPS: &[Step] = &[
    step("fmt", "layout of the code", fmt),
    step("tidy", "rules of the house", tidy),
    step("deny", "licences, banned crates, sources", deny),
    step("machete", "unused dependencies", machete),
    step("clippy", "lints on every target", clippy),
    step("doc", "documentation without warnings", doc),
    step("xtask-test", "tests of these checks", xtask_test),
    step("faults", "tests turn red when they must", faults),
    step("fuzz", "short fuzzing, where the tools are", fuzz),
    step("model", "the real model for the tests", model),
    step("quickstart", "the quickstart shortened, where the model is", quickstart),
    step("kernels", "products as a share of this machine's ceiling", kernels),
    step("test", "all tests", test),
];

fn fmt(shell: &Shell<'_>) -> Result<(), String> {
    shell.cargo(&["fmt", "--all", "--check"], &[])
}

fn tidy(shell: &Shell<'_>) -> Result<(), String> {
    crate::tidy::run(shell.root)
}

fn deny(shell: &Shell<'_>) -> Result<(), String> {
    // Advisories need a database from the network and are not checked here.
    shell.cargo(
        &[
            "deny",
            "--all-features",
            "check",
            "--hide-inclusion-graph",
            "-A",
            "unused-wrapper",
            "bans",
            "licenses",
            "sources",
        ],
        &[],
    )
}

fn machete(shell: &Shell<'_>) -> Result<(), String> {
    shell.cargo(&["machete", "--with-metadata", "--skip-target-dir"], &[])
}

fn clippy(shell: &Shell<'_>) -> Result<(), String> {
    shell.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
}

fn doc(shell: &Shell<'_>) -> Result<(), String> {
    shell.cargo(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
}

fn xtask_test(shell: &Shell<'_>) -> Result<(), String> {
    shell.cargo(&["test", "--package", "xtask"], &[])
}

/// Three steps and twenty held-out tasks: that the command works on the real model, not that it learns.
fn quickstart(shell: &Shell<'_>) -> Result<(), String> {
    let installed = shell.cargo(&["run", "--release", "--quiet", "--", "models", "info", "smollm2-135m"], &[]);
    if installed.is_err() {
        println!("ci: quickstart skipped: the model is not there");
        return Ok(());
    }
    let out = shell.root.join("target/ci-quickstart");
    if out.exists() {
        std::fs::remove_dir_all(&out).map_err(|e| format!("cannot remove `{}`: {e}", out.display()))?;
    }
    let out = out.display().to_string();
    let short = ["--set", "steps=3", "--set", "eval.tasks=20"];
    let command = ["run", "--release", "--quiet", "--", "quickstart", "--json", "--out", &out];
    shell.cargo(&[&command[..], &short].concat(), &[])
}

fn kernels(shell: &Shell<'_>) -> Result<(), String> {
    let command =
        ["run", "--release", "--quiet", "--package", "surefoot-tensor", "--example", "kernels", "--", "--check"];
    shell.cargo(&command, &[])
}

fn faults(shell: &Shell<'_>) -> Result<(), String> {
    crate::faults::run(shell.root)
}

/// Seconds for each target: long enough to find what a change has just broken. The same entry points run with seeds in
/// the ordinary tests.
const FUZZ_SECONDS: u32 = 10;

fn fuzz(shell: &Shell<'_>) -> Result<(), String> {
    if !shell.is_there("cargo", &["+nightly", "fuzz", "--version"]) {
        println!("ci: fuzz skipped: needs a nightly toolchain and cargo-fuzz; the seeded tests still run");
        return Ok(());
    }
    let targets = shell.output("cargo", &["+nightly", "fuzz", "list"])?;
    // Left out: they would build the whole engine, or the rules' engine, once more; `cargo test` runs their seeded twins.
    for target in targets.split_whitespace().filter(|t| !["run_file", "tasks"].contains(t)) {
        let time = format!("-max_total_time={FUZZ_SECONDS}");
        shell.run(
            "cargo",
            &["+nightly", "fuzz", "run", target, "--", &time, "-rss_limit_mb=2048", "-verbosity=0"],
            &[],
        )?;
    }
    Ok(())
}

fn model(shell: &Shell<'_>) -> Result<(), String> {
    let pull = ["run", "--release", "-p", "surefoot-cli", "--", "models", "pull", "smollm2-135m"];
    // Without a network the tests on the real model say that they were skipped. A binary that does not build is another
    // matter.
    shell.cargo(&["build", "--release", "-p", "surefoot-cli"], &[])?;
    if let Err(message) = shell.cargo(&pull, &[]) {
        println!("ci: warning: {message}; tests on the real model will be skipped");
    }
    Ok(())
}

/// The command of the README, as it is there.
fn test(shell: &Shell<'_>) -> Result<(), String> {
    shell.cargo(&["test"], &[])
}

/// Runs the steps, or only those named.
pub(crate) fn run(root: &Path, only: &[&str]) -> Result<(), String> {
    if let Some(unknown) = only.iter().find(|name| STEPS.iter().all(|s| s.name != **name)) {
        let known: Vec<&str> = STEPS.iter().map(|s| s.name).collect();
        return Err(format!("no step `{unknown}`, needed one of {}", known.join(", ")));
    }
    let shell = Shell { root };
    for step in STEPS.iter().filter(|s| only.is_empty() || only.contains(&s.name)) {
        println!("ci: {}: {}", step.name, step.about);
        let started = Instant::now();
        let result = (step.run)(&shell);
        let seconds = started.elapsed().as_secs_f64();
        if let Err(message) = result {
            return Err(format!("ci: {} failed after {seconds:.1} s: {message}", step.name));
        }
        println!("ci: {} passed in {seconds:.1} s", step.name);
    }
    Ok(())
}

/// Where commands run.
pub(crate) struct Shell<'a> {
    pub(crate) root: &'a Path,
}

impl Shell<'_> {
    fn cargo(&self, args: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
        self.run("cargo", args, variables)
    }

    /// Runs a command with the terminal's output and nothing to read.
    fn run(&self, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
        let line = format!("{program} {}", args.join(" "));
        println!("ci: $ {line}");
        let status = self
            .command(program, args)
            .envs(variables.iter().copied())
            .status()
            .map_err(|e| format!("cannot start `{line}`: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("`{line}` ended with {status}")) }
    }

    fn output(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let line = format!("{program} {}", args.join(" "));
        let output = self.command(program, args).output().map_err(|e| format!("cannot start `{line}`: {e}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("`{line}` ended with {}", output.status))
        }
    }

    fn is_there(&self, program: &str, args: &[&str]) -> bool {
        let mut command = self.command(program, args);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.root).stdin(Stdio::null());
        // `cargo xtask` runs inside Cargo, whose choice of toolchain and package must not reach the steps.
        for name in ["CARGO", "RUSTUP_TOOLCHAIN", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME"] {
            command.env_remove(name);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_one_name_each_and_unknown_ones_are_refused() {
        let names: std::collections::BTreeSet<_> = STEPS.iter().map(|s| s.name).collect();
        assert_eq!(names.len(), STEPS.len());
        let error = run(Path::new("."), &["tests"]).unwrap_err();
        assert!(error.starts_with("no step `tests`, needed one of fmt, "), "{error}");
        assert_eq!(STEPS.last().unwrap().name, "test", "the counts of the tests close the log");
    }

    #[test]
    fn a_failed_command_is_named() {
        let shell = Shell { root: Path::new("/") };
        assert_eq!(shell.run("true", &[], &[]), Ok(()));
        let error = shell.run("sh", &["-c", "exit 3"], &[]).unwrap_err();
        assert_eq!(error, "`sh -c exit 3` ended with exit status: 3");
        assert!(shell.run("/nowhere/tool", &[], &[]).unwrap_err().starts_with("cannot start `/nowhere/tool"));
        assert_eq!(shell.output("echo", &["a"]).unwrap(), "a\n");
        assert!(!shell.is_there("/nowhere/tool", &[]));
    }
}
