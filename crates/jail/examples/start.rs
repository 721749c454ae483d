//! How long a start takes, with and without walls, and whether anything is left of killed programs.
//!
//! `cargo run --release -p surefoot-jail --example start [ROUNDS]`

#![allow(clippy::print_stdout, reason = "an example for the terminal")]

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use surefoot_jail::{JailError, Rules, Session, Spec, layers, run_once};

fn main() -> Result<ExitCode, JailError> {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1000);
    println!("{}", layers());
    let plain = Spec::new("true");
    let walled = plain.clone().confined(Rules::default());
    // One after the other in turn, so that both meet the same machine.
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        without.push(time(&plain)?);
        with.push(time(&walled)?);
    }
    println!(
        "start to end of `true`, median of 200: {:.2} ms without walls, {:.2} ms behind them",
        ms(&mut without),
        ms(&mut with)
    );
    Ok(if kill(rounds)? == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn time(spec: &Spec) -> Result<Duration, JailError> {
    let started = Instant::now();
    run_once(spec, b"", &AtomicBool::new(false))?;
    Ok(started.elapsed())
}

fn ms(times: &mut [Duration]) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(f64::NAN, Duration::as_secs_f64) * 1e3
}

/// Kills programs that have left their group behind, and counts what is left of them all.
fn kill(rounds: usize) -> Result<usize, JailError> {
    // A mark that only these processes have in their arguments.
    let mark = format!("987654.{}", std::process::id());
    let script =
        format!("setsid sleep {mark} & (setsid setsid sleep {mark} &) & sleep {mark} & read x; echo $x; sleep {mark}");
    let spec = Spec::new("sh").args(["-c", &script]).confined(Rules::default());
    let mut most = 0;
    for round in 0..rounds {
        let mut session = Session::start(&spec)?;
        session.ask("go", &AtomicBool::new(false))?;
        if round % 100 == 0 {
            most = most.max(alive(&mark));
        }
    }
    let left = alive(&mark);
    println!("{rounds} kills of families of up to {most}: {left} processes left");
    Ok(left)
}

fn alive(mark: &str) -> usize {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(mark.len()).any(|part| part == mark.as_bytes()) && line.starts_with(b"s")).count()
}
