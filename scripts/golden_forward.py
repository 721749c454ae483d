"""The float64 forward pass of golden.py: one sequence, no cache, straight from configs and weights under hub names.

Shape letters: T tokens, H heads, K head dimension, V vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


def head_dim_of(cfg):
    return cfg["head_dim"] if "head_dim" in cfg else cfg["hidden_size"] // cfg["num_attention_heads"]


def rope_frequencies(cfg, theta, scaling):
    """Inverse frequencies `[K/2]` and the factor on cos and sin (1 but for YaRN).

    Sources: RoPE arXiv:2104.09864; linear arXiv:2306.15595; YaRN arXiv:2309.00071 section 3; llama3 as in the config of
    Llama 3.1: wavelengths above the low-frequency bound are divided by `factor`, those below the high one kept.
    """
    dim = head_dim_of(cfg)
    inv = theta ** (-np.arange(0, dim, 2) / dim)
    if not scaling:
        return inv, 1.0
    kind, factor = scaling["rope_type"], scaling["factor"]
    if kind == "linear":
        return inv / factor, 1.0
    original = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = np.clip((original * inv / (2 * np.pi) - low) / (high - low), 0, 1)
        return keep * inv + (1 - keep) * inv / factor, 1.0
    if kind == "yarn":

        def turns_at(n):  # the (fractional) pair index that makes n turns within the original context
            return dim * np.log(original / (n * 2 * np.pi)) / (2 * np.log(theta))

        low = max(np.floor(turns_at(scaling.get("beta_fast", 32))), 0)
        high = min(np.ceil(turns_at(scaling.get("beta_slow", 1))), dim - 1)
        stretch = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
        return stretch * inv / factor + (1 - stretch) * inv, 0.1 * np.log(factor) + 1
    raise ValueError(f"unknown rope scaling `{kind}`")


def rotate(x, frequencies):
    """RoPE on `[T, H, K]` with the two halves of K as the pairs."""
    inv, factor = frequencies
    angle = np.arange(x.shape[0])[:, None, None] * inv
    cos, sin = factor * np.cos(angle), factor * np.sin(angle)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def forward(cfg, w, tokens, head=None, lora=None, lora_scale=0.0):
    """Logits `[T, V]`; `head` overrides the output table, so that a tied one can be told from the embedding.

    `lora` holds A and B of every linear under PEFT's names.
    """
    gemma, eps = cfg["model_type"] == "gemma3_text", cfg["rms_norm_eps"]
    heads, kv_heads, head_dim = cfg["num_attention_heads"], cfg["num_key_value_heads"], head_dim_of(cfg)
    n = len(tokens)

    def norm(x, name):
        scale = w[f"{name}.weight"] + (1.0 if gemma else 0.0)
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * scale

    def linear(x, name):
        y = x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)
        if lora is None:
            return y
        a, b = (lora[f"base_model.model.{name}.lora_{m}.weight"] for m in "AB")
        return y + lora_scale * (x @ a.T) @ b.T

    def attention(x, at, i):
        q = linear(x, f"{at}.q_proj").reshape(n, heads, head_dim)
        k = linear(x, f"{at}.k_proj").reshape(n, kv_heads, head_dim)
        v = linear(x, f"{at}.v_proj").reshape(n, kv_heads, head_dim)
        if f"{at}.q_norm.weight" in w:
            q, k = norm(q, f"{at}.q_norm"), norm(k, f"{at}.k_norm")
        local = gemma and cfg["layer_types"][i] == "sliding_attention"
        theta, scaling = (cfg["rope_local_base_freq"], None) if local else (cfg["rope_theta"], cfg["rope_scaling"])
        frequencies = rope_frequencies(cfg, theta, scaling)
        q, k = rotate(q, frequencies), rotate(k, frequencies)
        k, v = (jnp.repeat(m, heads // kv_heads, axis=1) for m in (k, v))
        score = jnp.einsum("qhk,thk->hqt", q, k) * cfg.get("query_pre_attn_scalar", head_dim) ** -0.5
        distance = np.arange(n)[:, None] - np.arange(n)
        seen = (distance >= 0) & (distance < (cfg["sliding_window"] if local else n))
        weight = jax.nn.softmax(jnp.where(seen, score, -jnp.inf), axis=-1)
        return linear(jnp.einsum("hqt,thk->qhk", weight, v).reshape(n, heads * head_dim), f"{at}.o_proj")

    def mlp(x, at):
        gate = linear(x, f"{at}.gate_proj")
        gate = jax.nn.gelu(gate, approximate=True) if gemma else jax.nn.silu(gate)
        return linear(gate * linear(x, f"{at}.up_proj"), f"{at}.down_proj")

    x = w["model.embed_tokens.weight"][np.array(tokens)] * (cfg["hidden_size"] ** 0.5 if gemma else 1.0)
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}"
        y = attention(norm(x, f"{at}.input_layernorm"), f"{at}.self_attn", i)
        # the same name sits after attention in Gemma and before the feed-forward elsewhere
        x = x + (norm(y, f"{at}.post_attention_layernorm") if gemma else y)
        before = "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"
        y = mlp(norm(x, f"{at}.{before}"), f"{at}.mlp")
        x = x + (norm(y, f"{at}.post_feedforward_layernorm") if gemma else y)
    if head is None:
        head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm") @ head.T
