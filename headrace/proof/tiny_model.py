"""A causal model small enough to serve anywhere, written without a download.

Weights are not written: the server makes them up (`--load-format dummy`). What is proved is
that the engine starts and answers, not what it says.
"""

from __future__ import annotations

import json
from pathlib import Path

WORDS = 256
UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
POSITIONS = 256

# 32 is the smallest head size that the CPU attention backend of vLLM takes.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def vocabulary() -> dict[str, int]:
    """Return word -> token id: three special tokens, then w3, w4, … up to `WORDS`."""
    words = [UNKNOWN, BEGIN, END, *(f"w{number}" for number in range(3, WORDS))]
    return {word: number for number, word in enumerate(words)}


def tokenizer() -> dict[str, object]:
    """Return a word-level tokenizer that splits at white space, as `tokenizers` stores it."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": word,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, word in enumerate((UNKNOWN, BEGIN, END))
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary(), "unk_token": UNKNOWN},
    }


def write_tiny_model(folder: Path) -> None:
    """Write config and tokenizer into `folder`, the same bytes every time, readable by anyone."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    files = {
        "config.json": CONFIG,
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": UNKNOWN,
            "bos_token": BEGIN,
            "eos_token": END,
            "model_max_length": POSITIONS,
        },
    }
    for name, content in files.items():
        path = folder / name
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        path.chmod(0o644)
