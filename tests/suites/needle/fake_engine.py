"""A stand-in for an engine with LMCache: reads codes out of what its cache holds, chunk by chunk.

The KV of a chunk is its words. What comes from a cache is believed, as by a real engine: a chunk
that holds another's words gives another answer. L2 is real Valkey, one server for each rank.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import valkey

_PIECES = re.compile(r"\s+|\d|[^\W\d]+|[^\w\s]")
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
_ASKED = re.compile(r"the code for ([a-z ]+?) is\s*$")


@dataclass
class Behaviour:
    """What the engine does, and gets wrong."""

    chunk: int = 256
    limit: object = 100_000
    model: str = "fake"
    connector: bool = True
    reports_cached: bool = True
    has_metrics: bool = True
    own_prefix_cache: bool = False
    restart_empties: bool = True
    at_restart: Callable[[], None] | None = None
    salted: bool = True
    # Seconds after which a server counts as away; None for ever.
    patience: float | None = None
    # Which server each rank uses; the identity for None.
    server_of: Callable[[int], int] | None = None
    # Called between lookup and load of a prompt from L2.
    between: Callable[[], None] | None = None
    # Called with vLLM's line for a load that fell short; all that was promised counts as cached.
    log_failed_load: Callable[[str], None] | None = None
    # Whether stores reach the servers.
    stores: Callable[[], bool] = lambda: True
    # Answers end with a word that depends on all that is believed, as the needle model's do.
    sums: bool = False
    change: Callable[[str, str], str] = field(default=lambda answer, source: answer)
    # What completions and their usage say instead of what is true.
    says: dict[str, object] = field(default_factory=dict)


class FakeEngine:
    """The engine and its HTTP server on loopback. A context manager."""

    def __init__(
        self, servers: Sequence[valkey.Valkey], behaviour: Behaviour, port: int = 0
    ) -> None:
        self.servers = servers
        self.does = behaviour
        self.requests: list[dict[str, Any]] = []
        self.restarts = 0
        self._words: list[str] = []
        self._ids: dict[str, int] = {}
        self._l1: dict[str, list[int]] = {}
        self._own: set[tuple[str, tuple[int, ...]]] = set()
        self._hits = {"": 0, "external_": 0}
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Answer nobody any more."""
        self._http.shutdown()
        self._http.server_close()

    def encode(self, text: str) -> list[int]:
        tokens = []
        for piece in _PIECES.findall(text):
            if piece not in self._ids:
                self._ids[piece] = len(self._words)
                self._words.append(piece)
            tokens.append(self._ids[piece])
        return tokens

    def restart(self) -> None:
        self.restarts += 1
        if self.does.at_restart:
            self.does.at_restart()
        if self.does.restart_empties:
            self._l1.clear()
            self._own.clear()

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        tokens: list[int] = request["prompt"]
        salt: str = request.get("cache_salt", "") if self.does.salted else ""
        keys = chunk_keys(tokens, self.does.chunk, salt)
        cached, source, promised = self._load(keys) if self.does.connector else ([], "cold", 0)
        own = 0
        if self.does.own_prefix_cache:
            own = len(tokens) if (salt, tuple(tokens)) in self._own else 0
            self._own.add((salt, tuple(tokens)))
        lost = promised - len(cached) if self.does.log_failed_load else 0
        if lost and self.does.log_failed_load:
            self.does.log_failed_load(
                f"WARNING Recovered from KV load failure: 1 request(s) rescheduled ({lost} tokens "
                "affected)."
            )
        hit = min(len(cached) + lost, len(tokens) - 1)
        self._hits["external_"] += 0 if own else hit
        self._hits[""] += own
        believed = [*cached, *tokens[len(cached) :]]
        if self.does.connector:
            self._store(keys, believed)
        answer = self.does.change(self._answer(believed, tokens), source)
        if self.does.sums:
            words = hashlib.sha256(str(list(believed)).encode()).hexdigest()
            answer += f" sum {words.translate(_LETTERS)[:12]}"
        usage: dict[str, Any] = {"prompt_tokens": len(tokens)}
        if self.does.reports_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": max(own - 1, hit)}
        choice: dict[str, Any] = {
            "text": answer,
            "logprobs": {"token_logprobs": [-0.5] * len(answer.split())},
        }
        details: dict[str, Any] = usage.get("prompt_tokens_details", {})
        for told in (choice, usage, details):
            told.update({name: it for name, it in self.does.says.items() if name in told})
        return {"choices": [choice], "usage": usage}

    def metrics(self) -> str:
        return "".join(
            f'vllm:{kind}prefix_cache_hits_total{{engine="0"}} {number}.0\n'
            for kind, number in self._hits.items()
        )

    def _server(self, index: int) -> valkey.Valkey:
        rank = index % len(self.servers)
        return self.servers[self.does.server_of(rank) if self.does.server_of else rank]

    def _load(self, keys: Sequence[str]) -> tuple[list[int], str, int]:
        """Return the words that were loaded, where from, and how many a lookup promised."""
        found = 0
        for index, key in enumerate(keys):
            if key not in self._l1 and not self._exists(index, key):
                break
            found += 1
        remote = [key for key in keys[:found] if key not in self._l1]
        if remote and self.does.between:
            self.does.between()
        values = {
            key: self._get(index, key) for index, key in enumerate(keys[:found]) if key in remote
        }
        words: list[int] = []
        for key in keys[:found]:
            if key in values:
                if values[key] is None:
                    return words, "short", found * self.does.chunk
                self._l1[key] = json.loads(values[key])
            words += self._l1[key]
        return words, "L2" if remote else "L1" if found else "cold", len(words)

    def _exists(self, index: int, key: str) -> bool:
        try:
            return bool(self._server(index).exists(key))
        except valkey.ValkeyError:
            return False

    def _get(self, index: int, key: str) -> Any:
        try:
            return self._server(index).get(key)
        except valkey.ValkeyError:
            return None

    def _store(self, keys: Sequence[str], tokens: Sequence[int]) -> None:
        for index, key in enumerate(keys):
            words = list(tokens[index * self.does.chunk : (index + 1) * self.does.chunk])
            self._l1.setdefault(key, words)
            if self.does.stores() and not self._exists(index, key):
                with suppress(valkey.ValkeyError):
                    self._server(index).set(key, json.dumps(words))

    def _answer(self, believed: Sequence[int], asked: Sequence[int]) -> str:
        """Go on as what stands after the same words before."""
        question = "".join(self._words[token] for token in asked[-60:])
        key = _ASKED.search(question)
        text = "".join(self._words[token] for token in believed)
        found = key and re.search(rf"the code for {key[1]} is ([\d ]+?) ?\.", text)
        return f" {found[1]}." if found else " not in the notes."


def chunk_keys(tokens: Sequence[int], chunk: int, salt: str = "") -> list[str]:
    """Return the names of a prompt's whole chunks; each follows from all words up to its end."""
    digest, keys = hashlib.sha256(salt.encode()), []
    for index in range(len(tokens) // chunk):
        digest.update(str(tokens[index * chunk : (index + 1) * chunk]).encode())
        keys.append(f"fake@{digest.hexdigest()}@{salt}")
    return keys


def _handler(engine: FakeEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                limit = engine.does.limit
                self._say(200, {"data": [{"id": engine.does.model, "max_model_len": limit}]})
            elif self.path == "/metrics" and engine.does.has_metrics:
                self._say(200, engine.metrics())
            else:
                self._say(200 if self.path == "/health" else 404, "")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = json.loads(body) if body else {}
            if self.path == "/tokenize":
                self._say(200, {"tokens": engine.encode(request["prompt"])})
            elif self.path == "/v1/completions":
                engine.requests.append(request)
                self._say(200, engine.complete(request))
            elif self.path == "/restart":
                engine.restart()
                self._say(200, "")
            else:
                self._say(404, "")

        def _say(self, status: int, content: object) -> None:
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

    return Handler
