"""A language model whose answers can be computed by hand: it copies what followed last time.

`write_needle_model(folder)` writes a checkpoint in DeepSeek-V3's form (latent attention, no
experts) with two layers and 256 words, computed and not trained, the same bytes every time. Asked
to go on, the model finds where the last six words stood before and says the word that came next
there. A code hidden in a long prompt is thus either answered exactly or not at all, at any length,
and what is answered comes out of the KV cache.

Codes. Word v is a vector c(v) of 16 signs. The 256 vectors are a Kerdock code: the words
(-1)^(Q(x) + a·x + b) over x in F₂⁴, for 16 vectors a, 2 bits b and 8 quadratic forms Q whose
pairwise sums are nonsingular. Words of one form are orthogonal or opposite; words of two forms
differ by a bent function, so c(u)·c(v) = ±4. Hence c(v)·c(v) = 16 and c(u)·c(v) ≤ 4 for u ≠ v.

Stream. A position's vector has ten places of 16 numbers, and one constant:
[c(this word) | c(1 before) | … | c(6 before) | c(answer) | sum 1 | sum 2 | 4, 0, …]. The embedding
fills the first place. Its length is the same at each position (the sums are kept small), so the
weights of each norm undo it exactly.

Layer 1: what stood before. Head h = 1 … 6 looks at position s = t - h. Only the rotary part
counts. All keys are (1, 0) in each of 16 frequency pairs w_j, and turn by w_j s; the query of head
h is (cos h w_j, -sin h w_j), and turns by w_j t. The score is

    BETA_POSITION · mean_j cos(w_j (t - h - s)),

with its one maximum at s = t - h. Value and output copy c(word at s) to place h.

Layer 2: where it stood before. The query is [c(t), c(t-1), …, c(t-5)], the key at s is
[c(s-1), …, c(s-6)], and the score BETA_MATCH / 16 · Σ_i c(t-i)·c(s-1-i). Six equal words score
6 BETA_MATCH, and one different word takes at least 12/16 BETA_MATCH from that: 30 in the exponent,
against which some ten thousand positions, 9.2 in the exponent, are nothing. The value at s is
c(word at s), copied to the last place, which the head turns into the word.

In the cache, layer 1 keeps [c(s), 0, …] and the turned pairs; layer 2 keeps
[c(s-1), …, c(s-6), c(s), 0, …].

Sums: everything else in the cache. Those heads look sharply, so what they do not look at could be
anything. Two more heads in each layer look everywhere. In layer 1 one takes the mean of c(s) over
all positions, the other a mean weighted by exp(BETA_PHASE · mean_j cos(w_j (t - s))), which depends
on every turned pair. In layer 2 both take plain means, of c(s) and of a mixture of c(s-1) … c(s-6).
A word's share of a mean is small and never zero: another chunk's KV, none, or KV that is moved
within its row changes the means, in whichever layer it lies.

After a full stop the model says its sums. The feed-forward part of layer 2 has gates that open
where a full stop stood 0 … 6 words ago, since c(".")·c(v) ≤ 4 elsewhere. An open gate takes the
copied word out of the answer and puts in GAIN times a signed permutation of the sums, another one
for each distance, less what the means of an endless text would be. Seven words follow, each the
nearest one to such a vector. They mean nothing; they, and their probabilities still more, are the
same only as long as all of the KV is.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path

import torch
from safetensors.torch import save_file

WORDS = 256
CODE = 16
CONTEXT = 6
POSITIONS = 65536

BETA_POSITION = 120.0
BETA_MATCH = 40.0
BETA_PHASE = 3.0
FREQUENCIES = 16

# Words that sums are said as, after STOP. Sums are this much smaller in the stream than they are.
SAID = CONTEXT + 1
STOP = "."
SUM_SCALE = 1 / 16
GAIN = 30.0
# A gate is open above, and its height is this for the word itself: 4 · (16 - 10).
GATE_SLOPE, GATE_FROM, GATE_HEIGHT = 4.0, 10.0, 24.0

# The one width of latent and rotary part that vLLM's latent attention has on the CPU.
LATENT, ROTARY = 512, 64
THETA = 10000.0
PLACES = CONTEXT + 2
ANSWER = CONTEXT + 1
SUMS = (PLACES, PLACES + 1)
HEADS = CONTEXT + 2
CONSTANT = (PLACES + 2) * CODE
HIDDEN = CONSTANT + 16
INTERMEDIATE = 2 * SAID * CODE
UNROTATED = CONTEXT * CODE
QUERY = UNROTATED + ROTARY

SPECIAL = ("<unk>", "<s>", "</s>")
DIGITS = tuple("0123456789")
_GRAMMAR = "remember question answer what is the code for : . ?"
_KEYS = (
    "amber basil cedar delta ember fjord grove heron iris jade koala lotus maple nectar olive "
    "pearl quartz raven sable tulip umber violet willow xenon yarrow zephyr"
)
GRAMMAR, KEYS = tuple(_GRAMMAR.split()), tuple(_KEYS.split())

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": WORDS,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "num_nextn_predict_layers": 0,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "q_lora_rank": None,
    "kv_lora_rank": LATENT,
    "qk_nope_head_dim": UNROTATED,
    "qk_rope_head_dim": ROTARY,
    "v_head_dim": CODE,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-6,
    # vLLM 0.31.0 turns latent queries wrongly on the CPU with plain rotary positions. Scaled by
    # 1, the frequencies are the same and another path computes them.
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": THETA,
        "factor": 1.0,
        "original_max_position_embeddings": POSITIONS,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
    "rope_interleave": True,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}


def vocabulary() -> tuple[str, ...]:
    """Return the words in the order of their numbers: the last ones mean nothing."""
    fixed = (*SPECIAL, *DIGITS, *GRAMMAR, *KEYS)
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiou")]
    filler = ("".join(pair) for pair in itertools.product(syllables, syllables))
    return (*fixed, *itertools.islice(filler, WORDS - len(fixed)))


def filler() -> tuple[str, ...]:
    """Return the words that mean nothing."""
    return vocabulary()[len(SPECIAL) + len(DIGITS) + len(GRAMMAR) + len(KEYS) :]


def codes() -> torch.Tensor:
    """Return the code of each word: float64, [WORDS, CODE], of 1 and -1."""
    points = list(itertools.product((0, 1), repeat=4))
    pairs = list(itertools.combinations(range(4), 2))
    rows = [
        [
            (-1) ** (sum(q * x[j] * x[k] for q, (j, k) in zip(form, pairs, strict=True)) + line)
            for x, line in zip(points, lines, strict=True)
        ]
        for form in _kerdock_set()
        for slope in points
        for constant in (0, 1)
        for lines in [
            [sum(a * b for a, b in zip(slope, x, strict=True)) + constant for x in points]
        ]
    ]
    return torch.tensor(rows, dtype=torch.float64)


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
    _fill_previous_words(first)
    _fill_matching(second)
    _fill_sums(first, second)
    _fill_saying(second)
    embedding = torch.zeros(WORDS, HIDDEN, dtype=torch.float64)
    embedding[:, _place(0)] = codes()
    embedding[:, CONSTANT] = 4.0
    head = torch.zeros(WORDS, HIDDEN, dtype=torch.float64)
    head[:, _place(ANSWER)] = 2.0 * codes()
    # A sum's nearest word must not end the answer.
    head[: len(SPECIAL)] = 0.0
    everything = {
        "model.embed_tokens": embedding,
        "model.norm": _undo_norm(PLACES),
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


def frequencies() -> torch.Tensor:
    """Return w_j, the turn of each pair that layer 1 uses, in radians a position; float64."""
    numbers = torch.arange(FREQUENCIES, dtype=torch.float64)
    return THETA ** (-numbers / (ROTARY // 2))


def _kerdock_set() -> list[tuple[int, ...]]:
    """Return 8 quadratic forms on F₂⁴, as the coefficients of x_j x_k with j < k."""
    forms = list(itertools.product((0, 1), repeat=6))

    def nonsingular(form: list[int]) -> bool:
        # The Pfaffian of the alternating matrix, entries in the order 01 02 03 12 13 23.
        return (form[0] * form[5] + form[1] * form[4] + form[2] * form[3]) % 2 == 1

    def extended(chosen: list[tuple[int, ...]], start: int) -> list[tuple[int, ...]] | None:
        if len(chosen) == WORDS // 32:
            return chosen
        for number in range(start, len(forms)):
            sums = ([a ^ b for a, b in zip(forms[number], each, strict=True)] for each in chosen)
            if all(map(nonsingular, sums)):
                found = extended([*chosen, forms[number]], number + 1)
                if found is not None:
                    return found
        return None

    found = extended([], 0)
    if found is None:
        raise AssertionError("a Kerdock set of 8 forms exists")
    return found


def _fill_previous_words(layer: dict[str, torch.Tensor]) -> None:
    """Layer 1: head h copies the code of the word h before to place h."""
    layer["input_layernorm"][:] = _undo_norm(1)
    layer["post_attention_layernorm"][:] = 1.0
    latent = layer["self_attn.kv_a_proj_with_mqa"]
    latent[:CODE, _place(0)] = _identity(CODE)
    latent[LATENT : LATENT + 2 * FREQUENCIES : 2, CONSTANT] = 1 / 4
    layer["self_attn.kv_a_layernorm"][:] = math.sqrt(CODE / LATENT)
    # Attention divides scores by the root of the query's width.
    scale = BETA_POSITION * math.sqrt(QUERY) / FREQUENCIES / 4
    for head in range(CONTEXT):
        turned_back = -(head + 1) * frequencies()
        query = layer["self_attn.q_proj"][head * QUERY + UNROTATED : (head + 1) * QUERY]
        query[0 : 2 * FREQUENCIES : 2, CONSTANT] = scale * torch.cos(turned_back)
        query[1 : 2 * FREQUENCIES : 2, CONSTANT] = scale * torch.sin(turned_back)
        value = head * (UNROTATED + CODE) + UNROTATED
        layer["self_attn.kv_b_proj"][value : value + CODE, :CODE] = _identity(CODE)
        columns = slice(head * CODE, (head + 1) * CODE)
        layer["self_attn.o_proj"][_place(head + 1), columns] = _identity(CODE)


def _fill_matching(layer: dict[str, torch.Tensor]) -> None:
    """Layer 2: all heads alike copy the code of the word after the same six to the last place."""
    layer["input_layernorm"][:] = _undo_norm(PLACES - 1)
    layer["post_attention_layernorm"][:] = 1.0
    latent = layer["self_attn.kv_a_proj_with_mqa"]
    latent[:UNROTATED, CODE : CODE + UNROTATED] = _identity(UNROTATED)
    latent[UNROTATED : UNROTATED + CODE, _place(0)] = _identity(CODE)
    layer["self_attn.kv_a_layernorm"][:] = math.sqrt((UNROTATED + CODE) / LATENT)
    scale = BETA_MATCH * math.sqrt(QUERY) / CODE
    for head in range(CONTEXT):
        query = layer["self_attn.q_proj"][head * QUERY : head * QUERY + UNROTATED]
        query[:, :UNROTATED] = scale * _identity(UNROTATED)
        key = head * (UNROTATED + CODE)
        value = key + UNROTATED
        expanded = layer["self_attn.kv_b_proj"]
        expanded[key:value, :UNROTATED] = _identity(UNROTATED)
        expanded[value : value + CODE, UNROTATED : UNROTATED + CODE] = _identity(CODE)
        columns = slice(head * CODE, (head + 1) * CODE)
        layer["self_attn.o_proj"][_place(ANSWER), columns] = _identity(CODE) / CONTEXT


def _fill_sums(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """Two heads in each layer: means over all positions. A query of zeros looks at all alike."""
    plain, weighted = CONTEXT, CONTEXT + 1
    query = first["self_attn.q_proj"][weighted * QUERY + UNROTATED : (weighted + 1) * QUERY]
    query[0 : 2 * FREQUENCIES : 2, CONSTANT] = BETA_PHASE * math.sqrt(QUERY) / FREQUENCIES / 4
    this_word = slice(UNROTATED, UNROTATED + CODE)
    for head in (plain, weighted):
        value = head * (UNROTATED + CODE) + UNROTATED
        columns = slice(head * CODE, (head + 1) * CODE)
        first["self_attn.kv_b_proj"][value : value + CODE, :CODE] = _identity(CODE)
        mixed = second["self_attn.kv_b_proj"][value : value + CODE]
        if head == plain:
            mixed[:, this_word] = _identity(CODE)
        else:
            for before in range(CONTEXT):
                mixed[:, before * CODE : (before + 1) * CODE] = mixture(before)
        turned = SUM_SCALE * (_identity(CODE) if head == plain else mixture(CONTEXT))
        for layer, place in zip((first, second), SUMS, strict=True):
            layer["self_attn.o_proj"][_place(place), columns] = turned


def _fill_saying(layer: dict[str, torch.Tensor]) -> None:
    """Layer 2, feed-forward: the sums in place of the copied word, up to six words after STOP."""
    layer["post_attention_layernorm"][:] = _undo_norm(PLACES)
    gates, up, down = (layer[f"mlp.{name}_proj"] for name in ("gate", "up", "down"))
    stop = codes()[vocabulary().index(STOP)]
    ordinary = expected_sums()
    for distance in range(SAID):
        sums, copied = (
            slice((2 * distance + kind) * CODE, (2 * distance + kind + 1) * CODE) for kind in (0, 1)
        )
        for rows in (sums, copied):
            gates[rows, _place(distance)] = GATE_SLOPE * stop
            gates[rows, CONSTANT] = -GATE_SLOPE * GATE_FROM / 4
        for number, place in enumerate(SUMS):
            turn = mixture(CONTEXT + 1 + 2 * distance + number)
            up[sums, _place(place)] = turn
            up[sums, CONSTANT] -= SUM_SCALE / 4 * turn @ ordinary[number]
        down[_place(ANSWER), sums] = _identity(CODE) * GAIN / SUM_SCALE / GATE_HEIGHT
        up[copied, _place(ANSWER)] = _identity(CODE)
        down[_place(ANSWER), copied] = -_identity(CODE) / GATE_HEIGHT


def mixture(number: int) -> torch.Tensor:
    """Return a signed permutation of a code's places, another one for each number; float64."""
    rng = random.Random(number)  # noqa: S311  # reproducible, and no secret
    order = rng.sample(range(CODE), CODE)
    signs = [rng.choice((-1.0, 1.0)) for _ in range(CODE)]
    return torch.diag(torch.tensor(signs, dtype=torch.float64))[order]


def expected_sums() -> tuple[torch.Tensor, torch.Tensor]:
    """Return sum 1 and sum 2 of an endless text of words that mean nothing; float64, [CODE]."""
    numbers = [vocabulary().index(word) for word in filler()]
    mean = codes()[numbers].mean(dim=0)
    before = torch.stack([mixture(number) for number in range(CONTEXT)]).sum(dim=0)
    return mean + mixture(CONTEXT) @ mean, mean + mixture(CONTEXT) @ before @ mean


def _undo_norm(places: int) -> torch.Tensor:
    """Return norm weights that leave a stream of `places` filled places as it is."""
    length = places * CODE + 16
    return torch.full((HIDDEN,), math.sqrt(length / HIDDEN), dtype=torch.float64)


def _place(number: int) -> slice:
    return slice(number * CODE, (number + 1) * CODE)


def _identity(size: int) -> torch.Tensor:
    return torch.eye(size, dtype=torch.float64)
