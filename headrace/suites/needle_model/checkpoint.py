"""The needle model as files: its weights under DeepSeek-V3's names, and its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from headrace.suites.needle_model.copying import fill_matching, fill_previous_words
from headrace.suites.needle_model.kerdock import codes
from headrace.suites.needle_model.shape import (
    ANSWER,
    CODE,
    CONFIG,
    CONSTANT,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    LATENT,
    PLACES,
    POSITIONS,
    QUERY,
    ROTARY,
    UNROTATED,
    WORDS,
)
from headrace.suites.needle_model.stream import place, undo_norm
from headrace.suites.needle_model.sums import fill_saying, fill_sums
from headrace.suites.needle_model.words import SPECIAL, vocabulary


def weights() -> dict[str, torch.Tensor]:
    """Return the checkpoint: float32 tensors under DeepSeek-V3's names."""
    shapes = {
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HEADS * QUERY, HIDDEN),
        "self_attn.kv_a_proj_with_mqa": (LATENT + ROTARY, HIDDEN),
        "self_attn.kv_a_layernorm": (LATENT,),
        "self_attn.kv_b_proj": (HEADS * (UNROTATED + CODE), LATENT),
        "self_attn.o_proj": (HIDDEN, HEADS * CODE),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    first, second = (
        {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        for _ in range(2)
    )
    fill_previous_words(first)
    fill_matching(second)
    fill_sums(first, second)
    fill_saying(second)
    embedding = torch.zeros(WORDS, HIDDEN, dtype=torch.float64)
    embedding[:, place(0)] = codes()
    embedding[:, CONSTANT] = 4.0
    head = torch.zeros(WORDS, HIDDEN, dtype=torch.float64)
    head[:, place(ANSWER)] = 2.0 * codes()
    # A sum's nearest word must not end the answer.
    head[: len(SPECIAL)] = 0.0
    everything = {
        "model.embed_tokens": embedding,
        "model.norm": undo_norm(PLACES),
        "lm_head": head,
        **{f"model.layers.0.{name}": tensor for name, tensor in first.items()},
        **{f"model.layers.1.{name}": tensor for name, tensor in second.items()},
    }
    return {f"{name}.weight": tensor.float() for name, tensor in everything.items()}


def write_needle_model(folder: Path) -> None:
    """Write the checkpoint and its tokenizer, which splits at white space, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number, "content": word, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
            for number, word in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(vocabulary())},
            "unk_token": SPECIAL[0],
        },
    }  # fmt: skip
    files = {
        "config.json": CONFIG,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": SPECIAL[0],
            "bos_token": SPECIAL[1],
            "eos_token": SPECIAL[2],
            "model_max_length": POSITIONS,
        },
    }
    for name, content in files.items():
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
