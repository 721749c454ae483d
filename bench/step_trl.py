"""A whole GRPO step against TRL on the CPU in f32: sampling 12 tasks × 8 attempts, rewards, forward,
backward, update, with a LoRA adapter.

    python3 bench/step_trl.py [--model NAME|PATH] [--surefoot PROGRAM] [--venv DIR] [--rounds 3] [--smoke]

Both read the settings of bench/step.toml (model, rank, alpha, targets, learning rate, warm-up, tasks, group size,
tokens) and the same weights: the model exported as a Hugging Face folder by `surefoot export`, for which it must have been
pulled. The first step warms up; `seconds` is the median of the others, as each side's own clock around a whole step saw it.

Rewards on our side are coin flips, because a group whose attempts all earned the same teaches nothing and surefoot would
not compute it, where TRL does (`flat_group_share` in the record says how many were left: 1 in 128 is expected). TRL's
checkpointing of activations is off unless `--checkpointing` is given, which costs it memory and saves it time.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import harness

PACKAGES = ["torch==2.15.0", "transformers==5.24.0", "peft==0.21.2", "trl==1.16.0"]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RUN_FILE = Path(__file__).with_name("step.toml")
PROMPT = "What is {a} + {b}? Answer with only the number."


def run():
    parser = harness.arguments(__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="what `surefoot` calls the model, or a Hugging Face folder")
    parser.add_argument("--surefoot", type=Path, help="use this program instead of building it")
    parser.add_argument("--steps", type=int, default=4, help="steps a process, the first one not counted (default 4)")
    parser.add_argument("--checkpointing", action="store_true", help="let TRL recompute activations, its default")
    args = parser.parse_args()
    if args.bench_flags:
        raise harness.Failure("`--bench-flags` would be ignored: this runs `surefoot train`, not the bench example")
    steps = 2 if args.smoke else args.steps
    if steps < 2:
        raise harness.Failure(f"`--steps` is {steps}, needed at least 2: the first one warms up")
    program = (args.surefoot or Path(harness.executable("surefoot-cli", "bin", "surefoot"))).resolve()
    with tempfile.TemporaryDirectory(prefix="surefoot-bench-") as scratch:
        scratch = Path(scratch)
        with harness.environment(args.venv, PACKAGES) as (python, versions):
            folder = weights(args, program, python, scratch)
            settings = settings_of(tomllib.loads(RUN_FILE.read_text(encoding="utf-8")), steps, args)
            command = [program, "train", RUN_FILE, "--out", scratch / "run", "--threads", args.threads, "--json"]
            command += changes(settings, folder)

            def fresh():
                shutil.rmtree(scratch / "run", ignore_errors=True)
                return command

            # The index of runs of whoever measures is not to list these.
            home = {"SUREFOOT_HOME": str(scratch / "home")}
            ours = harness.Contestant("surefoot", fresh, read=lambda _: read_run(scratch / "run"), env=home)
            peer = settings | {"model": str(folder), "threads": args.threads, "out": str(scratch / "trl")}
            trl = harness.Contestant("trl", [python, __file__, "--worker", json.dumps(peer)], peer=True)
            notes = [harness.NOTE_TORCH]
            harness.compare("step-trl", args, [ours, trl], [("surefoot", "trl")], settings, versions, notes)


def settings_of(run_file, steps, args):
    """What both sides are told, from the run file."""
    train, batch, optimiser = run_file["train"], run_file["batch"], run_file["optimiser"]
    return {
        "steps": steps,
        "tasks": 2 if args.smoke else batch["tasks"],
        "group_size": 2 if args.smoke else batch["group_size"],
        "max_tokens": run_file["sampling"]["max_tokens"],
        "rank": train["rank"],
        "alpha": train["alpha"],
        "targets": TARGETS if train["targets"] == ["all"] else train["targets"],
        "learning_rate": optimiser["learning_rate"],
        "warmup_updates": optimiser.get("warmup_updates", 0),
        "checkpointing": args.checkpointing,
    }


def changes(settings, folder):
    values = {
        "model": json.dumps(str(folder)),
        "steps": settings["steps"],
        "batch.tasks": settings["tasks"],
        "batch.group_size": settings["group_size"],
        "checkpoint.every": settings["steps"],
    }
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def weights(args, program, python, scratch):
    """A Hugging Face folder that both sides read; in a smoke test cut to two layers."""
    folder = Path(args.model)
    if not folder.is_dir():
        folder = scratch / "model"
        done = subprocess.run([program, "export", args.model, "--to", "hf", "--out", folder], stdout=subprocess.DEVNULL)
        if done.returncode:
            hint = f"`surefoot models pull {args.model}` fetches a known model"
            raise harness.Failure(f"`surefoot export {args.model}` failed; {hint}")
    if not args.smoke:
        return folder.resolve()
    cut = scratch / "cut"
    subprocess.run([python, __file__, "--cut", folder, cut], check=True, stderr=subprocess.DEVNULL)
    return cut


def cut(folder, target):
    """The same model with two layers."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folder, num_hidden_layers=2, dtype="float32").save_pretrained(target)
    for file in Path(folder).iterdir():
        if file.name.startswith(("tokenizer", "special", "chat")):
            shutil.copy(file, target)


def read_run(folder):
    """Our own clock around each step."""
    lines = [json.loads(l) for l in (folder / "timings.jsonl").read_text(encoding="utf-8").splitlines()]
    metrics = [json.loads(l) for l in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = [l["step_s"] for l in lines[1:]]
    return {
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "collect_s": statistics.median(l["collect_s"] for l in lines[1:]),
        "tokens_a_step": statistics.mean(m["n_tokens"] for m in metrics[1:]),
        "flat_group_share": statistics.mean(m["flat_group_share"] for m in metrics[1:]),
    }


def worker(s):
    """TRL's side, in its own process and environment."""
    import random
    import re

    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(s["threads"])
    draw = random.Random(1)

    def task():
        small, large = (1, 9), (10, 99)
        a, b = draw.choice([(small, small), (small, large), (large, small), (large, large)])
        a, b = draw.randint(*a), draw.randint(*b)
        return {"prompt": [{"role": "user", "content": PROMPT.format(a=a, b=b)}], "gold": str(a + b)}

    def reward(completions, gold, **_):
        found = [re.findall(r"-?\d+", c[-1]["content"]) for c in completions]
        return [float(bool(f) and f[-1] == g) for f, g in zip(found, gold)]

    class Clock(TrainerCallback):
        seconds = []

        def on_step_begin(self, *_, **__):
            self.began = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.seconds.append(time.perf_counter() - self.began)

    n = s["tasks"] * s["group_size"]
    config = GRPOConfig(
        output_dir=s["out"],
        use_cpu=True,
        bf16=False,
        fp16=False,
        per_device_train_batch_size=n,
        gradient_accumulation_steps=1,
        num_generations=s["group_size"],
        max_completion_length=s["max_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        num_iterations=1,
        loss_type="grpo",
        scale_rewards="group",
        learning_rate=s["learning_rate"],
        warmup_steps=s["warmup_updates"],
        lr_scheduler_type="constant_with_warmup",
        optim="adamw_torch",
        max_grad_norm=1.0,
        max_steps=s["steps"],
        gradient_checkpointing=s["checkpointing"],
        dataloader_num_workers=0,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=1,
    )
    clock = Clock()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(s["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(s["model"]),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([task() for _ in range(s["tasks"] * s["steps"])]),
        peft_config=LoraConfig(
            r=s["rank"], lora_alpha=s["alpha"], lora_dropout=0.0, target_modules=s["targets"], task_type="CAUSAL_LM"
        ),
        callbacks=[clock],
    )
    trainer.train()
    seconds = clock.seconds[1:]
    print(json.dumps({"seconds": statistics.median(seconds), "all_seconds": seconds}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(json.loads(sys.argv[2]))
    elif sys.argv[1:2] == ["--cut"]:
        cut(*sys.argv[2:4])
    else:
        harness.main(run)
