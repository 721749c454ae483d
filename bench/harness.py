"""What every comparison shares: contestants run in turn, each in its own process, and a dated record of what came out.

Standard library only. A contestant is a command whose last line on standard output is one JSON object; the most memory its
process held is asked of the kernel, the same way for all.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETS = ["avx2", "fma", "avx512f", "avx512vl", "avx512dq", "avx512bw", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd"]
NOTE_TORCH = (
    "torch multiplies f32 matrices on x86-64 processors with a library that is slow on processors other than its maker's, "
    "AMD's among them: on those the ratio says as much about that library as about surefoot"
)
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


class Failure(Exception):
    """Something the user should read as one line."""


def arguments(text):
    """The flags of every comparison; a script adds its own."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each contestant runs, in turn (default 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads for each contestant")
    parser.add_argument("--venv", type=Path, help="use and keep this virtual environment instead of a throw-away one")
    parser.add_argument("--out", type=Path, help="folder of the record (default bench/results; of --smoke: none is kept)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only contestants whose name begins like one of these")
    parser.add_argument("--bench-flags", default="", help="more flags for surefoot's side, recorded with the result")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes and one round: does the script work? No numbers")
    return parser


class Contestant:
    """A name; a command, or a function that prepares a run and gives one; whether it needs the peer's environment; what
    reads its numbers, where they are not the last line it prints; variables of its environment."""

    def __init__(self, name, command, peer=False, read=None, env=None):
        self.name, self.command, self.peer, self.read, self.env = name, command, peer, read, env or {}


def executable(package, kind, name):
    """Builds one of our programs in release mode; gives its path."""
    command = ["cargo", "build", "--release", "-p", package, f"--{kind}", name, "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise Failure(f"`{' '.join(command)}` failed")
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == name and message.get("executable"):
            return message["executable"]
    raise Failure(f"cargo built no program `{name}`")


@contextlib.contextmanager
def environment(folder, packages):
    """A Python with the pinned packages: a throw-away one, or the one of `folder`, where only what is missing is put."""
    made = None
    if folder is None:
        folder = made = Path(tempfile.mkdtemp(prefix="surefoot-bench-"))
    python = folder / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        missing = [p for p in packages if not installed(python, [p.split("==")[0]])]
        if missing:
            print(f"installing {', '.join(missing)} into {folder}", file=sys.stderr)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *missing], check=True)
        found = installed(python, [p.split("==")[0] for p in packages])
        for package in packages:
            name, pinned = package.split("==")
            if found.get(name) != pinned:
                print(f"note: {name} is {found.get(name)} in {folder}, this script was written for {pinned}", file=sys.stderr)
        yield str(python), found
    except subprocess.CalledProcessError as error:
        raise Failure(f"`{' '.join(map(str, error.cmd))}` failed") from error
    finally:
        if made:
            shutil.rmtree(made, ignore_errors=True)


def installed(python, names):
    """Versions of those of the packages that are there."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "there = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: there[n] for n in sys.argv[1:] if n in there}))"
    )
    return json.loads(subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True).stdout)


def measure(contestant, threads):
    """Runs a contestant once in a process of its own; gives what it reports and the most memory it held."""
    env = os.environ | QUIET | {"OMP_NUM_THREADS": str(threads)} | contestant.env
    command = contestant.command() if callable(contestant.command) else contestant.command
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=err, env=env, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, complaint = out.read(), err.read()
    if process.returncode:
        tail = "\n".join(complaint.strip().splitlines()[-12:])
        raise Failure(f"`{contestant.name}` ended with status {process.returncode}:\n{tail}")
    lines = text.strip().splitlines()
    found = contestant.read(text) if contestant.read else json.loads(lines[-1]) if lines else {}
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    found["peak_memory_mib"] = round(usage.ru_maxrss / unit, 1)
    found["process_s"] = round(time.monotonic() - began, 2)
    return found


def interleave(contestants, rounds, threads):
    """Every contestant once a round, each round beginning with the next one, so that drift hits all alike."""
    measured = {c.name: [] for c in contestants}
    for round_index in range(rounds):
        shift = round_index % len(contestants)
        for contestant in contestants[shift:] + contestants[:shift]:
            found = measure(contestant, threads)
            measured[contestant.name].append(found)
            print(f"round {round_index + 1}/{rounds}  {contestant.name:24} {brief(found)}", file=sys.stderr, flush=True)
    return measured


def brief(found):
    """The numbers a person looks at first."""
    parts = [f"{found['seconds']:.3f} s"] if "seconds" in found else []
    parts += [f"{found['tokens_per_s']:.1f} tokens/s"] if "tokens_per_s" in found else []
    parts += [f"{found['peak_memory_mib']:.0f} MiB"] if "peak_memory_mib" in found else []
    return "  ".join(parts)


def medians(runs):
    """The median of every number over the rounds."""
    keys = [k for k, v in runs[0].items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return {k: statistics.median(r[k] for r in runs) for k in keys}


def compare(name, args, contestants, pairs, settings, versions, notes=()):
    """Runs, prints medians and ratios, writes the record. `pairs`: (ours, theirs), of which the ratios are wanted."""
    chosen = [c for c in contestants if not args.only or any(c.name.startswith(o) for o in args.only)]
    if not chosen:
        raise Failure(f"`--only` leaves nobody of {', '.join(c.name for c in contestants)}")
    if args.rounds < 1:
        raise Failure(f"`--rounds` is {args.rounds}, needed at least 1")
    before = machine()
    if before["load_before"] > 0.5:
        print(f"note: other work loads this machine ({before['load_before']:.1f}): the numbers will suffer", file=sys.stderr)
    measured = interleave(chosen, 1 if args.smoke else args.rounds, args.threads)
    middle = {who: medians(runs) for who, runs in measured.items()}
    ratios = []
    for ours, theirs in pairs:
        if ours in middle and theirs in middle:
            a, b = middle[ours], middle[theirs]
            memory = a["peak_memory_mib"] / b["peak_memory_mib"]
            speed = b["seconds"] / a["seconds"] * work(a, b)
            ratios.append({"ours": ours, "theirs": theirs, "times_as_fast": speed, "memory_share": memory})
    print(f"\nmedians of {len(next(iter(measured.values())))} rounds, {args.threads} threads")
    for who, found in middle.items():
        print(f"  {who:24} {brief(found)}")
    for r in ratios:
        print(f"  {r['ours']} is {r['times_as_fast']:.2f} × as fast as {r['theirs']}, with {r['memory_share']:.2f} × its memory")
    for note in notes:
        print(f"note: {note}")
    record = {
        "name": name,
        "date": datetime.date.today().isoformat(),
        "smoke": args.smoke,
        "machine": before,
        "versions": own_versions() | versions,
        "threads": args.threads,
        "settings": settings | {"bench_flags": args.bench_flags},
        "medians": middle,
        "ratios": ratios,
        "rounds": measured,
        "notes": list(notes),
    }
    folder = args.out or (None if args.smoke else ROOT / "bench" / "results")
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{record['date']}-{name}{'-smoke' if args.smoke else ''}.json"
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"written: {path}")
    return record


def work(ours, theirs):
    """How much more one did than the other in a measurement: 1 where the work is the same."""
    return ours["tokens"] / theirs["tokens"] if "tokens" in ours and "tokens" in theirs else 1.0


def machine():
    """Processor, vector sets, cores, memory."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    line = {k.strip(): v.strip() for k, _, v in (l.partition(":") for l in text.splitlines()) if v}
    flags = line.get("flags", line.get("Features", "")).split()
    return {
        "cpu": line.get("model name", platform.processor() or platform.machine()),
        "maker": line.get("vendor_id"),
        "cores": os.cpu_count(),
        "vector_sets": [s for s in SETS if s in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
    }


def own_versions():
    """Which state of this repository, and which compiler."""
    def said(*command):
        try:
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None
    changed = said("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": said("git", "rev-parse", "HEAD"),
        "uncommitted_changes": None if changed is None else bool(changed),
        "rustc": said("rustc", "--version"),
        "python": platform.python_version(),
    }


def wants_peer(args, contestants):
    """Whether a contestant that needs the environment was chosen."""
    return any(c.peer and (not args.only or any(c.name.startswith(o) for o in args.only)) for c in contestants)


def main(run):
    """Runs a script; a failure is one message."""
    try:
        run()
    except Failure as failure:
        sys.exit(f"error: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
