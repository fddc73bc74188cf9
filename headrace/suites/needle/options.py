"""What the user chose, and the command that runs one prompt of it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import ConfigurationError

SUITE = "needle"
# Of the folder `Options.out`, beside what every suite writes.
CELLS, PAGE = "cells.jsonl", "report.html"

# Six prompts from 12.8k to 166.7k tokens; the first and the last have 12,800 and 166,656 tokens in
# whole chunks.
LENGTHS = (12_850, 24_700, 49_300, 81_900, 122_800, 166_700)

FAULTS = ("delete-keys", "silent-shard", "stop-shard", "evict")
DialectName = Literal["plain", "needle-model"]


@dataclass(frozen=True)
class Options:
    """The suite's input.

    Attributes:
        endpoint: address of an OpenAI-compatible server, without /v1.
        model: as the endpoint names it; "" for the only one that it serves.
        valkey: addresses of the servers that hold L2, in the order of the ranks, or one that
            all ranks share; HOST:PORT, where {rank} stands for each rank.
        ranks: W, the ranks that share a prompt's chunks.
        chunk: tokens of a chunk.
        lengths: tokens of each prompt, the question's included.
        brief: tokens of prompts that are asked cold and from L2 only.
        depths: percent at which the needle lies, for every length; () for one by chance each.
        seams: also prompts around every border, and a needle for every rank.
        haystack: file with the text between the needles; None for text made from the seed.
        private: the endpoint, its servers and its model are the suite's own; what names them here
            is true for this run only.
        sync_loading: the private engine loads inside its steps.
        restart: shell command that restarts the engine; "kubectl:NAME" for a rollout of that
            deployment; "ask" to ask the user.
        logs: the engine's log files.
        faults: fault arms to run, of `FAULTS`.
        stop_shard, start_shard: shell commands of the arm "stop-shard"; {rank} is replaced.
        patience: seconds that one answer may take.
        settle: seconds that stores may take to reach the servers.
        tag: marks the keys of this run, so that an earlier run of the same seed is no hit.
    """

    endpoint: str
    model: str = ""
    valkey: tuple[str, ...] = ()
    ranks: int = 8
    chunk: int = 256
    lengths: tuple[int, ...] = LENGTHS
    brief: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    seams: bool = True
    seed: int = 0
    haystack: Path | None = None
    dialect: DialectName = "plain"
    distractors: int = 8
    private: bool = False
    sync_loading: bool = False
    restart: str = "ask"
    logs: tuple[Path, ...] = ()
    faults: tuple[str, ...] = ()
    stop_shard: str = ""
    start_shard: str = ""
    only: tuple[str, ...] = ()
    out: Path = Path("headrace-report/needle")
    image: str = ""
    patience: float = 600.0
    settle: float = 60.0
    tag: str = ""

    def __post_init__(self) -> None:
        """Refuse an endpoint that is no URL, and addresses with a login in them.

        Reports and messages repeat addresses.

        Raises:
            ConfigurationError: without the address, if there is a login in it.
        """
        if any("@" in address for address in self.valkey):
            raise ConfigurationError(
                "--valkey: expected HOST:PORT, found a user or a password in it; "
                "set LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD"
            )
        if any(sign in self.endpoint for sign in "@?#"):
            raise ConfigurationError(
                "URL: expected http://HOST:PORT, found a user, a password or a query in it; "
                "leave it out"
            )
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            scheme, colon, rest = self.endpoint.partition("://")
            found = f"{scheme}://" if colon else "no http://"
            raise ConfigurationError(
                f"URL {self.endpoint!r}: expected http://HOST:PORT, found {found} before it; "
                f"write http://{rest if colon else scheme}"
            )

    def servers(self) -> list[str]:
        """Return the servers' addresses, one for each rank or one for all."""
        return [
            text.replace("{rank}", str(rank))
            for text in self.valkey
            for rank in (range(self.ranks) if "{rank}" in text else (0,))
        ]

    def again(self, only: str) -> str:
        """Return the command that runs one prompt again: in the image if that was a private run.

        It is tagged: what this run left in L2 would be a hit in a second cold run.
        """
        words = ["headrace"]
        if self.private and self.image:
            words = ["docker", "run", "--rm", "--network", "none", "--shm-size", "1g"]
            words += ["--entrypoint", "headrace", self.image]
        words += [SUITE, "--private" if self.private else self.endpoint]
        words += ["--seed", str(self.seed), "--only", only]
        words += ["--ranks", str(self.ranks), "--chunk-size", str(self.chunk)]
        words += ["--lengths", _joined(self.lengths), "--distractors", str(self.distractors)]
        if not self.private:
            words += ["--tag", f"{self.tag}again", "--restart", self.restart]
            words += ["--dialect", self.dialect]
            for name, values in (("--valkey", self.valkey), ("--engine-log", self.logs)):
                words += [word for value in values for word in (name, str(value))]
        elif self.sync_loading:
            words.append("--sync-loading")
        words += [word for arm in self.faults for word in ("--fault", arm)]
        for name, text in (
            ("--model", "" if self.private else self.model), ("--depths", _joined(self.depths)),
            ("--brief", _joined(self.brief)), ("--haystack", str(self.haystack or "")),
            ("--image", self.image), ("--stop-shard", self.stop_shard),
            ("--start-shard", self.start_shard),
        ):  # fmt: skip
            words += [name, text] if text else []
        return shlex.join(words if self.seams else [*words, "--no-seams"])


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
