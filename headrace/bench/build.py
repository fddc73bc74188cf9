"""One build of LMCache under measurement: a folder to put first on the path, and its process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.errors import ConfigurationError, SuiteVoidError
from headrace.suites.line_process import LineProcess
from headrace.suites.missing_key.case import Endpoint

_START_SECONDS = 240.0
_ANSWER_SECONDS = 180.0
_BUILD = ".venv/bin/python build.py wheels"


class Build:
    """`name` is "stock" or "patched"; `site` holds its lmcache package.

    With `preload`, that library is loaded before libc into the build's process.

    Raises:
        ConfigurationError: no lmcache with a compiled RESP client is there.
    """

    def __init__(self, name: str, site: Path, log: Path, preload: Path | None = None) -> None:
        self.name = name
        self.site = site.resolve()
        self._log = log
        require_lmcache(name, site)
        path = os.pathsep.join(filter(None, (str(self.site), os.environ.get("PYTHONPATH"))))
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "LMCACHE_LOG_LEVEL": "ERROR",
            "LMCACHE_TRACK_USAGE": "false",
            **({"LD_PRELOAD": str(preload)} if preload else {}),
        }
        self._process = LineProcess("headrace.bench.resp_child", environment, log)

    def check(self) -> None:
        """Wait until the process has imported LMCache, and from where it should.

        Raises:
            SuiteVoidError: it did not.
        """
        hello = self._process.receive(_START_SECONDS)
        if hello is None:
            raise SuiteVoidError(f"{self.name}: cannot import LMCache; see {self._log}")
        if not Path(hello["native"]).is_relative_to(self.site):
            raise SuiteVoidError(
                f"{self.name}: expected LMCache from {self.site}, Python took {hello['native']}"
            )

    def ask(self, do: str, server: Endpoint | None = None, **options: Any) -> Mapping[str, Any]:
        """Have the process do one thing and return its answer.

        Raises:
            SuiteVoidError: it failed, ended, or hangs.
        """
        where = {"server": asdict(server)} if server else {}
        self._process.send({"do": do, **where, **options})
        answer = self._process.receive(_ANSWER_SECONDS)
        problem = f"no answer within {_ANSWER_SECONDS:.0f} s" if answer is None else ""
        problem = problem or str((answer or {}).get("problem", ""))
        if problem or answer is None:
            raise SuiteVoidError(f"{self.name}: {do} failed: {problem}; see {self._log}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.end()


def require_lmcache(name: str, site: Path) -> None:
    """Raise ConfigurationError if `site`, of the option --`name`, holds no compiled lmcache."""
    if not list((site / "lmcache").glob("lmcache_redis*.so")):
        raise ConfigurationError(
            f"--{name} {site}: expected a folder with lmcache/lmcache_redis*.so, found none; "
            f"build it with `{_BUILD}{' --stock' if name == 'stock' else ''}`"
        )
