"""Build the container image of a flavor as an OCI layout, and load it into the docker daemon."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from headrace.console import working
from headrace.errors import ConfigurationError, ImageError
from headrace.pipeline import debian, lockfiles, oci
from headrace.pipeline.bake import Plan, bake, make_plan
from headrace.pipeline.daemon import ensure_daemon
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import Manifest, write_atomically
from headrace.pipeline.oci_archive import pack_archive
from headrace.pipeline.pins import require_flavor
from headrace.pipeline.record_file import read_record, what_broke
from headrace.pipeline.revision import Revision, read_revision

LOAD_TIMEOUT = 1200


@dataclass(frozen=True)
class ImageResult:
    """A built image: its layout on the disk, and what build/image/FLAVOR.json says of it.

    Attributes:
        digest: of the image manifest, "sha256:…".
        path: the OCI layout folder.
        base: digest of the base image.
        version: of the patched LMCache in it, e.g. "0.5.5+headrace.2".
        size: of the compressed layers, in bytes.
        layers: diff_ids, base first.
    """

    flavor: str
    digest: str
    path: Path
    reference: str
    revision: str
    version: str
    series_sha256: str
    base: str
    size: int
    layers: tuple[str, ...]


def build_image(
    layout: Layout,
    flavor: str,
    *,
    base_image: str | None = None,
    no_cache: bool = False,
    destination: Path | None = None,
    revision: Revision | None = None,
) -> ImageResult:
    """Build the image of `flavor`, unless it is there and nothing that it depends on changed.

    The wheels of headrace and LMCache must have been built.

    Args:
        base_image: NAME@sha256:… of a registry; None builds the base from the locked packages.
        no_cache: have the daemon run every step again.
        destination: another folder for the layout; the build then always runs.
        revision: commit to label the image with, if not that of `layout`.

    Raises:
        ConfigurationError: `base_image` is not named by digest.
        ImageError: a step of the build failed; the message names the log.
        MachineError: there is no daemon, or the disk is full.
    """
    require_flavor(flavor)
    require_digest(base_image)
    debian.fetch_debian(layout)
    lockfiles.fetch_wheelhouse(layout, flavor)
    plan = make_plan(layout, flavor, base_image, revision or read_revision(layout))
    folder = (destination or layout.image(flavor)).resolve()
    record = folder.with_suffix(".json")

    def action() -> None:
        bake(layout, flavor, plan, folder, no_cache)
        write_atomically(record, _record(flavor, plan, oci.read_layout(folder)))

    if destination is None and not no_cache:
        Manifest(layout).run(f"image {flavor}", plan.inputs, [folder, record], action)
    else:
        action()
    return _result(folder, record, flavor)


def read_image(layout: Layout, flavor: str) -> ImageResult:
    """Return the image of `flavor` that was built last.

    Raises:
        ImageError: there is none, or its record or layout is broken.
    """
    folder = layout.image(flavor)
    return _result(folder, folder.with_suffix(".json"), flavor)


def read_built(folder: Path, flavor: str, *, check_layers: bool = False) -> oci.Image:
    """Return what the layout of a built image says, as `oci.read_layout` does.

    Raises:
        ImageError: it is damaged; says how to build it again.
    """
    try:
        return oci.read_layout(folder, check_layers=check_layers)
    except ImageError as damaged:
        raise ImageError(f"{damaged}; run `python build.py image --flavor {flavor}`") from damaged


def require_digest(base_image: str | None) -> None:
    """Raise ConfigurationError unless `base_image` is None or NAME@sha256:…."""
    if base_image and not re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", base_image):
        raise ConfigurationError(
            f"BASE_IMAGE: expected NAME@sha256:…, found {base_image!r}; a tag can move: "
            "see its digest with `docker buildx imagetools inspect`"
        )


def load_image(layout: Layout, flavor: str) -> str:
    """Put the built image into the daemon, unless it is there; return the name to run it by.

    Raises:
        ImageError: there is no image, or the daemon names another digest after loading.
    """
    image = read_image(layout, flavor)
    with ensure_daemon(layout):
        if not _is_loaded(image):
            with working(f"loading {image.reference}"):
                _load(image)
            if not _is_loaded(image):
                raise ImageError(
                    f"{image.reference}: expected {image.digest} in the docker daemon after "
                    "loading, found another image"
                )
    return image.reference


def _record(flavor: str, plan: Plan, image: oci.Image) -> str:
    values = {
        "flavor": flavor,
        "digest": image.digest,
        "reference": f"headrace-{flavor}:{image.digest.removeprefix('sha256:')[:12]}",
        "revision": plan.revision.name,
        "version": plan.version,
        "series_sha256": plan.series_sha256,
        "base": plan.base,
        "size": image.size,
        "layers": image.diff_ids,
    }
    return json.dumps(values, indent=1, sort_keys=True) + "\n"


def _result(folder: Path, record: Path, flavor: str) -> ImageResult:
    advice = f"run `python build.py image --flavor {flavor}`"
    try:
        values = read_record(record)
        result = TypeAdapter(ImageResult).validate_python({**values, "path": folder})
    except FileNotFoundError as missing:
        raise ImageError(f"{record}: expected a built image, found none; {advice}") from missing
    except ValueError as broken:
        raise ImageError(
            f"{record}: expected the record of an image, found {what_broke(broken)}; {advice}"
        ) from broken
    if result.flavor != flavor:
        raise ImageError(
            f"{record}: expected an image of flavor {flavor}, found one of {result.flavor!r}; "
            f"{advice}"
        )
    found = read_built(folder, flavor).digest
    if found != result.digest:
        raise ImageError(
            f"{folder}: expected {result.digest}, as {record.name} says, found {found}; {advice}"
        )
    return result


def _is_loaded(image: ImageResult) -> bool:
    shown = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Id}}", image.reference],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return shown.stdout.strip() == image.digest


def _load(image: ImageResult) -> None:
    with subprocess.Popen(
        ["docker", "load", "--quiet"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        if child.stdin is None or child.stderr is None:
            raise ImageError("docker load: expected pipes to it, found none")
        try:
            pack_archive(image.path, image.reference, child.stdin)
            child.stdin.close()
        except BrokenPipeError:
            # It ended early; its own words say why.
            pass
        problem = child.stderr.read().decode(errors="replace").strip()
        status = child.wait(timeout=LOAD_TIMEOUT)
    if status != 0:
        raise ImageError(f"docker load: ended with status {status}: {problem}")
