"""Where this host finds Debian: the user's word, its own apt, or apt's own example."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.console import call
from headrace.errors import MachineError

ARCHITECTURE = "amd64"
MIRROR_VARIABLE = "HEADRACE_DEBIAN_MIRROR"
POCKETS = ("", "-updates", "-security")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
EXAMPLE_SOURCES = Path("/usr/share/doc/apt/examples/sources.list")
OS_RELEASE = Path("/etc/os-release")
ADVICE = "this stage needs apt: install it, or build on Debian or Ubuntu"


@dataclass(frozen=True)
class Source:
    """One archive and one release of it, e.g. (mirror, "bookworm-updates")."""

    uri: str
    release: str

    def line(self) -> str:
        """Return the source as a line of sources.list."""
        signed = f" signed-by={KEYRING}" if KEYRING.exists() else ""
        return f"deb [arch={ARCHITECTURE}{signed}] {self.uri} {self.release} main"


def find_sources(suite: str) -> list[Source]:
    """Return where this host finds `suite`: the mirror of the user, of apt, of apt's example.

    A Debian host of another release serves too: its mirror carries every supported suite.

    Raises:
        MachineError: none of the three names a Debian mirror.
    """
    mirror = os.environ.get(MIRROR_VARIABLE, "").rstrip("/")
    if mirror:
        return [
            Source(mirror + ("-security" if pocket == "-security" else ""), suite + pocket)
            for pocket in POCKETS
        ]
    example = ("-o", f"Dir::Etc::sourcelist={EXAMPLE_SOURCES}", "-o", "Dir::Etc::sourceparts=-")
    for options in ((), example):
        listed = call(
            ["apt-get", *options, "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)",
             "Created-By: Packages"],
            error=MachineError, advice=ADVICE,
        )  # fmt: skip
        found = choose_sources(listed.splitlines(), suite, _host_suite())
        if found:
            return found
    raise MachineError(
        f"apt: expected a Debian mirror that serves {suite} among this host's sources, found none; "
        f"set {MIRROR_VARIABLE} to the URL of one and run the command again"
    )


def choose_sources(targets: Iterable[str], suite: str, host_suite: str) -> list[Source]:
    """Pick the archives of `suite` from lines "uri release component" of apt's index targets."""
    rows = [line.split() for line in targets]
    for name in (suite, host_suite):
        wanted = {name + pocket: suite + pocket for pocket in POCKETS}
        found = [
            Source(row[0].rstrip("/"), wanted[row[1]])
            for row in rows
            if name and len(row) == 3 and row[2] == "main" and row[1] in wanted
        ]
        if any(source.release == suite for source in found):
            return list(dict.fromkeys(found))
    return []


def _host_suite() -> str:
    """Return the release name of a Debian host, or ""."""
    try:
        fields = dict(
            line.split("=", 1) for line in OS_RELEASE.read_text().splitlines() if "=" in line
        )
    except OSError:
        return ""
    return fields.get("VERSION_CODENAME", "").strip('"') if fields.get("ID") == "debian" else ""
