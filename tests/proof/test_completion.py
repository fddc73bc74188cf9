"""A server is proved by /health and by one completion of the length that was asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from headrace.proof.completion import prove
from headrace.proof.tiny_model import write_tiny_model


class Server(ThreadingHTTPServer):
    """Healthy after `sick` requests; answers completions with `status` and `tokens`."""

    sick = 0
    status = 200
    tokens = 4
    asked: Any = None


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.sick -= 1
        self.answer(503 if self.server.sick >= 0 else 200, {})

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.asked = json.loads(self.rfile.read(length))
        usage = {"completion_tokens": self.server.tokens}
        self.answer(self.server.status, {"choices": [{"text": "w7"}], "usage": usage})

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def request(server: Server, deadline: float = 130.0) -> dict[str, Any]:
    port = server.server_address[1]
    return {"port": port, "model": "m", "prompt": "w3", "tokens": 4, "deadline_s": deadline}


def test_a_completion_of_the_right_length_is_green(server: Server) -> None:
    server.sick = 2
    answer = prove(request(server))
    assert answer.problems == []
    assert answer.facts["text"] == "w7"
    assert server.asked == {"model": "m", "prompt": "w3", "max_tokens": 4, "ignore_eos": True}


def test_a_short_completion_is_a_problem(server: Server) -> None:
    server.tokens = 3
    assert prove(request(server)).problems == ["expected 4 tokens, found 3"]


def test_an_error_is_a_problem(server: Server) -> None:
    server.status = 500
    problems = prove(request(server)).problems
    assert len(problems) == 1 and problems[0].startswith("/v1/completions answered 500")


def test_a_server_that_never_becomes_healthy_is_given_up(server: Server) -> None:
    server.sick = 10**6
    problems = prove(request(server, deadline=121.0)).problems
    assert len(problems) == 1 and problems[0].endswith("never answered 200: status 503")


def test_the_tiny_model_has_the_same_bytes_every_time_and_a_tokenizer_that_works(
    tmp_path: Path,
) -> None:
    for name in ("one", "two"):
        write_tiny_model(tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    tokenizer = Tokenizer.from_file(str(tmp_path / "one" / "tokenizer.json"))
    assert tokenizer.encode("w3 w255 other").ids == [3, 255, 0]
