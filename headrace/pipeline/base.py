"""The base image where no registry offers one: exactly the locked base packages, same bytes twice.

mmdebstrap configures the packages from the local folder of fetched debs; nothing is downloaded.
Its date is that of the lock, so that the base stays the same from one commit to the next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from headrace.console import call, working
from headrace.errors import ImageError
from headrace.pipeline import oci, oci_write
from headrace.pipeline.debian import debs_folder
from headrace.pipeline.debian_lock import Deb, DebianLock, lock_path, read_lock
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import Manifest, hash_file, hash_text
from headrace.pipeline.mirrors import ARCHITECTURE

# Makes /bin and /lib links into /usr before the first package is unpacked, as usr-is-merged asks.
MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"
ADVICE = "run ci/install-debian.sh, or name a base image of a registry by its digest"


def base_folder(layout: Layout) -> Path:
    """Return the folder of the base image's layout."""
    return layout.build / "debian" / "base"


def build_base(layout: Layout) -> oci.Image:
    """Make the base image from the fetched packages, unless it is there already.

    `fetch_debian` must have run.

    Raises:
        ImageError: mmdebstrap fails, or installs other packages than the lock names.
        MachineError: mmdebstrap is missing, or the disk is full.
    """
    lock = read_lock(lock_path(layout))
    folder = base_folder(layout)
    tidy = layout.docker / "tidy-debian.sh"
    inputs = {
        "lock": hash_text(repr((lock.suite, lock.epoch, lock.of("base")))),
        "tidy": hash_file(tidy),
        "recipe": hash_file(Path(__file__)) + hash_file(Path(oci_write.__file__)),
    }
    Manifest(layout).run("debian base", inputs, [folder], lambda: _build(layout, lock, tidy))
    return oci.read_layout(folder)


def installed(status: str) -> dict[str, str]:
    """Return name → version of the text of a dpkg status file."""
    found = {}
    for stanza in status.split("\n\n"):
        name = re.search(r"^Package: (\S+)$", stanza, re.MULTILINE)
        version = re.search(r"^Version: (\S+)$", stanza, re.MULTILINE)
        if name and version and "\nStatus: install ok installed" in stanza:
            found[name[1]] = version[1]
    return found


def require_locked(status: str, debs: Sequence[Deb]) -> None:
    """Raise ImageError unless a dpkg status lists exactly `debs`, all of them configured."""
    found, wanted = installed(status), {deb.name: deb.version for deb in debs}
    if found != wanted:
        names = sorted(set(found.items()) ^ set(wanted.items()))
        raise ImageError(
            "base image: expected exactly the locked packages, found a difference in "
            + ", ".join(f"{name} {version}" for name, version in names)
        )


def _build(layout: Layout, lock: DebianLock, tidy: Path) -> None:
    work = layout.build / "debian"
    rootfs, status = work / "base.tar", work / "base.status"
    debs = lock.of("base")
    mirror = f"deb [trusted=yes arch={ARCHITECTURE}] copy:{debs_folder(layout).resolve()} ./"
    # The image names Debian's own mirror, as apt's documentation gives it, not the one used here.
    sources = (
        "sed -n 's/^\\(deb .* main\\) .*/\\1/p' \"$1/usr/share/doc/apt/examples/sources.list\" "
        '> "$1/etc/apt/sources.list"'
    )
    hooks = [
        f'"{tidy.resolve()}" "$1"',
        sources,
        'rm -f "$1/etc/hostname" "$1/etc/resolv.conf"',
        f'cp "$1/var/lib/dpkg/status" "{status.resolve()}"',
    ]
    try:
        with working(f"Debian {lock.suite}: {len(debs)} packages into a base image"):
            call(
                ["mmdebstrap", "--variant=apt", f"--hook-dir={MERGED_USR}",
                 f"--architectures={ARCHITECTURE}",
                 "--include=" + ",".join(deb.name for deb in debs),
                 '--aptopt=APT::Install-Recommends "false"',
                 *(f"--customize-hook={hook}" for hook in hooks),
                 lock.suite, rootfs, mirror],
                error=ImageError, env={"SOURCE_DATE_EPOCH": str(lock.epoch)},
                log=layout.logs / "debian-base.log", advice=ADVICE,
            )  # fmt: skip
        require_locked(status.read_text(), debs)
        oci_write.write_layout(
            base_folder(layout), rootfs, epoch=lock.epoch, architecture=ARCHITECTURE
        )
    finally:
        rootfs.unlink(missing_ok=True)
        status.unlink(missing_ok=True)
