"""Read a text file of the checkout, which an editor may have saved in another encoding."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import ConfigurationError


def read_utf8(path: Path) -> str:
    """Return the text of `path`, which must exist.

    Raises:
        ConfigurationError: it is not UTF-8; names the line.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as wrong:
        line = wrong.object.count(b"\n", 0, wrong.start) + 1
        found = f"byte 0x{wrong.object[wrong.start]:02x}"
        raise ConfigurationError(
            f"{path}:{line}: expected UTF-8, found {found}; save it as UTF-8"
        ) from wrong
