"""The engine's log: what must not be in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import ConfigurationError

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
# vLLM reports tokens as cached that it was promised, even if it had to compute them in the end.
_COMPUTED_ANEW = re.compile(r"KV load failure.*?(\d+) tokens affected")

# As LMCache 0.5.5 and vLLM 0.31.0 word them.
FAULTS: Mapping[str, re.Pattern[str]] = {
    "lookup time-outs": re.compile(r"Timeout occurred for rank|lookup.* timed out", re.IGNORECASE),
    "async time-outs": re.compile(
        r"still waiting for async lookup|batched_async_contains timed out|"
        r"batched_get_non_blocking timed out|get blocking timeout",
        re.IGNORECASE,
    ),
    "failed loads": re.compile(r"(?:Recovered from|due to) KV load failure"),
    "double frees": re.compile(r"Double free|Double unpin|Pin timeout detected"),
    "errors": re.compile(
        r"(?:^|\s)(?:ERROR|CRITICAL)[:\s]|LMCache (?:ERROR|CRITICAL)|Traceback \(most recent"
    ),
}


@dataclass
class LogWatch:
    """Reads what the engine writes while the suite runs. Lines from before are not judged.

    A file that shrinks or is replaced was begun anew by a restart, and is read from its start.

    Attributes:
        only: the faults that are judged.
        found: the lines of each.
        computed_anew: tokens whose load failed so far, judged or not.
    """

    paths: Sequence[Path]
    only: Collection[str] = tuple(FAULTS)
    found: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in FAULTS})
    computed_anew: int = 0
    _at: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def begin(self) -> None:
        """Note where the logs end now.

        Raises:
            ConfigurationError: one does not exist.
        """
        for path in self.paths:
            if not path.is_file():
                raise ConfigurationError(
                    f"--engine-log {path}: expected the engine's log file, found none; "
                    "leave --engine-log out, and the logs count as not judged"
                )
        self.skip()

    def read(self) -> None:
        """Judge what was written since."""
        for path in self.paths:
            for line in self._new(path).splitlines():
                plain = _ESCAPES.sub("", line).strip()
                if lost := _COMPUTED_ANEW.search(plain):
                    self.computed_anew += int(lost[1])
                for name, pattern in FAULTS.items():
                    if name in self.only and pattern.search(plain):
                        self.found[name].append(plain[:300])
                        break

    def skip(self) -> None:
        """Pass over what was written since: a restart ends an engine, which may complain."""
        for path in self.paths:
            self._new(path)

    def _new(self, path: Path) -> str:
        try:
            status = path.stat()
            inode, at = self._at.get(path, (status.st_ino, 0))
            if inode != status.st_ino or status.st_size < at:
                at = 0
            with path.open("rb") as stream:
                stream.seek(at)
                content = stream.read()
        except OSError:
            # Between two engines there may be no file.
            return ""
        # A line that is being written is read once it is whole.
        content = content[: content.rfind(b"\n") + 1]
        self._at[path] = (status.st_ino, at + len(content))
        return content.decode(errors="replace")
