"""SmolLM2-135M in float64 from the dequantised weights of its GGUF; run through golden.py.

For each text: `logprobs` (entry t is token t's, given those before it, at temperature 1; entry 0 is null), and at each
position `logsumexp` of the logits and the 32 largest, best first, as `top_ids` and `top_logits`.
"""

from pathlib import Path

import jax
import numpy as np
from gguf import GGUFReader, dequantize

from golden_forward import forward

# text: its token ids (spelt out so that no tokenizer is needed here)
SMOLLM2_TEXTS = {
    "The capital of France is Paris. 17 + 25 =": [
        504,
        3575,
        282,
        4649,
        314,
        7042,
        30,
        216,
        33,
        39,
        1232,
        216,
        34,
        37,
        446,
    ],
    "In 1969, two people walked on the Moon; the journey back took about three days, and everyone watched.": [
        *[788, 216, 33, 41, 38, 41, 28, 827, 701, 13197, 335, 260, 8872],
        *[43, 260, 3444, 1056, 2637, 563, 1296, 2009, 28, 284, 2573, 12635, 30],
    ],
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is 17 + 25? Answer with only the number.<|im_end|>\n<|im_start|>assistant\n": [
        *[
            1,
            9690,
            198,
            2683,
            359,
            253,
            5356,
            5646,
            11173,
            3365,
            3511,
            308,
            34519,
            28,
            7018,
            411,
            407,
            19712,
            8182,
            2,
            198,
        ],
        *[1, 4093, 198, 1780, 314, 216, 33, 39, 1232, 216, 34, 37, 47, 19842, 351, 805, 260, 1230, 30, 2, 198],
        *[1, 520, 9531, 198],
    ],
}


def load_gguf(path):
    """Config and float64 weights under hub names, with the interleaved q and k rows of a llama GGUF put back."""
    reader = GGUFReader(path)

    def field(key):
        return reader.fields[f"llama.{key}"].contents()

    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    cfg = {
        "model_type": "llama",
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": field("rope.dimension_count"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"),
        "rope_scaling": None,
    }
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_output": "self_attn.o_proj",
    }
    names |= {f"attn_{m}": f"self_attn.{m}_proj" for m in "qkv"}
    names |= {f"ffn_{m}": f"mlp.{m}_proj" for m in ("gate", "up", "down")}
    w = {}
    for tensor in reader.tensors:
        *block, short, _ = tensor.name.split(".")
        at = f"model.layers.{block[1]}." if block else ""
        value = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        n = {"attn_q": heads, "attn_k": kv_heads}.get(short)
        if n:  # rows of a head lie as pairs (0, K/2), (1, K/2 + 1), …; the hub has the two halves one after another
            value = value.reshape(n, -1, 2, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        w[f"{at}{names[short]}.weight"] = value
    return cfg, w


def smollm2_numbers(gguf, oracle=None):
    """What is stored of every text; prints the distance to `oracle` on the text it holds."""
    cfg, w = load_gguf(gguf)
    texts = []
    for text, tokens in SMOLLM2_TEXTS.items():
        logits = np.asarray(forward(cfg, w, tokens))
        lse = np.asarray(jax.nn.logsumexp(logits, axis=-1))
        top = np.argsort(-logits, axis=-1, kind="stable")[:, :32]
        texts.append(
            {
                "text": text,
                "tokens": tokens,
                "logprobs": [None, *(logits[np.arange(len(tokens) - 1), tokens[1:]] - lse[:-1]).tolist()],
                "logsumexp": lse.tolist(),
                "top_ids": top.tolist(),
                "top_logits": np.take_along_axis(logits, top, axis=-1).tolist(),
            }
        )
        if oracle and oracle["ids"] == tokens:
            compare_oracle(oracle, logits, lse)
    return {"file": Path(gguf).name, "texts": texts}


def compare_oracle(oracle, logits, lse):
    """Prints how far another engine's top-8 table and prompt log-probs lie from this pass."""
    rows = oracle["top8_id_logit_logprob_per_position"]
    table = [(t, *entry) for t, row in enumerate(rows) for entry in row]
    logit = max(abs(logits[t, i] - x) for t, i, x, _ in table)
    logp = max(abs(logits[t, i] - lse[t] - p) for t, i, _, p in table)
    got = logits[np.arange(len(lse) - 1), oracle["ids"][1:]] - lse[:-1]
    prompt = np.abs(got - np.array(oracle["prompt_token_logprobs"])).max()
    same = sum(row[0][0] == logits[t].argmax() for t, row in enumerate(rows))
    print(f"oracle: top-1 {same}/{len(rows)}, max logit {logit:.4f}, top-8 logp {logp:.4f}, prompt logp {prompt:.4f}")
