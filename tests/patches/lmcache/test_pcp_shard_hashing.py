"""Names of the sharded store are equal in every process, on every rank, at every width."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from lmcache.v1.pcp_shard.hashing import sha256_cbor, stable_hash
from lmcache.v1.pcp_shard.settings import ShardSettingsError
from lmcache.v1.token_database import ChunkedTokenDatabase

from tests.patches.lmcache.shard_ranks import shard_config, shard_metadata

pytestmark = pytest.mark.patched_only(reason="stock has no sharded store")

STOCK_REASONS: dict[str, str] = {}

PROMPT = [5, 300, 70_000, 5_000_000_000, 0, 23, 24, 255]

# Appendix A of RFC 8949, and its rule for the head of a longer array.
ENCODED: list[tuple[Any, str]] = [
    (0, "00"),
    (23, "17"),
    (24, "1818"),
    (255, "18ff"),
    (256, "190100"),
    (1000, "1903e8"),
    (1_000_000, "1a000f4240"),
    (1_000_000_000_000, "1b000000e8d4a51000"),
    (18_446_744_073_709_551_615, "1bffffffffffffffff"),
    (-1, "20"),
    (-1000, "3903e7"),
    ("IETF", "6449455446"),
    ("\u00fc", "62c3bc"),
    (None, "f6"),
    ((), "80"),
    ((1, (2, 3), (4, 5)), "8301820203820405"),
    (tuple(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
]


@pytest.mark.parametrize(("value", "encoded"), ENCODED, ids=[code for _, code in ENCODED])
def test_the_hash_is_that_of_the_canonical_encoding(value: object, encoded: str) -> None:
    assert sha256_cbor(value) == hashlib.sha256(bytes.fromhex(encoded)).digest()


@pytest.mark.parametrize("value", [1.5, True, b"x", 1 << 64, {"a": 1}])
def test_what_it_cannot_encode_is_an_error(value: object) -> None:
    with pytest.raises(TypeError):
        sha256_cbor(value)


def test_the_hash_of_the_process_is_never_used() -> None:
    assert stable_hash("sha256_cbor", hash) is sha256_cbor
    assert stable_hash("sha256_cbor", hashlib.sha256) is hashlib.sha256
    with pytest.raises(ShardSettingsError, match=r"pcp_shard_store.* pre_caching_hash_algorithm"):
        stable_hash("builtin", hash)


def names(rank: int, world: int) -> list[str]:
    database = ChunkedTokenDatabase(shard_config(), shard_metadata(rank, world))
    return [key.to_string() for _, _, key in database.process_tokens(PROMPT)]


def test_names_depend_neither_on_the_rank_nor_on_the_width() -> None:
    assert len(names(0, 1)) == 2 and names(0, 1)[0].startswith("model@1@0@")
    assert names(0, 1) == names(0, 3) == names(2, 3) == names(7, 8)


def test_names_are_those_of_a_store_that_is_not_sharded() -> None:
    config = shard_config(extra_config={"pcp_shard_store": False})
    database = ChunkedTokenDatabase(config, shard_metadata(0, 8))
    database.hash_func = sha256_cbor
    plain = [key.to_string() for _, _, key in database.process_tokens(PROMPT)]
    assert plain == names(7, 8)


def test_names_are_the_same_in_every_process() -> None:
    # Worked out by hand: SHA-256 of the canonical CBOR of (prefix, tokens, ()), first 8 bytes.
    assert names(1, 3) == [
        "model@1@0@c6135c8acf1cd440@bfloat16",
        "model@1@0@f8eaee5ae2a290c5@bfloat16",
    ]
