"""Shows that the real `transformers`, `peft` and `gguf` understand what the engine exports, and it what they save.

    python3 -m venv venv && venv/bin/pip install torch transformers peft safetensors gguf
    venv/bin/python scripts/check_export.py [--gguf MODEL.gguf] [--keep DIR]

For every tiny model under crates/model/tests/golden:
  hf      the folder with the adapter merged, loaded by transformers
  peft    the adapter's folder, loaded by peft on the base model
  theirs  the same adapter saved by peft (`save_pretrained`), loaded by the engine
  gguf    (Gemma with the settings that GGUF takes for granted) the folder that the engine makes of its own GGUF file, loaded by
          transformers; and every tensor of that file against the merged folder, by the `gguf` package
each against the logits of the engine that runs the adapter unmerged.

With `--gguf`, a real model from a GGUF file, with an adapter of random A and B:
  the exported folder in transformers: logits of the plain and of the merged model, token ids of many texts, the rendered
  chat template; the exported PEFT folder in peft; the exported GGUF read again by the engine (same bits), by `gguf` (same
  values) and by transformers' own GGUF loader (same logits).

Both sides compute in f32, so logits differ by the rounding of long f32 sums. The bound is relative to the largest logit
of a sequence. Values, token ids and texts must be equal. Exit status 1 if anything is beyond its bound.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything asked for is a local folder

import gguf
import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "crates/model/tests/golden"
TINY, REAL = 1e-5, 2e-5
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "What is 17 + 25? Answer with only the number.",
    "two  spaces   three    four",
    "1234567890 3.14159 -2e10",
    "don't I'LL we've",
    "naïve café résumé",
    "Привет, мир! Ελληνικά",
    "你好，世界。",
    "日本語のテキスト",
    "한국어 문장입니다",
    "ไทยไม่มีช่องว่าง",
    "👍👩‍👩‍👧‍👦 🤖",
    "def f(x):\n    return x ** 2\n\n\nprint(f(3))\n",
    '{"key": [1, 2.5, null]}',
    "https://example.com/path?query=1&x=%20#frag",
    "\t\tx\r\n\r\n",
    "trailing ",
    "<|im_start|>user\nhi<|im_end|>\n",
    "ALLCAPS MixedCase snake_case",
    "²³¼ ٣٤٥ 五",
]
CHATS = [
    [{"role": "user", "content": "What is 17 + 25?"}],
    [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "Sum 1..10\n  please "},
    ],
]


class Check:
    def __init__(self):
        self.failed = False

    def __call__(self, what, got, bound):
        good = got <= bound
        self.failed |= not good
        shown = f"{got:.1e}" if isinstance(got, float) else got
        print(f"{'ok  ' if good else 'FAIL'} {what}: {shown} (at most {bound})", flush=True)


check = Check()


def build():
    subprocess.run(
        ["cargo", "build", "--release", "-q", "-p", "surefoot-train", "--example", "check_export"], cwd=ROOT, check=True
    )
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release/examples/check_export"


def ask(*args):
    done = subprocess.run([ENGINE, *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, args))}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def export(model, target, form, adapter=None):
    ask("export", model, target, form, "the/base", *([adapter] if adapter else []))
    return target


def ours(model, tokens, adapter=None):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"tokens": t}) + "\n" for t in tokens)
        file.flush()
        return [np.array(x["logits"], np.float32) for x in ask("logits", model, file.name, *([adapter] if adapter else []))]


def theirs(folder, adapter=None, **more):
    """transformers in f32; refuses a folder from which some tensor was not read, or an adapter with one left over."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **more
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            sys.exit(f"error: `{folder}`: {kind}: {info[kind]}")
    model = model.eval()
    if adapter:
        model = PeftModel.from_pretrained(model, adapter).eval()
        stored = load_file(Path(adapter) / "adapter_model.safetensors")
        placed = {n.replace(".default", ""): p.detach().numpy() for n, p in model.named_parameters() if "lora_" in n}
        if set(stored) != set(placed) or any(not np.array_equal(stored[n], placed[n]) for n in stored):
            sys.exit(f"error: adapter `{adapter}` was not loaded whole")
    return model


@torch.no_grad()
def logits(model, tokens):
    return [model(input_ids=torch.tensor([t]), use_cache=False).logits[0].numpy() for t in tokens]


def apart(a, b):
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(a, b, strict=True))


def gguf_tensors(path):
    """Every matrix and vector of a GGUF file in f32, under its GGUF name."""
    found = {}
    for t in gguf.GGUFReader(path).tensors:
        found[t.name] = gguf.quants.dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)])
    return found


def unpaired(w, heads):
    """Query or key rows of llama files, from neighbouring pairs to halves."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOPS = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}


def differing(gguf_path, folder):
    """How many values of a GGUF file are not those of a folder."""
    config = json.loads((folder / "config.json").read_text())
    gemma = config["model_type"] == "gemma3_text"
    names = NAMES | {"ffn_norm": "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"}
    want, got = load_file(folder / "model.safetensors"), gguf_tensors(gguf_path)
    got.pop("rope_freqs.weight", None)
    count = 0
    for name, value in got.items():
        stem, end = name.rsplit(".", 1)
        if stem in TOPS:
            hf = f"{TOPS[stem]}.{end}"
        else:
            _, layer, part = stem.split(".")
            hf = f"model.layers.{layer}.{names[part]}.{end}"
            if config["model_type"] == "llama" and part in ("attn_q", "attn_k"):
                heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
                value = unpaired(value, heads)
        if gemma and "norm" in stem:
            value = value - 1
        count += int((want.pop(hf) != value).sum())
    return count + sum(v.size for v in want.values())


def tiny_tokenizer(folder, n_tokens):
    """A byte-level tokenizer.json of a few single characters: GGUF wants one, the tiny models have none."""
    vocab = {chr(33 + i): i for i in range(min(n_tokens, 94))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    made = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(made))


def check_tiny(golden, work):
    name = golden.name
    record = json.loads((golden / "golden.json").read_text())
    tokens = [s["tokens"] for s in record["sequences"]]
    adapter = golden / "adapter"
    base, want = ours(golden, tokens), ours(golden, tokens, adapter)
    check(f"{name} transformers on the base model", apart(base, logits(theirs(golden), tokens)), TINY)
    merged = export(golden, work / f"{name}-hf", "hf", adapter)
    check(f"{name} hf: merged folder in transformers", apart(want, logits(theirs(merged), tokens)), TINY)
    saved = export(golden, work / f"{name}-peft", "peft", adapter)
    model = theirs(golden, saved)
    check(f"{name} peft: our adapter in peft", apart(want, logits(model, tokens)), TINY)
    model.save_pretrained(work / f"{name}-theirs")
    check(f"{name} theirs: peft's adapter in the engine", apart(ours(golden, tokens, work / f"{name}-theirs"), want), 0.0)
    source = work / f"{name}-source"
    source.mkdir()
    (source / "model.safetensors").write_bytes((golden / "model.safetensors").read_bytes())
    config = json.loads((golden / "config.json").read_text())
    if name.startswith("gemma3"):
        # every sixth layer global, scores scaled by the head's width
        del config["sliding_window_pattern"]
        config["layer_types"] = ["sliding_attention"] * config["num_hidden_layers"]
        config["query_pre_attn_scalar"] = config["head_dim"]
    (source / "config.json").write_text(json.dumps(config))
    tiny_tokenizer(source, config["vocab_size"])
    want = ours(source, tokens, adapter)
    merged = export(source, work / f"{name}-merged", "hf", adapter)
    file = export(source, work / f"{name}.gguf", "gguf-f32", adapter)
    check(f"{name} gguf: values that differ from the folder's", differing(file, merged), 0)
    again = export(file, work / f"{name}-again", "hf")
    check(f"{name} gguf → hf: folder in transformers", apart(want, logits(theirs(again), tokens)), TINY)


def random_adapter(folder, target, seed=3):
    """An adapter by peft, on every linear layer, with B far from zero."""
    torch.manual_seed(seed)
    model = get_peft_model(theirs(folder), LoraConfig(r=8, lora_alpha=12, target_modules=LINEARS, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_B" in n:
                p.copy_(0.02 * torch.randn_like(p))
    model.save_pretrained(target)
    return target


def check_real(path, work):
    plain = export(path, work / "plain", "hf")
    tokenizer = AutoTokenizer.from_pretrained(plain)
    tokens = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in CHATS]
    tokens.append(tokenizer("The capital of France is Paris. 17 + 25 =")["input_ids"])

    lines = [{"text": t} for t in TEXTS] + [{"messages": c} for c in CHATS]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(x) + "\n" for x in lines)
        file.flush()
        for source in (path, plain):
            got = ask("encode", source, file.name)
            ids = [tokenizer(t, add_special_tokens=False)["input_ids"] for t in TEXTS] + tokens[: len(CHATS)]
            check(f"token ids that differ, {source.name}", sum(g["tokens"] != w for g, w in zip(got, ids, strict=True)), 0)
            texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in CHATS]
            chats = got[len(TEXTS) :]
            check(f"chats that differ, {source.name}", sum(g["text"] != w for g, w in zip(chats, texts, strict=True)), 0)

    model = theirs(plain)
    check("real hf: folder in transformers", apart(ours(path, tokens), logits(model, tokens)), REAL)
    stop = model.generation_config.eos_token_id
    check("real hf: stop tokens that the tokenizer does not know", int(tokenizer.eos_token_id not in np.atleast_1d(stop)), 0)
    check("real hf: weights not of the same bits as the source's", int(not ask("same", path, plain)[0]["same"]), 0)

    adapter = random_adapter(plain, work / "adapter")
    want = ours(path, tokens, adapter)
    check("real theirs: peft's adapter in the engine", apart(want, logits(theirs(plain, adapter), tokens)), REAL)
    merged = export(path, work / "merged", "hf", adapter)
    check("real hf: merged folder in transformers", apart(want, logits(theirs(merged), tokens)), REAL)
    saved = export(path, work / "saved", "peft", adapter)
    check("real peft: our adapter in peft", apart(want, logits(theirs(plain, saved), tokens)), REAL)

    file = export(path, work / "merged.gguf", "gguf-f32", adapter)
    check("real gguf: weights not of the same bits as the folder's", int(not ask("same", file, merged)[0]["same"]), 0)
    check("real gguf: values that differ by the `gguf` package", differing(file, merged), 0)
    model = AutoModelForCausalLM.from_pretrained(work, gguf_file=file.name, dtype=torch.float32).eval()
    check("real gguf: in transformers' own loader", apart(want, logits(model, tokens)), REAL)
    for form in ("gguf-f16", "gguf-bf16", "gguf-q8_0"):
        small = export(path, work / f"{form}.gguf", form, adapter)
        a, b = gguf_tensors(small), gguf_tensors(file)
        scale = {n: max(float(np.abs(v).max()), 1e-30) for n, v in b.items()}
        bound = {"gguf-f16": 2**-11, "gguf-bf16": 2**-8, "gguf-q8_0": 0.5 / 127 + 2**-11}[form]
        check(f"real {form}: largest rounding", max(float(np.abs(a[n] - b[n]).max()) / scale[n] for n in b), bound)
        read_back = export(small, work / f"{form}-hf", "hf")
        check(f"real {form}: values the engine reads otherwise than `gguf`", differing(small, read_back), 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, help="a real llama or qwen model to export too")
    parser.add_argument("--keep", type=Path, help="a new folder to leave the exports in")
    args = parser.parse_args()
    global ENGINE
    ENGINE = build()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        work = args.keep or Path(temporary)
        if args.keep:
            work.mkdir(parents=True)
        for golden in sorted(f.parent for f in GOLDEN.glob("*/golden.json")):
            check_tiny(golden, work)
        if args.gguf:
            check_real(args.gguf, work)
    sys.exit("error: something is beyond its bound" if check.failed else None)


if __name__ == "__main__":
    main()
