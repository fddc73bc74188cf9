"""Bring every upstream of pins.toml into build/sources/: found, checked by sha256, unpacked.

Archives lie in build/sources/archives/. Projects that have a patch series are unpacked beside
them; the others are used as the files they are.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from rich.progress import Progress
from unearth.link import Link

from headrace.console import disk_error, download_bar, say
from headrace.errors import ConfigurationError, MachineError, SourceError
from headrace.pipeline import index
from headrace.pipeline.archive import unpack
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import Manifest, hash_file
from headrace.pipeline.pins import Pin, load_pins

BLOCK = 1 << 20


def archive_path(layout: Layout, pin: Pin) -> Path:
    """Return where the one file of `pin` lies once it is fetched."""
    return layout.sources / "archives" / pin.file


def source_tree(layout: Layout, pin: Pin) -> Path:
    """Return the unpacked pristine tree of a patched project."""
    return layout.sources / pin.folder


def fetch(layout: Layout, flavor: str | None = None) -> list[Path]:
    """Fetch the pins of `flavor` (default: of all flavors) and unpack the patched projects.

    What is there and matches its hash is left alone; a file that does not match is deleted.
    Debian packages are fetched by the image stage, from the lock that the pin names, and what one
    stage alone uses by that stage.

    Returns:
        The archives, in pin order.

    Raises:
        ConfigurationError: a pin's size is not that of the file with its hash.
        SourceError: a file cannot be found, does not match, or is unsafe to unpack.
        MachineError: the network is away or the disk is full.
    """
    pins = load_pins(layout.pins)
    chosen = pins.of_flavor(flavor) if flavor else list(pins.projects.values())
    return [
        fetch_pin(layout, pin) for pin in chosen if pin.kind != "debian suite" and not pin.only_for
    ]


def fetch_pin(layout: Layout, pin: Pin) -> Path:
    """Fetch one pin, and unpack it if it has a patch series; return its archive."""
    archive = _fetch_archive(layout, pin)
    if pin.patched:
        tree = source_tree(layout, pin)
        action = functools.partial(unpack, archive, tree)
        Manifest(layout).run(f"unpack {pin.folder}", {pin.file: pin.sha256}, [tree], action)
    return archive


def fetch_other_version(layout: Layout, pin: Pin, version: str) -> Path:
    """Fetch and unpack another version of an sdist or a wheel, for `rebase`; return the tree.

    The hash is printed: it is not a pin until someone makes it one.

    Raises:
        ConfigurationError: archives of this kind have no tree to patch.
        SourceError: the index has no such archive of that version.
    """
    if pin.kind not in ("pypi sdist", "pypi wheel"):
        raise ConfigurationError(
            f"{layout.pins}: [{pin.id}]: expected kind 'pypi sdist' or 'pypi wheel', "
            f"found '{pin.kind}'"
        )
    packages = list(index.finder().find_matches(f"{pin.name}=={version}", allow_prereleases=True))
    links = [p.link for p in packages if _tags(p.link.filename) == _tags(pin.file)]
    if not links:
        what = "wheel" if pin.kind == "pypi wheel" else "source archive"
        raise SourceError(
            f"{pin.name}: expected a {what} of {version} like {pin.file}, found none on the index"
        )
    archive = layout.build / "rebase" / links[0].filename
    if not archive.exists():
        with download_bar() as bar:
            digest = _download(links[0], archive, bar)
        say(f"{archive.name}: sha256 {digest}")
    tree = layout.build / "rebase" / f"{pin.id}-{version}"
    unpack(archive, tree)
    return tree


def _tags(filename: str) -> frozenset[Tag]:
    """Return what a wheel runs on, nothing for a source archive."""
    return parse_wheel_filename(filename)[3] if filename.endswith(".whl") else frozenset()


def _fetch_archive(layout: Layout, pin: Pin) -> Path:
    path = archive_path(layout, pin)
    if not pin.locked:
        place = index.OWN_INDEX.get(pin.kind, "the index that pip is configured with")
        raise SourceError(
            f"{layout.pins}: [{pin.id}]: expected a sha256 of {pin.file}, found none: it comes "
            f"from {place}; run `python build.py lock pins` on a machine that reaches it"
        )
    if path.exists():
        found = hash_file(path)
        if found == pin.sha256:
            _require_size(layout, pin, path)
            return path
        try:
            path.unlink()
        except OSError as failure:
            raise disk_error(failure, path) from failure
        say(f"{path}: expected sha256 {pin.sha256}, found {found}; deleted, fetching it again")
    link = find_link(layout, pin)
    with download_bar() as bar:
        found = _download(link, path, bar, expected=pin)
    _require_size(layout, pin, path)
    say(f"{pin.file}: sha256 {found[:16]}… matches its pin")
    return path


def _require_size(layout: Layout, pin: Pin, path: Path) -> None:
    """Raise ConfigurationError if the pin's size is not that of the file with the pin's hash."""
    size = path.stat().st_size
    if size != pin.size:
        raise ConfigurationError(
            f"{layout.pins}: [{pin.id}] size: expected {size}, as {pin.file} with this sha256 has, "
            f"found {pin.size}; correct the pin"
        )


def find_link(layout: Layout, pin: Pin) -> Link:
    """Return where an index has the file of `pin`.

    Raises:
        SourceError: it has no such file.
        MachineError: it does not answer.
    """
    # Pip's own places come first: a wheelhouse there is quicker than a public index.
    places = [""] + ([index.OWN_INDEX[pin.kind]] if pin.kind in index.OWN_INDEX else [])
    try:
        for extra in places:
            for package in index.finder(extra_index=extra).find_all_packages(pin.name):
                if package.link.filename == pin.file:
                    return package.link
    except (httpx2.HTTPError, OSError) as failure:
        raise _network_error(pin.file, failure) from failure
    raise SourceError(
        f"{layout.pins}: [{pin.id}]: expected {pin.file} on the index that pip is configured with "
        f"(kind '{pin.kind}'), found no such file; see `pip config list`"
    )


def download_unlocked(layout: Layout, pin: Pin) -> tuple[str, int]:
    """Fetch the archive of a pin that has no hash yet; return its sha256 and size.

    Raises:
        SourceError: the index has no such file.
        MachineError: the index does not answer.
    """
    link, path = find_link(layout, pin), archive_path(layout, pin)
    with download_bar() as bar:
        digest = _download(link, path, bar)
    return digest, path.stat().st_size


def _download(link: Link, path: Path, bar: Progress, expected: Pin | None = None) -> str:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    digest = hashlib.sha256()
    task = bar.add_task(path.name, total=expected.size if expected else None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as sink:
            for block in _blocks(link):
                sink.write(block)
                digest.update(block)
                bar.update(task, advance=len(block))
        found = digest.hexdigest()
        if expected and found != expected.sha256:
            raise SourceError(
                f"{path.name}: expected sha256 {expected.sha256}, found {found}; the download was "
                "deleted: check the pin, or whether the index serves another file under this name"
            )
        partial.replace(path)
    except httpx2.HTTPError as failure:
        raise _network_error(path.name, failure) from failure
    except OSError as failure:
        raise disk_error(failure, path) from failure
    finally:
        # A read-only folder refuses even to look for it.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return found


def _blocks(link: Link) -> Iterator[bytes]:
    if link.is_file:
        with link.file_path.open("rb") as source:
            while block := source.read(BLOCK):
                yield block
        return
    with index.session() as client, client.get_stream(link.url_without_fragment) as reply:
        reply.raise_for_status()
        yield from reply.iter_bytes(BLOCK)


def _network_error(name: str, failure: Exception) -> MachineError:
    # The host stays out of the line: a log may be public where an index is not.
    host = urlsplit(str(getattr(getattr(failure, "request", None), "url", ""))).hostname or ""
    reason = str(failure).replace(host, "the index") if host else str(failure)
    return MachineError(
        f"{name}: the package index does not answer ({reason or type(failure).__name__}); "
        "check the network and `pip config list`, then run the command again"
    )
