"""A training step, full and with LoRA, against torch in f32 on the CPU: `transformers`' LlamaForCausalLM in the same
shape, `peft` for the adapter, torch's AdamW.

    python3 bench/train_torch.py [--venv DIR] [--rounds 3] [--smoke]

Both do one forward pass, one backward pass and one update on 8 sequences of 256 random tokens, all but each first one
trained, over random weights in the shape of SmolLM2-135M, gradient norm clipped to 1. Each contestant warms up with one
step and reports the median of the next ones.
"""

import json
import statistics
import sys
import time

import harness

PACKAGES = ["torch==2.15.0", "transformers==5.24.0", "peft==0.21.2"]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def run():
    args = harness.arguments(__doc__).parse_args()
    sizes = {"rows": 8, "length": 256, "layers": 30, "repeats": 2}
    if args.smoke:
        sizes = {"rows": 2, "length": 32, "layers": 2, "repeats": 1}
    program = harness.executable("surefoot-train", "example", "bench")
    flags = [word for key, value in sizes.items() for word in (f"--{key}", value)]
    ours = [*flags, "--threads", args.threads, *args.bench_flags.split()]
    kinds = ["full", "lora"]
    contestants = [harness.Contestant(f"surefoot-{k}", [program, f"train-{k}", *ours]) for k in kinds]
    contestants += [harness.Contestant(f"torch-{k}", None, peer=True) for k in kinds]
    pairs = [(f"surefoot-{k}", f"torch-{k}") for k in kinds]
    if not harness.wants_peer(args, contestants):
        return harness.compare("train-torch", args, contestants, pairs, sizes, {}, [harness.NOTE_TORCH])
    with harness.environment(args.venv, PACKAGES) as (python, versions):
        for contestant in contestants[len(kinds) :]:
            settings = json.dumps(sizes | {"kind": contestant.name.removeprefix("torch-"), "threads": args.threads})
            contestant.command = [python, __file__, "--worker", settings]
        harness.compare("train-torch", args, contestants, pairs, sizes, versions, [harness.NOTE_TORCH])


def worker(settings):
    """torch's side, in its own process and environment."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=settings["layers"],
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(torch.float32).train()
    if settings["kind"] == "lora":
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    tokens = torch.randint(0, config.vocab_size, (settings["rows"], settings["length"]))
    seconds = []
    for _ in range(1 + settings["repeats"]):
        began = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - began)
    middle = statistics.median(seconds[1:])
    found = {
        "tokens": tokens.numel(),
        "seconds": middle,
        "tokens_per_s": tokens.numel() / middle,
        "n_trained": sum(p.numel() for p in trained),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(json.loads(sys.argv[2]))
    else:
        harness.main(run)
