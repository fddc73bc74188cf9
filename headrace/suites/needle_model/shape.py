"""The needle model's sizes, and its configuration in DeepSeek-V3's form."""

from __future__ import annotations

WORDS = 256
CODE = 16
CONTEXT = 6
POSITIONS = 65536

# Words that sums are said as, after a full stop.
SAID = CONTEXT + 1

# The one width of latent and rotary part that vLLM's latent attention has on the CPU.
LATENT, ROTARY = 512, 64
THETA = 10000.0
FREQUENCIES = 16

# Places of the stream: this word and those before it, the answer, two sums, the constant.
PLACES = CONTEXT + 2
ANSWER = CONTEXT + 1
SUMS = (PLACES, PLACES + 1)
CONSTANT = (PLACES + 2) * CODE
HIDDEN = CONSTANT + 16

HEADS = CONTEXT + 2
INTERMEDIATE = 2 * SAID * CODE
UNROTATED = CONTEXT * CODE
QUERY = UNROTATED + ROTARY

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
