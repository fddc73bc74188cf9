"""Read a JSON record that the build wrote, whatever became of the file since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.console import plain


def read_record(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it cannot be read, or is no JSON object; says in one line what was found.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise ValueError(failure.strerror) from failure
    except RecursionError as nested:
        raise ValueError("nesting without end") from nested
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, no object")
    return value


def what_broke(failure: ValueError) -> str:
    """Say in one line what is wrong with a record; of many faults the first."""
    if not isinstance(failure, ValidationError):
        return str(failure)
    first = failure.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return plain(f"{where}: {first['msg']}")
