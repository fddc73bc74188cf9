"""Build everything a second time, elsewhere and without a cache, and compare the bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.console import call, disk_error, say
from headrace.errors import ConfigurationError, ImageError
from headrace.pipeline import image as images
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import Manifest, hash_file, write_atomically
from headrace.pipeline.oci import first_difference, read_layout
from headrace.pipeline.revision import read_revision

# Downloads, checked by hash wherever they are used: nothing would be proved by fetching them again.
DOWNLOADS = ("sources/archives", "wheelhouse", "debian/debs")


@dataclass(frozen=True)
class Comparison:
    """One artifact of the two builds: its name, and what each build made of it."""

    name: str
    first: str
    second: str

    @property
    def equal(self) -> bool:
        return self.first == self.second


def reproduce(
    layout: Layout,
    flavor: str,
    *,
    build_wheels: Callable[[Layout, str], object],
    base_image: str | None = None,
) -> list[Comparison]:
    """Build `flavor` again from a copy of the checkout and compare with what `build` made.

    Args:
        build_wheels: builds the wheels of a flavor in a checkout, with no compiler cache.
        base_image: as for `build_image`.

    Returns:
        Each wheel by sha256 and the image by digest, all of them equal.

    Raises:
        ImageError: one differs; names it, and for the image its first layer that differs.
        ConfigurationError: the checkout changed since its image was built.
    """
    first, revision = images.read_image(layout, flavor), read_revision(layout)
    if first.revision != revision.name:
        raise ConfigurationError(
            f"{first.path}: expected an image of {revision.name}, found one of {first.revision}; "
            f"run `python build.py image --flavor {flavor}`"
        )
    copy = Layout(layout.build / "reproduce", compiled_in=layout.work)
    shutil.rmtree(copy.root, ignore_errors=True)
    _copy_checkout(layout, copy)
    build_wheels(copy, flavor)
    second = images.build_image(
        copy, flavor, base_image=base_image, no_cache=True, revision=revision
    )
    rows = _compare_wheels(layout, copy, flavor)
    rows.append(Comparison(f"image {flavor}", first.digest, second.digest))
    for row in rows:
        say(f"{'same' if row.equal else 'DIFFERENT':9} {row.name}\n  {row.first}\n  {row.second}")
    wrong = [row.name for row in rows if not row.equal]
    if wrong:
        why = first_difference(read_layout(first.path), read_layout(second.path))
        raise ImageError(
            f"expected equal bytes from two builds, found a difference in {', '.join(wrong)}"
            + (f"; {why}" if why else "")
            + f"; the second build is in {copy.build}"
        )
    shutil.rmtree(copy.root, ignore_errors=True)
    return rows


def _copy_checkout(layout: Layout, copy: Layout) -> None:
    """Copy what git knows or would add, and the downloads, so that an edit in progress counts."""
    listed = call(
        ["git", "-C", layout.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        error=ConfigurationError,
    )
    try:
        for name in filter(None, listed.split("\0")):
            source, target = layout.root / name, copy.root / name
            if source.is_symlink() or source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        for name in DOWNLOADS:
            _link_tree(layout.build / name, copy.build / name)
        stages = Manifest(layout).stages
        known = {stage: stages[stage] for stage in stages if stage.startswith("wheelhouse ")}
        write_atomically(copy.manifest, json.dumps({"schema": 1, "stages": known}))
    except OSError as failure:
        raise disk_error(failure, copy.root) from failure


def _link_tree(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    linked = subprocess.run(
        ["cp", "--recursive", "--link", source, target], capture_output=True, check=False
    )
    if linked.returncode != 0:
        # Another file system, or one without hard links.
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)


def _compare_wheels(layout: Layout, copy: Layout, flavor: str) -> list[Comparison]:
    folders = (layout.wheels(flavor), copy.wheels(flavor))
    names = sorted({path.name for folder in folders for path in folder.glob("*.whl")})
    return [
        Comparison(name, *(_hash_or_none(folder / name) for folder in folders)) for name in names
    ]


def _hash_or_none(path: Path) -> str:
    return hash_file(path) if path.is_file() else "no such wheel"
