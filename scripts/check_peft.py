"""Asks the real `transformers` and `peft` what a model folder, with or without an adapter, computes.

    python3 -m venv venv && venv/bin/pip install torch transformers peft safetensors
    venv/bin/python scripts/check_peft.py logits MODEL [--adapter DIR] --tokens FILE.jsonl
    venv/bin/python scripts/check_peft.py golden [FOLDER]

`logits` reads `{"tokens": [...]}` a line and prints `{"logits": [[...], ...]}` a line: plain logits, all positions.
`golden` compares the folders that golden.py wrote: logits, loss and the gradient of every tensor (by torch's autograd,
with and without the adapter), printing the largest difference relative to the largest entry of its tensor, and fails
above 1e-7, the rounding of the stored f32.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, modeling_rope_utils
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

GOLDEN = Path(__file__).resolve().parent.parent / "crates/model/tests/golden"
BOUND = 1e-7


class DoubleTorch:
    """Stands for `torch` inside `transformers`, which takes norms, softmax and angles to f32 even in an f64 model."""

    def __getattr__(self, name):
        return getattr(torch, {"float": "float64", "float32": "float64"}.get(name, name))


def keep_float64():
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    modeling_rope_utils.torch = DoubleTorch()
    for family in (modeling_llama, modeling_qwen2, modeling_qwen3, modeling_gemma3):
        family.torch = DoubleTorch()


def load(folder, adapter=None, dtype=torch.float64):
    """The model in `dtype`, dropout off; refuses an adapter of which some tensor found no place, or the reverse."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()
    if adapter is None:
        return model
    model = PeftModel.from_pretrained(model, adapter, is_trainable=True).to(dtype).eval()
    stored = load_file(Path(adapter) / "adapter_model.safetensors")
    placed = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    if set(stored) != set(placed) or any(not torch.equal(stored[n].to(dtype), placed[n].data) for n in stored):
        sys.exit(f"error: adapter `{adapter}` was not loaded whole: stored {len(stored)}, placed {len(placed)} tensors")
    return model


def logits_of(model, tokens):
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def loss_of(model, golden):
    """The loss of golden.py, and the logits of each sequence."""
    kept = [t for t in range(model.config.vocab_size) if t not in golden["banned"]]
    total, all_logits = 0.0, []
    for s in golden["sequences"]:
        logits = logits_of(model, s["tokens"])
        all_logits.append(logits.detach())
        logp = torch.log_softmax(logits[:-1, kept] / golden["temperature"], dim=-1)
        chosen = logp[torch.arange(len(logp)), [kept.index(t) for t in s["tokens"][1:]]]
        entropy = -(logp.exp() * logp).sum(dim=-1)
        c, e = (torch.tensor(s[k][1:], dtype=logits.dtype) for k in "ce")
        total = total + (c * chosen).sum() + (e * entropy).sum()
    return total, all_logits


def size_of(golden, key):
    """The sum of the loss's terms without their signs, against which its error is measured."""
    scored = zip(golden["sequences"], golden[key]["sequences"])
    terms = [zip(s["c"][1:], f["logp"][1:], s["e"][1:], f["entropy"][1:]) for s, f in scored]
    return sum(abs(c * p) + abs(e * h) for seq in terms for c, p, e, h in seq)


def relative(want, got):
    return ((want - got).abs().max() / want.abs().max()).item()


def check_folder(folder):
    """Largest relative differences of logits, loss and gradients, without and with the adapter."""
    golden = json.loads((folder / "golden.json").read_text())
    stored = load_file(folder / "golden.safetensors")
    worst = 0.0
    for key, prefix, adapter in (("base", "", None), ("lora", "lora/", folder / "adapter")):
        model = load(folder, adapter)
        loss, logits = loss_of(model, golden)
        loss.backward()
        found = {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.grad is not None}
        wanted = {k.removeprefix(f"{prefix}grad/"): v for k, v in stored.items() if k.startswith(f"{prefix}grad/")}
        if set(found) != set(wanted):
            sys.exit(f"error: `{folder.name}` {key}: gradients of other tensors: {sorted(set(found) ^ set(wanted))}")
        by_logits = max(relative(stored[f"{prefix}logits/{i}"].double(), x) for i, x in enumerate(logits))
        by_loss = abs(loss.item() - golden[key]["loss"]) / size_of(golden, key)
        by_gradient, at = max((relative(v.double(), found[n]), n) for n, v in wanted.items())
        print(f"{folder.name:14} {key}  logits {by_logits:.1e}  loss {by_loss:.1e}  gradient {by_gradient:.1e} ({at})")
        worst = max(worst, by_logits, by_loss, by_gradient)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    logits = modes.add_parser("logits", help="print the logits of token ids")
    logits.add_argument("model")
    logits.add_argument("--adapter")
    logits.add_argument("--tokens", type=Path, required=True)
    logits.add_argument("--dtype", choices=["float64", "float32", "bfloat16"], default="float64")
    golden = modes.add_parser("golden", help="compare the folders that golden.py wrote")
    golden.add_argument("folder", type=Path, nargs="?", default=GOLDEN)
    args = parser.parse_args()
    if args.mode == "golden":
        keep_float64()
        worst = max(check_folder(f.parent) for f in sorted(args.folder.glob("*/golden.json")))
        sys.exit(f"error: largest relative difference {worst:.1e} exceeds {BOUND:.1e}" if worst > BOUND else None)
    model = load(args.model, args.adapter, getattr(torch, args.dtype))
    with torch.no_grad():
        for line in args.tokens.read_text().splitlines():
            print(json.dumps({"logits": logits_of(model, json.loads(line)["tokens"]).tolist()}))


if __name__ == "__main__":
    main()
