"""Sampling against llama.cpp, through the low-level interface of `llama-cpp-python`: 64 rows at once, and one row alone.

    python3 bench/sample_llamacpp.py [--model FILE.gguf] [--venv DIR] [--rounds 3] [--smoke]

Both read the same bf16 GGUF; without `--model` it is made by `surefoot export smollm2-135m --to gguf-bf16`, for which the
model must have been pulled. A prompt of 32 tokens is computed once and shared by all rows; each row then draws 128 tokens
(the lone one 64) at temperature 1, nothing ends a row early, and the reading of the prompt is part of the time.

llama.cpp is run with one key/value buffer for all sequences and with one for each; compare with the faster. Installing it
builds it from source with the machine's own vector sets: about 12 minutes on two cores, so keep it with `--venv`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

PACKAGES = ["llama-cpp-python==0.3.36"]
WORKS = {"sample-64": {"rows": 64, "prompt": 32, "new": 128}, "sample-1": {"rows": 1, "prompt": 32, "new": 64}}


def run():
    parser = harness.arguments(__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file; both sides read it")
    args = parser.parse_args()
    works = {name: sizes | {"repeats": 3} for name, sizes in WORKS.items()}
    if args.smoke:
        works = {name: sizes | {"rows": min(sizes["rows"], 4), "new": 4, "repeats": 1} for name, sizes in WORKS.items()}
    program = harness.executable("surefoot-train", "example", "bench")
    with tempfile.TemporaryDirectory(prefix="surefoot-bench-") as scratch:
        model = (args.model or exported(Path(scratch))).resolve()
        contestants, pairs = [], []
        for name, sizes in works.items():
            flags = [word for key, value in sizes.items() for word in (f"--{key}", value)]
            ours = [program, name, "--model", model, *flags, "--threads", args.threads, *args.bench_flags.split()]
            contestants.append(harness.Contestant(f"surefoot-{name}", ours))
            for cache in ["one", "each"] if sizes["rows"] > 1 else ["one"]:
                peer = harness.Contestant(f"llama.cpp-{name}-{cache}", None, peer=True)
                peer.settings = sizes | {"model": str(model), "threads": args.threads, "unified": cache == "one"}
                contestants.append(peer)
                pairs.append((f"surefoot-{name}", peer.name))
        settings = {"model": model.name, "size_bytes": model.stat().st_size, "works": works}
        if not harness.wants_peer(args, contestants):
            return harness.compare("sample-llamacpp", args, contestants, pairs, settings, {})
        with harness.environment(args.venv, PACKAGES) as (python, versions):
            for contestant in contestants:
                if contestant.peer:
                    contestant.command = [python, __file__, "--worker", json.dumps(contestant.settings)]
            harness.compare("sample-llamacpp", args, contestants, pairs, settings, versions)


def exported(folder):
    """The model of the quickstart as a bf16 GGUF."""
    program, path = harness.executable("surefoot-cli", "bin", "surefoot"), folder / "smollm2-135m-bf16.gguf"
    done = subprocess.run([program, "export", "smollm2-135m", "--to", "gguf-bf16", "--out", path], cwd=harness.ROOT)
    if done.returncode:
        raise harness.Failure("`surefoot export smollm2-135m` failed; `surefoot models pull smollm2-135m` fetches the model")
    return path


def worker(settings):
    """llama.cpp's side, in its own process and environment."""
    import llama_cpp as lib

    rows, prompt, new = settings["rows"], settings["prompt"], settings["new"]
    lib.llama_backend_init()
    options = lib.llama_model_default_params()
    options.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(settings["model"].encode(), options)
    if not model:
        sys.exit(f"llama.cpp cannot load `{settings['model']}`")
    n_vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    options = lib.llama_context_default_params()
    # With a buffer for each sequence this is split evenly; 256 is what sizes are rounded up to.
    options.n_ctx = rows * -(-(prompt + new) // 256) * 256
    options.n_batch = options.n_ubatch = max(rows, prompt, 512)
    options.n_seq_max = rows
    options.n_threads = options.n_threads_batch = settings["threads"]
    options.kv_unified = settings["unified"]
    context = lib.llama_init_from_model(model, options)
    if not context:
        sys.exit("llama.cpp cannot make a context")
    memory = lib.llama_get_memory(context)
    sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_temp(1.0))
    lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_dist(1))
    batch = lib.llama_batch_init(max(rows, prompt), 0, 1)

    def decode(entries):
        """(token, position, sequence, whether its logits are wanted) for each row."""
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        batch.n_tokens = len(entries)
        code = lib.llama_decode(context, batch)
        if code:
            sys.exit(f"llama_decode answered {code}")

    tokens = [(7919 * i + 13) % n_vocabulary for i in range(prompt)]

    def once():
        lib.llama_memory_clear(memory, True)
        began = time.perf_counter()
        decode([(t, i, 0, i + 1 == prompt) for i, t in enumerate(tokens)])
        for row in range(1, rows):
            lib.llama_memory_seq_cp(memory, 0, row, -1, -1)
        last = [lib.llama_sampler_sample(sampler, context, prompt - 1) for _ in range(rows)]
        for step in range(new - 1):
            decode([(last[row], prompt + step, row, 1) for row in range(rows)])
            last = [lib.llama_sampler_sample(sampler, context, row) for row in range(rows)]
        return time.perf_counter() - began

    once()
    seconds = [once() for _ in range(settings["repeats"])]
    middle = statistics.median(seconds)
    system = lib.llama_print_system_info()
    found = {"tokens": rows * new, "seconds": middle, "tokens_per_s": rows * new / middle}
    found |= {"all_seconds": seconds, "system": system.decode() if isinstance(system, bytes) else str(system)}
    print(json.dumps(found), flush=True)
    lib.llama_batch_free(batch)
    lib.llama_sampler_free(sampler)
    lib.llama_free(context)
    lib.llama_model_free(model)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(json.loads(sys.argv[2]))
    else:
        harness.main(run)
