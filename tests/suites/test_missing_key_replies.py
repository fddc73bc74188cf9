"""The table of replies is complete, and each delivery carries what it claims to."""

from __future__ import annotations

import pytest

from headrace.suites.missing_key.replies import COMMANDS, REPLIES, Command, Reply, deliveries
from headrace.suites.missing_key.scripted import reply_cases

VALUE = bytes(range(256)) * 16

# Every kind of reply that a reporter of such a fault has met, by how its bytes begin.
REPORTED = [
    b"$-1\r\n", b"*-1\r\n", b"_\r\n", b"-\r\n", b"-ERR x\r\n", b"-OOM ", b"-LOADING ",
    b"-NOAUTH ", b"-MOVED ", b"-WRONGTYPE ", b"+OK\r\n", b":0\r\n", b":1\r\n", b":2\r\n",
    b"$0\r\n", b"$7\r\n", b"$5000\r\n", b"$1000000\r\n", b"$-2\r\n", b"$abc\r\n", b"$4096\n",
]  # fmt: skip


def by_name(name: str) -> Reply:
    return next(reply for reply in REPLIES if reply.name == name)


@pytest.mark.parametrize("start", REPORTED)
def test_every_reported_reply_is_scripted(start: bytes) -> None:
    assert any(reply.bytes_for(VALUE).startswith(start) for reply in REPLIES)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_success_and_failure(command: Command) -> None:
    assert {"yes", "failed"} <= {reply.meaning(command) for reply in REPLIES}


def test_a_null_is_a_miss_to_get_and_an_error_is_not() -> None:
    assert by_name("$-1").meaning("GET") == "no"
    assert by_name("$-1").meaning("SET") == "failed"
    assert by_name("-ERR x").meaning("GET") == "failed"
    assert by_name(":0").meaning("LOOKUP") == "no"
    assert by_name(":0").meaning("GET") == "failed"


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.name)
def test_deliveries_add_up_to_the_reply(reply: Reply) -> None:
    wire = reply.bytes_for(VALUE)
    found = {delivery.name: delivery for delivery in deliveries(reply, "GET", VALUE)}
    assert found["whole"].script.parts == (wire,)
    if reply.whole_only:
        assert set(found) == {"whole"}
        return
    assert b"".join(found["split"].script.parts) == wire
    assert all(len(part) == 1 for part in found["split"].script.parts[:8])
    assert found["delayed"].script.delay > 0
    cuts = [delivery for name, delivery in found.items() if name.startswith("cut off")]
    assert len(cuts) >= 3
    for cut in cuts:
        (part,) = cut.script.parts
        assert wire.startswith(part)
        assert len(part) < len(wire)
        assert cut.script.close
        assert cut.meaning == "failed"


def test_split_separates_the_bytes_around_a_long_body() -> None:
    parts = next(
        delivery.script.parts
        for delivery in deliveries(by_name("$ of the right size"), "GET", VALUE)
        if delivery.name == "split"
    )
    assert parts[:7] == (b"$", b"4", b"0", b"9", b"6", b"\r", b"\n")
    assert parts[-2:] == (b"\r", b"\n")


def test_case_names_are_unique_and_cover_every_command() -> None:
    names = [case.name for case in reply_cases()]
    assert len(names) == len(set(names))
    for command in COMMANDS:
        assert f"reply/{command}/$-1" in names
        assert f"reply/{command}/silence" in names
