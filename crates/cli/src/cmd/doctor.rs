//! `surefoot doctor`: what this machine can do, and what is missing.

use std::ffi::OsStr;
use std::path::Path;

use jail::{Spec, run_once};
use remote::{KNOWN_MODELS, PipSettings};
use serde::Serialize;
use tensor::{Cpu, Isa, ceiling};

use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;
use crate::out::{bytes, table};
use crate::progress;

/// Memory that is streamed through to measure its speed: far more than any cache holds.
const STREAM_BYTES: usize = 256 << 20;
/// Memory and disk that the quickstart needs about.
const QUICKSTART_MEMORY: u64 = 2_500_000_000;
const QUICKSTART_DISK: u64 = 500_000_000;

/// Look at this machine: processor, memory, disk, Python, models; measure its ceilings; say what is missing
///
/// The ceilings are what no program can exceed here: fused multiply-adds in f32 for each vector set, the bf16 dot
/// instruction where there is one, and reading from memory. A kernel's speed is worth comparing with these.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// What was found.
#[derive(Debug, Serialize)]
struct Found {
    version: &'static str,
    cpu: Option<String>,
    vector_sets: Vec<String>,
    vector_set_in_use: String,
    bf16_dot: bool,
    cores: usize,
    threads_in_use: usize,
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
    home: String,
    home_writable: bool,
    disk_free_bytes: Option<u64>,
    ceilings: Vec<Ceiling>,
    python: Option<String>,
    models: Vec<Model>,
    missing: Vec<Missing>,
}

/// What can be reached at best.
#[derive(Debug, Serialize)]
struct Ceiling {
    /// What was measured.
    what: &'static str,
    vector_set: String,
    threads: usize,
    /// Operations or bytes per second.
    per_second: f64,
}

#[derive(Debug, Serialize)]
struct Model {
    name: String,
    size_bytes: Option<u64>,
    problem: Option<String>,
}

/// Something that is not as it should be, and what to do.
#[derive(Debug, Serialize)]
struct Missing {
    what: String,
    remedy: String,
}

pub(crate) fn run(_: Args, context: &Context) -> Done {
    let bar = progress::bar(context.json(), None, "measurements");
    bar.set_message("measuring");
    let ceilings = measure(context, &mut || bar.inc(1));
    bar.finish_and_clear();
    let found = look(context, ceilings?)?;
    if context.json() {
        return context.out.json(&found);
    }
    context.out.text(&view::visible(&report(&found)))
}

fn look(context: &Context, ceilings: Vec<Ceiling>) -> Result<Found, Failure> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let place = existing(&context.root);
    let disk = rustix::fs::statvfs(place).ok();
    let mut found = Found {
        version: env!("CARGO_PKG_VERSION"),
        cpu: std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| cpu_model(&text)),
        vector_sets: Isa::available().iter().map(Isa::to_string).collect(),
        vector_set_in_use: context.isa.to_string(),
        bf16_dot: ceiling::has_bf16_dot(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        threads_in_use: context.n_threads,
        memory_bytes: kilobytes(&meminfo, "MemTotal:"),
        memory_available_bytes: available_memory(&meminfo),
        home: show(&context.root),
        home_writable: rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok(),
        disk_free_bytes: disk.map(|d| d.f_bavail.saturating_mul(d.f_frsize)),
        ceilings,
        python: python(context)?,
        models: models(context)?,
        missing: Vec::new(),
    };
    found.missing = missing(&found);
    Ok(found)
}

fn measure(context: &Context, done: &mut dyn FnMut()) -> Result<Vec<Ceiling>, Failure> {
    let mut all = Vec::new();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let room = available_memory(&meminfo).map_or(STREAM_BYTES, |b| usize::try_from(b / 4).unwrap_or(STREAM_BYTES));
    for threads in thread_counts(context.n_threads) {
        for isa in Isa::available() {
            context.check_stop()?;
            let cpu = Cpu::new(isa, threads)?;
            let mut add = |what, per_second| {
                all.push(Ceiling { what, vector_set: isa.to_string(), threads, per_second });
                done();
            };
            add("f32 fused multiply-add", ceiling::fma_flops(&cpu));
            if let Some(flops) = ceiling::bf16_dot_flops(&cpu) {
                add("bf16 dot", flops);
            }
            if isa == Isa::best() {
                add("memory read", ceiling::read_bandwidth(&cpu, STREAM_BYTES.min(room)));
            }
        }
    }
    Ok(all)
}

/// One thread, then twice as many each time, up to all.
fn thread_counts(most: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < most).collect();
    counts.push(most);
    counts
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn kilobytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix(key))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(number * 1024)
}

/// What the system has left, or what a container's limit leaves where that is less.
fn available_memory(meminfo: &str) -> Option<u64> {
    let number = |file: &str| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let limit = number("/sys/fs/cgroup/memory.max");
    let left = limit.zip(number("/sys/fs/cgroup/memory.current")).map(|(most, used)| most.saturating_sub(used));
    match (kilobytes(meminfo, "MemAvailable:"), left) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The nearest folder above that exists: there a new one would be made.
fn existing(path: &Path) -> &Path {
    let there = path.ancestors().find(|p| p.exists());
    // A relative path ends in nothing, which stands for the working directory.
    there.unwrap_or(Path::new("."))
}

/// The first Python that has pip, with its version.
fn python(context: &Context) -> Result<Option<String>, Failure> {
    for python in PipSettings::default().pythons {
        let spec = Spec::new(&python).args([OsStr::new("-m"), OsStr::new("pip"), OsStr::new("--version")]);
        let answer = run_once(&spec, &[], &context.stop);
        context.check_stop()?;
        if let Ok(answer) = answer
            && answer.exit.success()
        {
            let version = String::from_utf8_lossy(&answer.stdout).lines().next().unwrap_or_default().to_owned();
            return Ok(Some(format!("{}: {version}", python.to_string_lossy())));
        }
    }
    Ok(None)
}

fn models(context: &Context) -> Result<Vec<Model>, Failure> {
    let store = context.models();
    let model = |m: remote::Installed| {
        let size_bytes = m.record.as_ref().ok().map(remote::ModelRecord::size_bytes);
        Model { problem: store.resolve(&m.name).err().map(|e| e.to_string()), name: m.name, size_bytes }
    };
    Ok(store.list()?.into_iter().map(model).collect())
}

fn missing(found: &Found) -> Vec<Missing> {
    let mut all = Vec::new();
    let mut add = |what: String, remedy: String| all.push(Missing { what, remedy });
    for known in KNOWN_MODELS.iter().filter(|k| found.models.iter().all(|m| m.name != k.name)) {
        let remedy = format!("`surefoot models pull {}` fetches it ({})", known.name, bytes(known.download_bytes));
        add(format!("model `{}` is not here", known.name), remedy);
    }
    for model in &found.models {
        if let Some(problem) = &model.problem {
            let remedy = format!("`surefoot models rm {}`, then pull or import it again", model.name);
            add(format!("model `{}`: {problem}", model.name), remedy);
        }
    }
    if found.python.is_none() {
        let remedy = "install Python 3 with pip, or bring model files in with `surefoot models import PATH`";
        add("there is no Python with pip, which fetches known models".to_owned(), remedy.to_owned());
    }
    if !found.home_writable {
        add(format!("`{}` cannot be written", found.home), "name another folder in `SUREFOOT_HOME`".to_owned());
    }
    if let Some(free) = found.disk_free_bytes.filter(|b| *b < QUICKSTART_DISK) {
        let what = format!(
            "{} are free on the disk of `{}`, the quickstart needs {}",
            bytes(free),
            found.home,
            bytes(QUICKSTART_DISK)
        );
        add(what, "free some, or name a folder on another disk in `SUREFOOT_HOME`".to_owned());
    }
    if let Some(left) = found.memory_available_bytes.filter(|b| *b < QUICKSTART_MEMORY) {
        let what =
            format!("{} of memory are left, the quickstart needs about {}", bytes(left), bytes(QUICKSTART_MEMORY));
        add(what, "close other programs, or lower `engine.micro_batch_rows` and `engine.batch`".to_owned());
    }
    if found.vector_sets.len() == 1 {
        let remedy = "results are the same, only slower; processors with AVX2 are far faster";
        add("this processor has no vector set that is used".to_owned(), remedy.to_owned());
    }
    let best = Isa::best().to_string();
    if found.vector_set_in_use != best {
        let what = format!("`SUREFOOT_ISA` asks for `{}`, this processor has `{best}`", found.vector_set_in_use);
        add(what, "unset it to compute faster; results are the same".to_owned());
    }
    all
}

fn report(found: &Found) -> String {
    let unknown = || "unknown".to_owned();
    let size = |b: Option<u64>| b.map_or_else(unknown, bytes);
    let sets = found.vector_sets.join(", ");
    let dot = if found.bf16_dot { "yes" } else { "no" };
    let writable = if found.home_writable { "" } else { ", not writable" };
    let memory = format!("{}, {} available", size(found.memory_bytes), size(found.memory_available_bytes));
    let home = format!("{}{writable}, {} free", found.home, size(found.disk_free_bytes));
    let models = match found.models.len() {
        0 => "none".to_owned(),
        _ => found.models.iter().map(|m| format!("{} ({})", m.name, size(m.size_bytes))).collect::<Vec<_>>().join(", "),
    };
    let rows: Vec<Vec<String>> = [
        ("version", found.version.to_owned()),
        ("processor", found.cpu.clone().unwrap_or_else(unknown)),
        ("vector sets", format!("{sets} (using {})", found.vector_set_in_use)),
        ("bf16 dot", dot.to_owned()),
        ("threads", format!("{} of {} cores", found.threads_in_use, found.cores)),
        ("memory", memory),
        ("home", home),
        ("python", found.python.clone().unwrap_or_else(|| "none with pip".to_owned())),
        ("models", models),
    ]
    .map(|(key, value)| vec![key.to_owned(), value])
    .to_vec();
    let mut out = table(&rows);
    let mut rows = vec![["ceiling", "vectors", "threads", "measured"].map(str::to_owned).to_vec()];
    for c in &found.ceilings {
        let unit = if c.what == "memory read" { "GB/s" } else { "GFLOP/s" };
        let rate = format!("{:.1} {unit}", c.per_second / 1e9);
        rows.push(vec![c.what.to_owned(), c.vector_set.clone(), c.threads.to_string(), rate]);
    }
    out.push('\n');
    out.push_str(&table(&rows));
    out.push('\n');
    if found.missing.is_empty() {
        out.push_str("nothing is missing\n");
    }
    for m in &found.missing {
        out.push_str(&format!("missing: {}\n  {}\n", m.what, m.remedy));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_counts_double_up_to_all() {
        for (most, want) in [(1, vec![1]), (2, vec![1, 2]), (6, vec![1, 2, 4, 6])] {
            assert_eq!(thread_counts(most), want);
        }
    }

    #[test]
    fn the_systems_tables_are_read() {
        let text = "MemTotal:       24000 kB\nMemFree: 1 kB\nMemAvailable:   12 kB\n";
        assert_eq!((kilobytes(text, "MemTotal:"), kilobytes(text, "MemAvailable:")), (Some(24_576_000), Some(12_288)));
        assert_eq!(kilobytes(text, "Swap:"), None);
        let text = "processor : 0\nmodel name\t: A: B\nmodel name\t: C\n";
        assert_eq!(cpu_model(text).as_deref(), Some("A: B"));
    }

    #[test]
    fn what_is_missing_comes_with_what_to_do() {
        let mut found = Found {
            version: "0",
            cpu: None,
            vector_sets: vec!["scalar".into()],
            vector_set_in_use: Isa::best().to_string(),
            bf16_dot: false,
            cores: 2,
            threads_in_use: 1,
            memory_bytes: Some(1 << 30),
            memory_available_bytes: Some(1 << 30),
            home: "/h".into(),
            home_writable: false,
            disk_free_bytes: Some(5),
            ceilings: vec![],
            python: None,
            models: vec![Model { name: "m".into(), size_bytes: None, problem: Some("damaged".into()) }],
            missing: vec![],
        };
        found.missing = missing(&found);
        insta::assert_snapshot!(report(&found));
    }
}
