"""Every reply that a RESP server, proxy or broken peer was seen to send, and its meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.suites.missing_key.scripted_server import Script

# What the client asks; a lookup is an EXISTS of the release and a TOUCH of the patched client.
Command = Literal["GET", "SET", "LOOKUP", "DEL"]

# "yes": loaded, stored, present, deleted. "no": a miss, which is no error. "failed": this key
# failed, and a text says why.
Meaning = Literal["yes", "no", "failed"]

COMMANDS: tuple[Command, ...] = ("GET", "SET", "LOOKUP", "DEL")
DELAY_SECONDS = 0.08
SPLIT_PAUSE_SECONDS = 0.001

# Where each value of a body is cut when a reply is split: bytes by one only around it.
_BODY_EDGE = 16


@dataclass(frozen=True)
class Reply:
    """One reply to script.

    Attributes:
        name: as it is printed.
        wire: the bytes; `%VALUE%` stands for the right value, `%SIZE%` for its length.
        yes: commands for which it means success; `no`: for which it is a plain miss.
        words: what the error text must quote, "" for any text.
        whole_only: later bytes would be taken for the next command's reply, by any client.
    """

    name: str
    wire: bytes
    yes: tuple[Command, ...] = ()
    no: tuple[Command, ...] = ()
    words: str = ""
    whole_only: bool = False

    def meaning(self, command: Command) -> Meaning:
        if command in self.yes:
            return "yes"
        return "no" if command in self.no else "failed"

    def bytes_for(self, value: bytes) -> bytes:
        return self.wire.replace(b"%SIZE%", b"%d" % len(value)).replace(b"%VALUE%", value)


def _error(text: str) -> Reply:
    return Reply(f"-{text}", f"-{text}\r\n".encode(), words=text)


GOOD_GET = b"$%SIZE%\r\n%VALUE%\r\n"

REPLIES: tuple[Reply, ...] = (
    Reply("$-1", b"$-1\r\n", no=("GET",)),
    Reply("*-1", b"*-1\r\n", no=("GET",)),
    Reply("_ (RESP3 null)", b"_\r\n", no=("GET",)),
    Reply("- (empty error)", b"-\r\n"),
    _error("ERR x"),
    _error("OOM command not allowed when used memory > 'maxmemory'."),
    _error("LOADING the dataset is being read"),
    _error("NOAUTH Authentication required."),
    _error("MOVED 3999 127.0.0.1:6381"),
    _error("WRONGTYPE another kind of value"),
    Reply("+OK", b"+OK\r\n", yes=("SET",)),
    Reply(":0", b":0\r\n", no=("LOOKUP", "DEL")),
    Reply(":1", b":1\r\n", yes=("LOOKUP", "DEL")),
    Reply(":2", b":2\r\n"),
    Reply("$0", b"$0\r\n\r\n"),
    Reply("$ of the right size", GOOD_GET, yes=("GET",)),
    Reply("$ of fewer bytes", b"$7\r\nshorter\r\n"),
    Reply("$ of more bytes", b"$" + b"5000\r\n" + b"m" * 5000 + b"\r\n"),
    Reply("$ of many more bytes", b"$1000000\r\n" + b"M" * 1_000_000 + b"\r\n"),
    Reply("$ of 10^12 bytes that never come", b"$1000000000000\r\nfew"),
    Reply("$-2", b"$-2\r\n"),
    Reply("$abc", b"$abc\r\n"),
    Reply("length without CRLF", b"$%SIZE%"),
    Reply("length without CRLF, then the body", b"$%SIZE%%VALUE%\r\n"),
    Reply("LF without CR", b"$%SIZE%\n%VALUE%\r\n"),
    Reply("body without its CRLF", b"$%SIZE%\r\n%VALUE%"),
    Reply("body with another end", b"$%SIZE%\r\n%VALUE%XX"),
    Reply("body cut short, then silence", b"$%SIZE%\r\nthe first few bytes"),
    Reply("garbage", b"\x00\xff\r\n"),
    Reply("+ alone", b"+\r\n"),
    Reply("silence", b"", whole_only=True),
    Reply("a good reply and a reply to nothing", GOOD_GET + b"$5\r\nhello\r\n", yes=("GET",),
          whole_only=True),
    Reply("+OK and a reply to nothing", b"+OK\r\n+OK\r\n", yes=("SET",), whole_only=True),
    Reply(":1 and a reply to nothing", b":1\r\n:0\r\n", yes=("LOOKUP", "DEL"), whole_only=True),
)  # fmt: skip


@dataclass(frozen=True)
class Delivery:
    """One way in which a reply reaches the client, and what it then means."""

    name: str
    script: Script
    meaning: Meaning
    words: str


def deliveries(reply: Reply, command: Command, value: bytes) -> Iterator[Delivery]:
    """Yield the reply whole, split, delayed, and cut off by the end of the connection."""
    wire = reply.bytes_for(value)
    meaning = reply.meaning(command)
    words = reply.words if meaning == "failed" else ""
    yield Delivery("whole", Script((wire,)), meaning, words)
    if not reply.whole_only:
        yield Delivery("split", Script(split(wire), pause=SPLIT_PAUSE_SECONDS), meaning, words)
        yield Delivery("delayed", Script((wire,), delay=DELAY_SECONDS), meaning, words)
    # A reply that is complete and then followed by the end is still a reply; one that is not fails.
    for at in sorted({0, 1, len(wire) // 2, len(wire) - 1} & set(range(len(wire)))):
        if not reply.whole_only:
            yield Delivery(f"cut off after {at}", Script((wire[:at],), close=True), "failed", "")


def split(wire: bytes) -> tuple[bytes, ...]:
    """Return the reply a byte at a time; the inside of a long body stays in one piece."""
    if len(wire) <= 4 * _BODY_EDGE:
        return tuple(wire[i : i + 1] for i in range(len(wire)))
    edge = tuple(wire[i : i + 1] for i in range(_BODY_EDGE))
    tail = tuple(wire[i : i + 1] for i in range(len(wire) - _BODY_EDGE, len(wire)))
    return (*edge, wire[_BODY_EDGE:-_BODY_EDGE], *tail)
