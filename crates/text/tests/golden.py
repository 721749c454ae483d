"""Writes the reference answers that `conformance.rs` compares with, from Hugging Face's own libraries.

Usage: pip install transformers tokenizers jinja2 gguf; python golden.py MODELS

MODELS is the folder that SUREFOOT_TEST_MODELS will name. It may hold
  NAME/tokenizer.json (+ tokenizer_config.json)   gets NAME/golden.json
  templates/*.jinja                               gets templates/golden.json
  SmolLM2-135M-Instruct.Q4_1.gguf                 gets fixtures/smollm2.json beside this script, which is committed
                                                  (the model and its template are under Apache-2.0)
It always writes fixtures/families.json, from fixtures/templates/*.jinja.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

import gguf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template


class FixedDate(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 6)


chat_template_utils.datetime = FixedDate

HERE = Path(__file__).parent / "fixtures"
TEXTS = json.loads((HERE / "texts.json").read_text())
CHATS = json.loads((HERE / "conversations.json").read_text())


def reference(messages):
    """Our messages as Hugging Face's documentation asks for them."""
    out, ids, open_ids = [], iter(f"call{n:05}" for n in range(99)), []
    for message in messages:
        message = dict(message)
        calls, tool = message.pop("calls", []), message.pop("tool", None)
        if message["role"] == "tool":
            if tool:
                message["name"] = tool
            message["tool_call_id"] = open_ids.pop(0) if tool and open_ids else next(ids)
        if calls:
            open_ids = [next(ids) for _ in calls]
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": call["tool"], "arguments": call["arguments"]}}
                for id, call in zip(open_ids, calls)
            ]
            open_ids = list(open_ids)
        out.append(message)
    return out


def functions(tools):
    keys = ("name", "description", "parameters")
    return [{"type": "function", "function": {k: tool[k] for k in keys}} for tool in tools] if tools else None


def render(template, chat, **named):
    try:
        texts, _ = render_jinja_template(
            [reference(chat["messages"])],
            tools=functions(chat.get("tools")),
            chat_template=template,
            add_generation_prompt=chat["add_generation_prompt"],
            **chat.get("variables", {}),
            **named,
        )
        return texts[0]
    except Exception as error:  # what the template refuses, ours must refuse too
        return {"error": f"{type(error).__name__}: {error}"}


def golden(fast, backend):
    named = {k: v for k, v in fast.special_tokens_map.items() if isinstance(v, str)}
    encode = lambda text: backend.encode(text, add_special_tokens=False).ids
    decode = lambda text: backend.decode(encode(text), skip_special_tokens=False)
    out = {
        "texts": [{"ids": encode(text), "decoded": decode(text)} for text in TEXTS],
        "chats": [],
    }
    if fast.chat_template:
        for chat in CHATS:
            text = render(fast.chat_template, chat, **named)
            out["chats"].append({"text": text, "ids": encode(text) if isinstance(text, str) else None})
    return out


def smollm2(path):
    field = lambda reader, key: reader.fields[key].contents()
    reader = gguf.GGUFReader(path)
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = field(reader, "tokenizer.ggml.token_type")
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == 3])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=tokens[1], eos_token=tokens[2], unk_token=tokens[0])
    fast.chat_template = field(reader, "tokenizer.chat_template")
    return {"template": fast.chat_template, **golden(fast, tokenizer)}


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(path)


def main(folder):
    for path in sorted(folder.glob("*/tokenizer.json")):
        # Some Python classes put their own pre-tokeniser in place of the file's; the file is what counts.
        write(path.parent / "golden.json", golden(AutoTokenizer.from_pretrained(path.parent), Tokenizer.from_file(str(path))))
    templates = sorted((folder / "templates").glob("*.jinja"))
    if templates:
        named = {"bos_token": "<s>", "eos_token": "</s>"}
        value = {p.name: [render(p.read_text(), chat, **named) for chat in CHATS] for p in templates}
        write(folder / "templates" / "golden.json", value)
    families = sorted((HERE / "templates").glob("*.jinja"))
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    write(HERE / "families.json", {p.stem: [render(p.read_text(), chat, **named) for chat in CHATS] for p in families})
    model = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if model.exists():
        write(HERE / "smollm2.json", smollm2(model))


main(Path(sys.argv[1]))
