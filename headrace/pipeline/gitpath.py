"""Paths as git writes them in diffs and streams, and what a path of a patch may be."""

from __future__ import annotations

import os
import re

_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_TOKEN = re.compile(r'\\([abtnvfr"\\])|\\([0-3][0-7]{2})|([^\\])', re.DOTALL)


def is_inside(path: str) -> bool:
    """Return whether `path` stays in the tree it belongs to, whatever the file system is."""
    parts = path.split("/")
    if {"", ".", ".."} & set(parts) or "\0" in path or "\\" in path:
        return False
    return not any(part.lower() == ".git" for part in parts)


def unquote(name: bytes) -> str:
    """Return a name that git may have written as a C string; "" if that string is broken."""
    if not (len(name) > 1 and name.startswith(b'"') and name.endswith(b'"')):
        return os.fsdecode(name)
    text, out, at = name[1:-1].decode("latin-1"), bytearray(), 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return ""
        letter, octal, plain = token.groups()
        out.append(_ESCAPES[letter] if letter else int(octal, 8) if octal else ord(plain))
        at = token.end()
    return os.fsdecode(bytes(out))


def quote(path: str) -> bytes:
    """Return `path` as a C string, which `git fast-import` takes for any name."""
    out = bytearray(b'"')
    for byte in os.fsencode(path):
        plain = 32 <= byte < 127 and byte not in b'"\\'
        out += bytes([byte]) if plain else b"\\%03o" % byte
    return bytes(out + b'"')


def name_in_header(rest: bytes) -> str:
    """Return NAME of "a/NAME b/NAME", or "" if the two differ, as they do in a rename."""
    half = (len(rest) - 1) // 2
    old, gap, new = unquote(rest[:half]), rest[half : half + 1], unquote(rest[half + 1 :])
    same = old.startswith("a/") and new.startswith("b/") and old[2:] == new[2:]
    return old[2:] if same and gap == b" " else ""
