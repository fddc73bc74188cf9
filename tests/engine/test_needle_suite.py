"""The needle suite on the real engine: what is broken on purpose turns it, for the right reason.

One run of the suite serves four of the negative controls, each at prompts of its own that have two
whole chunks: chunk 0 on the server of rank 0, chunk 1 on that of rank 1. Two further deployments
are wrong from their start.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import valkey

from headrace.errors import SuiteFailedError
from headrace.suites.needle.cells import Cell
from headrace.suites.needle.client import Endpoint
from headrace.suites.needle.engine import PrivateEngine
from headrace.suites.needle.options import Options
from headrace.suites.needle.private import private_engine
from headrace.suites.needle.run import Outcome, run_suite
from headrace.suites.results import CaseResult, overall
from headrace.suites.valkey_server import HOST
from tests.engine.settings import CHUNK, RANKS, engine_python, environment
from tests.suites.sites import ROOT, site

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

# Two whole chunks and a part of one, with a needle in either.
LENGTHS, DEPTHS = (600, 601, 602), (20, 60)
SOUND, GONE = "600-at-20", "600-at-60"
STALE, STALE_SOURCE = "601-at-20", "602-at-20"
SWAPPED = ("601-at-60", "602-at-60")
SETTLE_SECONDS = 15.0


@dataclass
class Servers:
    """The keys of each prompt: those that came to the servers while it was asked cold.

    Attributes:
        keys: by prompt, the one key on the server of each rank.
    """

    clients: list[valkey.Valkey]
    keys: dict[str, list[bytes]] = field(default_factory=dict)
    _seen: list[set[bytes]] = field(default_factory=lambda: [set() for _ in range(RANKS)])

    def note(self, result: CaseResult) -> None:
        """Take note of the keys of a prompt that was just asked cold."""
        prompt, _, state = result.case.partition("/")
        if state != "cold":
            return
        found = []
        for client, seen in zip(self.clients, self._seen, strict=True):
            (new,) = _new_keys(client, seen)
            seen.add(new)
            found.append(new)
        self.keys[prompt] = found

    def value(self, prompt: str, rank: int) -> bytes:
        """Return what the server of `rank` holds of a prompt."""
        value = cast("bytes | None", self.clients[rank].get(self.keys[prompt][rank]))
        assert value is not None
        return value

    def put(self, prompt: str, rank: int, value: bytes) -> None:
        """Put `value` in place of what the server of `rank` holds of a prompt."""
        self.clients[rank].set(self.keys[prompt][rank], value)

    def spoil(self) -> None:
        """Do what each negative control is about, between two lives of the engine."""
        one, other = SWAPPED
        values = self.value(one, 1), self.value(other, 1)
        self.put(one, 1, values[1])
        self.put(other, 1, values[0])
        for rank in range(RANKS):
            self.put(STALE, rank, self.value(STALE_SOURCE, rank))
            self.clients[rank].delete(self.keys[GONE][rank])


class WithoutConnector(PrivateEngine):
    """The same engine, started without what connects it to LMCache."""

    def command(self) -> list[str]:
        words = super().command()
        words.insert(words.index("--"), "--json")
        shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
        command: list[str] = json.loads(shown.stdout)["command"]
        at = command.index("--kv-transfer-config")
        return [
            str(engine_python()),
            str(engine_python().with_name("vllm")),
            *command[1:at],
            *command[at + 2 :],
        ]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, logs: Path) -> Iterator[PrivateEngine]:
    """Yield an engine that is not started yet, with running servers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", str(engine_python()))
        for name, text in environment({}).items():
            patch.setenv(name, text)
        # Imports are most of a start: their byte code is kept, as in the other tests.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        folder = tmp_path_factory.mktemp("suite")
        with private_engine(
            folder, ranks=RANKS, chunk=CHUNK, longest=max(LENGTHS), async_loading=True
        ) as made:
            yield made
        (logs / "needle-suite.log").write_bytes(made.log.read_bytes())


@pytest.fixture(scope="module")
def spoilt(engine: PrivateEngine) -> Outcome:
    """Return the outcome of one whole run with every control in it that one run can hold."""
    servers = Servers(_clients(engine))

    def restart(endpoint: Endpoint) -> None:
        servers.spoil()
        engine.restart(endpoint)

    return _run(engine, servers.note, restart)


def test_what_is_left_alone_is_green_and_the_whole_is_red(spoilt: Outcome) -> None:
    for name in (SOUND, STALE_SOURCE):
        cells = [cell for cell in spoilt.cells if cell.prompt.name == name]
        assert [(cell.state, cell.verdict) for cell in cells] == [
            (state, "green") for state in ("cold", "L1", "L2", "control")
        ], [cell.seen() for cell in cells]
    others = [cell for cell in spoilt.cells if cell.state != "L2"]
    assert [cell.seen() for cell in others if cell.verdict != "green"] == []
    assert overall(spoilt.results) == "red"


@pytest.mark.parametrize(("name", "other"), [SWAPPED, SWAPPED[::-1]])
def test_swapped_chunks_are_another_prompts_code(spoilt: Outcome, name: str, other: str) -> None:
    """All is counted as it should be, and the code of the other prompt comes out."""
    cell = _cell(spoilt, name, "L2")
    assert (cell.verdict, cell.found, cell.ranks) == ("red", "wrong", (1,)), cell.seen()
    assert f"the code of prompt {other}" in cell.seen()
    assert cell.evidence is not None
    assert (cell.evidence.cached, cell.evidence.gets) == (2 * CHUNK, (1, 1))


def test_stale_keys_of_another_prompt_are_its_code(spoilt: Outcome) -> None:
    cell = _cell(spoilt, STALE, "L2")
    assert (cell.verdict, cell.found, cell.ranks) == ("red", "wrong", (0,)), cell.seen()
    assert f"the code of prompt {STALE_SOURCE}" in cell.seen()


def test_an_emptied_l2_is_void(spoilt: Outcome) -> None:
    """Neither server has anything of the prompt: the right answer was computed."""
    cell = _cell(spoilt, GONE, "L2")
    assert (cell.verdict, cell.found) == ("void", "right"), cell.seen()
    assert "no GET on any server: nothing came from L2" in cell.seen()
    assert "found none: computed anew" in cell.seen()


def test_a_shard_pointed_at_anothers_is_void(engine: PrivateEngine) -> None:
    """Rank 1 stores and loads on rank 0's server: right answers, and the counters tell."""
    at = engine.words.index("--remote-url") + 1
    words = [*engine.words]
    words[at] = words[at].replace("{rank}", "0")
    one = PrivateEngine(engine.log.parent, RANKS, engine.valkey, words)
    outcome = _run(one, lambda result: None, one.restart, lengths=(600,), seed=6)
    cell = _cell(outcome, SOUND, "L2")
    assert (cell.verdict, cell.found, cell.ranks) == ("void", "right", (0, 1)), cell.seen()
    assert "shard 1: expected 1 GETs, found 0" in cell.seen()
    assert [row.stored for row in outcome.shards] == [2, 0]
    assert overall(outcome.results) == "void"


def test_a_silent_recompute_is_void(engine: PrivateEngine) -> None:
    """Without the connector every answer is right, and none came from a cache."""
    bare = WithoutConnector(engine.log.parent, RANKS, engine.valkey, engine.words)
    outcome = _run(bare, lambda result: None, lambda endpoint: None, lengths=(600,), seed=7)
    assert {cell.found for cell in outcome.cells} == {"right"}
    for state in ("L1", "L2"):
        cell = _cell(outcome, SOUND, state)
        assert cell.verdict == "void"
        assert "found none: computed anew" in cell.seen()
    assert overall(outcome.results) == "void"


def test_the_stock_release_cannot_prove_it(tmp_path: Path) -> None:
    """The same command on LMCache 0.5.5: rank 0 keeps all chunks, and frees each one twice."""
    out = tmp_path / "out"
    done = subprocess.run(
        [
            engine_python(), "-m", "headrace.cli", "needle", "--private", "--seed", "8",
            "--lengths", "600", "--depths", "20", "--only", SOUND, "--settle", "3", "--out", out,
        ],
        env={**environment({}), "PYTHONPATH": f"{site('stock')}:{ROOT}"}, cwd=ROOT,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == SuiteFailedError.exit_code, done.stdout + done.stderr
    lines = (out / "results.jsonl").read_text().splitlines()
    found = {case["case"]: case for case in map(json.loads, lines)}
    turned = {name: case["verdict"] for name, case in found.items() if case["verdict"] != "green"}
    assert turned == {
        f"{SOUND}/L2": "void", "deployment/sharded-store": "void", "log/double frees": "red",
    }  # fmt: skip
    assert "shard 1: expected 1 GETs, found 0 [rank 0, 1]" in found[f"{SOUND}/L2"]["seen"]
    assert "has no sharded store: rank 0 stores all" in found["deployment/sharded-store"]["seen"]


def _run(
    engine: PrivateEngine,
    on_result: Callable[[CaseResult], None],
    restarter: Callable[[Endpoint], None],
    lengths: tuple[int, ...] = LENGTHS,
    seed: int = 5,
) -> Outcome:
    options = Options(
        engine.url, valkey=(engine.valkey,), ranks=RANKS, chunk=CHUNK, lengths=lengths,
        depths=DEPTHS if lengths == LENGTHS else DEPTHS[:1], seams=False, seed=seed,
        dialect="needle-model", distractors=2, logs=(engine.log,), patience=120.0, settle=3.0,
    )  # fmt: skip
    with Endpoint(engine.url, "", options.patience) as endpoint:
        engine.start(endpoint)
        try:
            return run_suite(options, on_result, restarter)
        finally:
            # One engine at a time: there are two cores.
            engine.stop()


def _cell(outcome: Outcome, prompt: str, state: str) -> Cell:
    return next(cell for cell in outcome.cells if cell.name == f"{prompt}/{state}")


def _clients(engine: PrivateEngine) -> list[valkey.Valkey]:
    ports = [int(engine.valkey.partition(":")[2].replace("{rank}", str(r))) for r in range(RANKS)]
    return [valkey.Valkey(HOST, port, socket_timeout=SETTLE_SECONDS) for port in ports]


def _new_keys(client: valkey.Valkey, seen: set[bytes]) -> set[bytes]:
    """Wait for what an engine stores after it has answered."""
    until = time.monotonic() + SETTLE_SECONDS
    while not (new := set(cast("list[bytes]", client.keys())) - seen):
        assert time.monotonic() < until, "expected a chunk on the server, found none"
        time.sleep(0.05)
    return new
