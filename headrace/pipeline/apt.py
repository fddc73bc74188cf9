"""An apt of our own: the host's mirrors, keys and proxies, and nothing else of the host.

Every folder that apt writes lies under one private folder, and no package counts as installed,
so that resolving gives the same answer on every machine that reaches the same mirror.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path

from headrace.console import call, working
from headrace.errors import MachineError
from headrace.pipeline.manifest import write_atomically
from headrace.pipeline.mirrors import ADVICE, ARCHITECTURE, Source

HELPER = "/usr/lib/apt/apt-helper"


class Apt:
    """apt-get, apt-cache and apt-helper over one private folder."""

    def __init__(self, folder: Path, sources: Sequence[Source]) -> None:
        self.folder = folder.resolve()
        self.sources = list(sources)
        self.config = self.folder / "apt.conf"
        for name in ("etc/apt.conf.d", "state/lists/partial", "cache/archives/partial", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "state/status").write_text("")
        lines = "".join(source.line() + "\n" for source in self.sources)
        write_atomically(self.folder / "etc/sources.list", lines)
        write_atomically(self.config, self._settings())

    def run(self, tool: str, *words: str, log: Path | None = None) -> str:
        """Run one of apt's tools with the private settings and return its standard output.

        Raises:
            MachineError: the tool is missing or ended with an error.
        """
        env = {"APT_CONFIG": str(self.config), "LC_ALL": "C"}
        return call([tool, *words], error=MachineError, env=env, log=log, advice=ADVICE)

    def update(self) -> None:
        """Fetch and check the package lists.

        Raises:
            MachineError: a mirror does not answer, or a signature is wrong.
        """
        with working("apt: package lists"):
            self.run("apt-get", "update", "-qq", "--error-on=any")

    def download(self, files: Sequence[tuple[str, Path, str]], log: Path) -> None:
        """Download each (path in the archive, target, sha256) from the first archive that has it.

        What apt cannot have is missing afterwards; why is in `log`, and only there, because a
        miss in one archive is no error while another may still hold the file.

        Raises:
            MachineError: apt is not installed.
        """
        env = {**os.environ, "APT_CONFIG": str(self.config), "LC_ALL": "C"}
        security = {s.uri for s in self.sources if s.release.endswith("-security")}
        log.parent.mkdir(parents=True, exist_ok=True)
        uris = list(dict.fromkeys(source.uri for source in self.sources))
        # The likely archive first: Debian keeps security updates under a pool of their own name.
        for likely, uri in itertools.product((True, False), uris):
            words = [
                word
                for path, target, sha256 in files
                if not target.exists()
                and (path.startswith("pool/updates/") == (uri in security)) is likely
                for word in (f"{uri}/{path}", str(target), f"SHA256:{sha256}")
            ]
            if not words:
                continue
            try:
                with log.open("a") as stream:
                    subprocess.run(
                        [HELPER, "download-file", *words],
                        env=env, stdout=stream, stderr=subprocess.STDOUT, check=False,
                    )  # fmt: skip
            except FileNotFoundError as missing:
                raise MachineError(f"couldn't find '{HELPER}'; {ADVICE}") from missing

    def epoch(self) -> int:
        """Return when the newest of the package lists was made, in seconds since 1970."""
        dates = [
            match[1]
            for path in (self.folder / "state/lists").glob("*Release")
            if (match := re.search(r"^Date: (.+)$", path.read_text(errors="replace"), re.MULTILINE))
        ]
        if not dates:
            raise MachineError(f"{self.folder}: expected package lists with a date, found none")
        return max(int(parsedate_to_datetime(date).timestamp()) for date in dates)

    def _settings(self) -> str:
        """Return apt.conf: private folders first, then how the host reaches its mirrors."""
        private = {
            "Dir": f"{self.folder}/",
            "Dir::State": "state/",
            "Dir::State::status": f"{self.folder}/state/status",
            "Dir::Cache": "cache/",
            "Dir::Etc": "etc/",
            "Dir::Log": "log/",
            "Dir::Etc::trustedparts": "/etc/apt/trusted.gpg.d/",
            "Dir::Etc::netrc": "/etc/apt/auth.conf",
            "Dir::Etc::netrcparts": "/etc/apt/auth.conf.d/",
            "APT::Architecture": ARCHITECTURE,
            "APT::Install-Recommends": "false",
            "Acquire::Languages": "none",
            "Acquire::ForceHash": "SHA256",
        }
        if os.geteuid() == 0:
            # The folder may lie where apt's own user cannot go, such as below /root.
            private["APT::Sandbox::User"] = "root"
        lines = [f'{key} "{value}";' for key, value in private.items()]
        lines.append(f'APT::Architectures {{ "{ARCHITECTURE}"; }};')
        skipped = ("Acquire::IndexTargets", "Acquire::Languages")
        dump = call(["apt-config", "dump"], error=MachineError, advice=ADVICE)
        lines += [
            line
            for line in dump.splitlines()
            if line.startswith("Acquire::") and not line.startswith(skipped)
        ]
        return "\n".join(lines) + "\n"
