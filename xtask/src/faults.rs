//! Faults put in on purpose: a test that stays green over the fault it is named for proves nothing.
//!
//! A fault is a few lines under `cfg(surefoot_fault = "NAME")`, so that no shipped build holds one. Each is built in a
//! target folder of its own; building must succeed, and exactly the named test must run and fail. (A corrupted recorded
//! log-probability needs no build: the tests `c17_…` of `policy` and `train` corrupt one.)

use std::path::Path;

use crate::ci::Shell;

/// A fault and the test that must see it.
struct Fault {
    name: &'static str,
    package: &'static str,
    test: &'static str,
}

/// A new fault is a few lines of `cfg` where it strikes and one entry here.
const FAULTS: &[Fault] = &[
    Fault {
        name: "reversed_reduction",
        package: "surefoot-tensor",
        test: "gemm::tests::forward_is_one_chain_on_every_vector_set_and_thread_count",
    },
    Fault {
        name: "divides_per_micro_batch",
        package: "surefoot-policy",
        test: "update::tests::a1_the_denominator_is_the_whole_batch_and_not_the_group",
    },
];

/// Puts in every fault in turn.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let shell = Shell { root };
    for fault in FAULTS {
        let (built, output) = cargo(&shell, fault, &["--no-run"])?;
        if !built {
            return Err(format!("the fault `{}` does not build:\n{output}", fault.name));
        }
        let (passed, output) = cargo(&shell, fault, &["--", "--exact", fault.test])?;
        if passed || !output.contains(&format!("test {} ... FAILED", fault.test)) {
            return Err(format!("the fault `{}` does not fail the test `{}`:\n{output}", fault.name, fault.test));
        }
        println!("faults: `{}` fails `{}` as it must", fault.name, fault.test);
    }
    Ok(())
}

/// Runs `cargo test` on the faulty package; whether it succeeded, and all it said.
fn cargo(shell: &Shell<'_>, fault: &Fault, args: &[&str]) -> Result<(bool, String), String> {
    let args = [&["test", "--package", fault.package, "--lib"], args].concat();
    let mut command = shell.command("cargo", &args);
    command.env("RUSTFLAGS", format!("--cfg surefoot_fault=\"{}\"", fault.name));
    command.env("CARGO_TARGET_DIR", shell.root.join("target/faults"));
    command.env("CARGO_INCREMENTAL", "0");
    let output = command.output().map_err(|e| format!("cannot start `cargo {}`: {e}", args.join(" ")))?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((output.status.success(), said.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_in_the_code_is_in_the_table_and_the_other_way_round() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut found = std::collections::BTreeSet::new();
        let mut folders = vec![root.join("crates")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let text = std::fs::read_to_string(path).unwrap();
                    let names = text.split("cfg(surefoot_fault = \"").skip(1);
                    found.extend(names.filter_map(|rest| rest.split('"').next().map(str::to_owned)));
                }
            }
        }
        let table: std::collections::BTreeSet<_> = FAULTS.iter().map(|f| f.name.to_owned()).collect();
        assert_eq!(found, table);
    }
}
