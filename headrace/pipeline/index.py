"""Find a file on whatever package index pip is configured with.

The checkout names no host: indexes, find-links folders and the certificate come from
`pip config list`, the default index from pip itself. The files are found with unearth, because
`pip download` would run the build hooks of source distributions.
"""

from __future__ import annotations

import ast
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import cast

from unearth import PackageFinder
from unearth.fetchers import Fetcher, PyPIClient

from headrace.errors import MachineError

# A public index of CPU builds, asked only for the kind "pytorch cpu".
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# FlashInfer's own index, asked only for the kind "flashinfer index".
FLASHINFER_INDEX = "https://flashinfer.ai/whl"
OWN_INDEX = {"pytorch cpu": PYTORCH_CPU_INDEX, "flashinfer index": FLASHINFER_INDEX}


@dataclass(frozen=True)
class IndexSettings:
    """Where pip would look: index URLs in order, find-links places, and a CA bundle or ""."""

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...]
    certificate: str


@cache
def pip_settings() -> IndexSettings:
    """Read pip's effective configuration of this environment.

    Raises:
        MachineError: pip does not run.
    """
    listing = _pip("config", "list")
    default = _python("from pip._internal.models.index import PyPI; print(PyPI.simple_url)")
    return settings_from(listing, default.strip(), os.environ)


def settings_from(listing: str, default_index: str, env: Mapping[str, str]) -> IndexSettings:
    """Turn the output of `pip config list` into settings.

    Later sections win as in pip: global, then the command's own, then the environment.
    """
    found: dict[str, dict[str, str]] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if key and value:
            found.setdefault(key, {})[section] = str(ast.literal_eval(value))

    def option(name: str) -> str:
        by_section = found.get(name, {})
        return next(
            (by_section[s] for s in (":env:", "download", "install", "global") if s in by_section),
            "",
        )

    urls = [option("index-url") or default_index, *option("extra-index-url").split()]
    if option("no-index").lower() in ("1", "true", "yes", "on"):
        urls = []
    certificate = (
        option("cert") or env.get("SSL_CERT_FILE", "") or env.get("REQUESTS_CA_BUNDLE", "")
    )
    return IndexSettings(tuple(urls), tuple(option("find-links").split()), certificate)


def finder(*, extra_index: str = "") -> PackageFinder:
    """Return a finder over pip's indexes, and `extra_index` after them."""
    settings = pip_settings()
    urls = [*settings.index_urls, *([extra_index] if extra_index else [])]
    # The client is unearth's own, but its type is not the protocol that unearth declares.
    client = cast(Fetcher, session())
    return PackageFinder(session=client, index_urls=urls, find_links=list(settings.find_links))


def session() -> PyPIClient:
    """Return an HTTP client that trusts what pip trusts."""
    certificate = pip_settings().certificate
    trusted = ssl.create_default_context(cafile=certificate or None)
    return PyPIClient(verify=trusted, timeout=60.0)


def _pip(*words: str) -> str:
    return _run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words])


def _python(code: str) -> str:
    return _run([sys.executable, "-c", code])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(
            f"'{' '.join(command)}' ended with status {done.returncode}: "
            f"{json.dumps(done.stderr.strip()[-200:])}; run `make venv` to repair the environment"
        )
    return done.stdout
