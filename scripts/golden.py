"""Independent float64 reference for the engine: tiny models of every family, and SmolLM2-135M.

    python3 -m venv venv && venv/bin/pip install jax numpy safetensors gguf
    venv/bin/python scripts/golden.py tiny
    venv/bin/python scripts/golden.py smollm2 --gguf SmolLM2-135M-Instruct.Q4_1.gguf [--oracle smollm2.json]

Nothing here is shared with the engine: the forward pass follows the papers and the semantics of the Hugging Face
configs, and every derivative is `jax.grad` in float64. Seeds are fixed and no clock is read, so a rerun gives the same
files (up to the last bit of an f32 on another processor). `check_peft.py golden` compares the same folders with the
real `transformers` and `peft`.

`tiny` writes crates/model/tests/golden/FAMILY/:
  config.json, model.safetensors   a random model, laid out as on the hub
  adapter/                         a LoRA adapter in PEFT's layout, B non-zero
  golden.json                      `temperature`, `banned`, and per sequence `tokens`, `group`, `prompt_len`, `trained`,
                                   and the coefficients `c`, `e`; then `base` and `lora`, each with `loss` and per
                                   sequence `logp` and `entropy` (entry t scores token t given those before it; entry
                                   0 is null)
  golden.safetensors               `logits/I` and `lora/logits/I` of sequence I, all positions, plain (no temperature);
                                   `grad/NAME` of every weight; `grad_parts/head` and `grad_parts/embedding` of a tied
                                   table, whose sum is its `grad/`; `lora/grad/NAME` of every A and B, the base fixed

loss = sum over t of c[t] * logp[t] + e[t] * H[t], where logp and H (nats) are those of softmax(logits / temperature)
with the banned ids removed. All is computed in float64; tensors are rounded once to f32 when stored, JSON numbers not
at all.

`smollm2` writes crates/model/tests/golden/smollm2_135m.json, described in golden_smollm2.py.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from golden_forward import forward, head_dim_of

GOLDEN = Path(__file__).resolve().parent.parent / "crates/model/tests/golden"
TEMPERATURE, BANNED = 0.8, [3, 17]
RANK, ALPHA = 4, 8
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
LINEARS = [("self_attn", n) for n in ATTENTION] + [("mlp", n) for n in MLP]
LLAMA, QWEN2 = ("LlamaForCausalLM", "llama"), ("Qwen2ForCausalLM", "qwen2")
QWEN3, GEMMA3 = ("Qwen3ForCausalLM", "qwen3"), ("Gemma3ForCausalLM", "gemma3_text")
# prompt length and trained lengths of each group of sequences
GROUPS = [(5, (3, 6, 9)), (7, (4, 8))]


def config(family, shape, tied, theta, eps, **more):
    """One hub-style config; `shape` is (layers, width, ffn, heads, kv heads, head dimension, vocabulary)."""
    layers, width, ffn, heads, kv_heads, head_dim, vocab = shape
    made = {
        "architectures": [family[0]],
        "model_type": family[1],
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 1024,
        "rms_norm_eps": eps,
        "rope_theta": theta,
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "use_cache": True,
        "torch_dtype": "float32",
    }
    # left out where hub configs leave it out; in Qwen 3 and Gemma 3 its absence means 128 and 256
    if family not in (LLAMA, QWEN2) or head_dim * heads != width:
        made["head_dim"] = head_dim
    return made | more


NO_WINDOW = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 3}


def gemma3(shape, pattern, **more):
    """Gemma 3 names its activation differently and mixes local and global layers: every `pattern`-th is global."""
    kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(shape[0])]
    extra = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 20,
        "sliding_window": 5,
        "sliding_window_pattern": pattern,
        "layer_types": kinds,
        "rope_local_base_freq": 1e4,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }
    made = config(GEMMA3, shape, True, 1e6, 1e-6, **extra | more)
    del made["hidden_act"]
    return made


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
# the context is `factor` times the original one, so that deriving the factor from it or reading it agree
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
MODELS = {
    "llama": config(LLAMA, (3, 48, 20, 4, 2, 12, 97), False, 5e5, 1e-5, mlp_bias=False, rope_scaling=LLAMA3),
    "smollm2": config(LLAMA, (3, 36, 40, 3, 1, 12, 128), True, 1e5, 1e-5, mlp_bias=False),
    "qwen2": config(QWEN2, (3, 48, 20, 4, 1, 12, 101), True, 1e6, 1e-6, **NO_WINDOW),
    "qwen3": config(QWEN3, (3, 40, 28, 2, 1, 24, 100), False, 1e6, 1e-6, **NO_WINDOW),
    "gemma3": gemma3((4, 40, 24, 2, 1, 16, 98), 3),
    "llama_linear": config(
        LLAMA, (2, 24, 12, 2, 1, 12, 48), False, 1e4, 1e-5, rope_scaling={"rope_type": "linear", "factor": 2.5}
    ),
    "qwen2_yarn": config(QWEN2, (2, 24, 12, 2, 1, 12, 48), True, 1e4, 1e-6, **NO_WINDOW, rope_scaling=YARN),
    "gemma3_linear": gemma3((2, 24, 12, 2, 1, 12, 48), 2, rope_scaling={"rope_type": "linear", "factor": 8.0}),
}


def grid(x):
    """Rounds to multiples of 2^-12, exact in f32 and friendly to compression."""
    return np.round(x * 4096) / 4096


def random_weights(cfg, rng):
    """Weights scaled so that neither attention nor the logits are flat; norms and biases are far from 1 and 0."""
    kind, width, vocab = cfg["model_type"], cfg["hidden_size"], cfg["vocab_size"]
    heads, kv_heads, head_dim = cfg["num_attention_heads"], cfg["num_key_value_heads"], head_dim_of(cfg)
    gemma = kind == "gemma3_text"
    w = {}

    def put(name, *shape, scale, shift=0.0):
        w[name] = grid(shift + scale * rng.standard_normal(shape))

    def norm(name, size):
        put(name, size, scale=0.3, shift=0.0 if gemma else 1.0)

    put("model.embed_tokens.weight", vocab, width, scale=0.25 if gemma else 0.35)
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}"
        sizes = dict(zip(ATTENTION, [(heads * head_dim, width)] + [(kv_heads * head_dim, width)] * 2))
        sizes |= dict(zip(MLP, [(cfg["intermediate_size"], width)] * 2))
        sizes |= {"o_proj": (width, heads * head_dim), "down_proj": (width, cfg["intermediate_size"])}
        for part, name in LINEARS:
            put(f"{at}.{part}.{name}.weight", *sizes[name], scale=1.2 / sizes[name][1] ** 0.5)
            if kind == "qwen2" and name in ATTENTION[:3]:
                put(f"{at}.{part}.{name}.bias", sizes[name][0], scale=0.4)
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(f"{at}.{name}.weight", width)
        if gemma:
            norm(f"{at}.pre_feedforward_layernorm.weight", width)
            norm(f"{at}.post_feedforward_layernorm.weight", width)
        if gemma or kind == "qwen3":
            norm(f"{at}.self_attn.q_norm.weight", head_dim)
            norm(f"{at}.self_attn.k_norm.weight", head_dim)
    norm("model.norm.weight", width)
    if not cfg["tie_word_embeddings"]:
        put("lm_head.weight", vocab, width, scale=0.35)
    return w


def random_adapter(w, cfg, rng):
    """A and B of every linear, under PEFT's names."""
    lora = {}
    for i in range(cfg["num_hidden_layers"]):
        for part, name in LINEARS:
            at = f"model.layers.{i}.{part}.{name}"
            out, into = w[f"{at}.weight"].shape
            lora[f"base_model.model.{at}.lora_A.weight"] = grid(rng.standard_normal((RANK, into)) / into**0.5)
            lora[f"base_model.model.{at}.lora_B.weight"] = grid(0.2 * rng.standard_normal((out, RANK)))
    return lora


def adapter_config():
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "target_modules": sorted(ATTENTION + MLP),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }


def random_batch(vocab, rng):
    """Two groups that share their prompts; no banned id occurs; coefficients are zero on the prompt.

    Id 0 is left out too: it is Gemma's padding, whose embedding `transformers` gives no gradient.
    """
    allowed = np.array([t for t in range(1, vocab) if t not in BANNED])
    batch = []
    for group, (prompt_len, lengths) in enumerate(GROUPS):
        prompt = rng.choice(allowed, prompt_len)
        for length in lengths:
            zeros = np.zeros(prompt_len)
            batch.append(
                {
                    "group": group,
                    "prompt_len": prompt_len,
                    "tokens": np.concatenate([prompt, rng.choice(allowed, length)]).tolist(),
                    "trained": [False] * prompt_len + [True] * length,
                    "c": np.concatenate([zeros, grid(rng.standard_normal(length))]).tolist(),
                    "e": np.concatenate([zeros, grid(0.3 * rng.standard_normal(length))]).tolist(),
                }
            )
    return batch


def score(logits, tokens):
    """Log-probability and entropy `[T-1]` of tokens 1.. under the policy: temperature applied, banned ids removed."""
    kept = np.array([t for t in range(logits.shape[1]) if t not in BANNED])
    logp = jax.nn.log_softmax(logits[:-1, kept] / TEMPERATURE, axis=-1)
    entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
    return logp[np.arange(len(tokens) - 1), np.searchsorted(kept, tokens[1:])], entropy


def batch_loss(cfg, batch, w, head=None, lora=None):
    total = 0.0
    for s in batch:
        logp, entropy = score(forward(cfg, w, s["tokens"], head, lora, ALPHA / RANK), s["tokens"])
        total += jnp.sum(np.array(s["c"][1:]) * logp) + jnp.sum(np.array(s["e"][1:]) * entropy)
    return total


def check_gradient(loss, at, gradient, rng):
    """Guards against a misuse of autodiff: the slope along a random direction, by central differences."""
    way = {k: rng.standard_normal(v.shape) for k, v in at.items()}
    h = 1e-6
    up, down = (loss({k: v + s * way[k] for k, v in at.items()}) for s in (h, -h))
    want, got = (up - down) / (2 * h), sum(jnp.sum(way[k] * gradient[k]) for k in at)
    assert abs(want - got) < 1e-5 * max(1.0, abs(want)), f"slope {want}, gradient says {got}"


def save_tensors(path, tensors):
    save_file({k: np.ascontiguousarray(v, np.float32) for k, v in tensors.items()}, path, {"format": "pt"})


def save_json(path, value, indent=None):
    path.write_text(json.dumps(value, indent=indent) + "\n")


def write_tiny(name, out):
    cfg, rng = MODELS[name], np.random.default_rng([20, list(MODELS).index(name)])
    w = random_weights(cfg, rng)
    lora, batch = random_adapter(w, cfg, rng), random_batch(cfg["vocab_size"], rng)
    folder = out / name
    (folder / "adapter").mkdir(parents=True, exist_ok=True)
    tensors, golden = {}, {"temperature": TEMPERATURE, "banned": BANNED, "sequences": batch}

    def record(key, prefix, adapter):
        kept = []
        for i, s in enumerate(batch):
            logits = forward(cfg, w, s["tokens"], None, adapter, ALPHA / RANK)
            tensors[f"{prefix}logits/{i}"] = logits
            logp, entropy = score(logits, s["tokens"])
            kept.append({"logp": [None, *logp.tolist()], "entropy": [None, *entropy.tolist()]})
        golden[key] = {"loss": float(batch_loss(cfg, batch, w, lora=adapter)), "sequences": kept}

    record("base", "", None)
    record("lora", "lora/", lora)

    tied, table = cfg["tie_word_embeddings"], "model.embed_tokens.weight"
    out_table = table if tied else "lm_head.weight"
    base = jax.jit(jax.value_and_grad(lambda p, head: batch_loss(cfg, batch, p, head), argnums=(0, 1)))
    _, (grad, head) = base(w, w[out_table])
    if tied:
        tensors |= {"grad_parts/head": head, "grad_parts/embedding": grad[table]}
    grad[out_table] = grad[out_table] + head
    check_gradient(lambda p: base(p, p[out_table])[0], w, grad, rng)
    adapted = jax.jit(jax.value_and_grad(lambda p: batch_loss(cfg, batch, w, lora=p)))
    _, lora_grad = adapted(lora)
    check_gradient(lambda p: adapted(p)[0], lora, lora_grad, rng)
    tensors |= {f"grad/{k}": v for k, v in grad.items()} | {f"lora/grad/{k}": v for k, v in lora_grad.items()}

    save_json(folder / "config.json", cfg, indent=2)
    save_tensors(folder / "model.safetensors", w)
    save_json(folder / "adapter/adapter_config.json", adapter_config(), indent=2)
    save_tensors(folder / "adapter/adapter_model.safetensors", lora)
    save_json(folder / "golden.json", golden)
    save_tensors(folder / "golden.safetensors", tensors)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    mean_entropy = np.mean([h for s in golden["base"]["sequences"] for h in s["entropy"][1:]])
    print(f"{name:14} {size / 1024:5.0f} KiB  loss {golden['base']['loss']:+.6f}  mean entropy {mean_entropy:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    tiny = modes.add_parser("tiny", help="write the tiny models of every family with their golden numbers")
    tiny.add_argument("--out", type=Path, default=GOLDEN)
    smollm2 = modes.add_parser("smollm2", help="write golden numbers of SmolLM2-135M from its GGUF")
    smollm2.add_argument("--gguf", required=True)
    smollm2.add_argument("--oracle", type=Path, help="JSON of another engine to compare with")
    smollm2.add_argument("--out", type=Path, default=GOLDEN / "smollm2_135m.json")
    args = parser.parse_args()
    if args.mode == "tiny":
        for name in MODELS:
            write_tiny(name, args.out)
    else:
        from golden_smollm2 import smollm2_numbers  # here, so that `tiny` needs no gguf

        oracle = json.loads(args.oracle.read_text())["smollm2"] if args.oracle else None
        args.out.parent.mkdir(parents=True, exist_ok=True)
        save_json(args.out, smollm2_numbers(args.gguf, oracle))


if __name__ == "__main__":
    main()
