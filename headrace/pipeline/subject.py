"""The image that is being proved, and what the build says should be in it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from headrace.errors import ConfigurationError, HeadraceError
from headrace.pipeline import container
from headrace.pipeline.image import load_image, read_image
from headrace.pipeline.layers import Scan, scan_layers
from headrace.pipeline.layout import Layout
from headrace.pipeline.oci import Image, read_layout
from headrace.pipeline.pins import FLAVORS
from headrace.pipeline.records import PatchRecord, WheelRecord, patch_records, wheel_records

FLAVOR_LABEL = "org.headrace.flavor"
SITE = "/site-packages/"
PROOF_S = 600.0
# Problems that one line names; the rest is counted.
SHOWN = 3


class RefutedError(HeadraceError):
    """A proof found something wrong: red."""

    def __init__(self, problems: list[str]) -> None:
        more = f" (and {len(problems) - SHOWN} more)" if len(problems) > SHOWN else ""
        super().__init__("; ".join(problems[:SHOWN]) + more)


class UnprovedError(HeadraceError):
    """A proof could not run: void."""


@dataclass
class Subject:
    """One image.

    Attributes:
        digest: what the report will be bound to.
        folder: the OCI layout that holds the image's bytes.
        reference: the name that the daemon knows it by.
        version, revision, series_sha256: what its labels must say.
    """

    layout: Layout
    flavor: str
    digest: str
    folder: Path
    reference: str
    version: str
    revision: str
    series_sha256: str

    @cached_property
    def image(self) -> Image:
        return read_layout(self.folder)

    @cached_property
    def wheels(self) -> list[WheelRecord]:
        return wheel_records(self.layout, self.flavor)

    @cached_property
    def patches(self) -> list[PatchRecord]:
        return patch_records(self.layout, self.flavor)

    @cached_property
    def scan(self) -> Scan:
        """All layers, read once; the files of recorded wheels are hashed."""
        recorded = {path for wheel in self.wheels for path in wheel.files}
        return scan_layers(
            self.folder, self.image, lambda path: site_relative(path) in recorded, self.flavor
        )

    def ask(self, proof: str, request: dict[str, Any]) -> dict[str, Any]:
        """Run one proof inside a container of the image; return its facts.

        Raises:
            RefutedError: it found problems.
            UnprovedError: it could not run.
        """
        words = ["-m", "headrace.proof", proof]
        request = {"deadline_s": PROOF_S - 30, **request}
        with container.created(self.digest, words, entrypoint="python") as made:
            outcome = made.run(stdin=json.dumps(request), timeout=PROOF_S)
        return read_answer(proof, outcome)


def read_answer(proof: str, outcome: container.Outcome) -> dict[str, Any]:
    """Turn what a proof printed into its facts.

    Raises:
        RefutedError: it found problems.
        UnprovedError: it did not answer.
    """
    if outcome.status != 0:
        raise UnprovedError(f"{proof} ended with status {outcome.status}: {outcome.last_line}")
    try:
        answer = json.loads(outcome.stdout)
        problems, facts = list(answer["problems"]), dict(answer["facts"])
    except (ValueError, KeyError, TypeError) as broken:
        raise UnprovedError(f"{proof}: expected a JSON answer, found {broken!r}") from broken
    if problems:
        raise RefutedError([str(problem) for problem in problems])
    return facts


def site_relative(path: str) -> str:
    """Return the part of `path` below the innermost site-packages, "" if it lies in none."""
    return path.rpartition(SITE)[2] if SITE in path else ""


@contextlib.contextmanager
def subject_of(layout: Layout, target: str) -> Iterator[Subject]:
    """Yield the image that `target` names: a flavor that was built here, or a name the daemon has.

    The daemon must be there (`ensure_daemon`).

    Raises:
        ImageError: it was not built, or the daemon does not have it.
        ConfigurationError: the image is not one of ours.
    """
    if target in FLAVORS:
        built = read_image(layout, target)
        yield Subject(
            layout=layout,
            flavor=target,
            digest=built.digest,
            folder=built.path,
            reference=load_image(layout, target),
            version=built.version,
            revision=built.revision,
            series_sha256=built.series_sha256,
        )
        return
    folder = layout.build / "image" / f"pulled-{container.held_digest(target)[7:19]}"
    try:
        image = container.export_layout(target, folder)
        yield pulled(layout, target, folder, image)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pulled(layout: Layout, reference: str, folder: Path, image: Image) -> Subject:
    """Return a subject for an image that was not built here: its labels say what it claims.

    The claims are then proved against the patches and wheels of this checkout.

    Raises:
        ConfigurationError: it carries no flavor label, or is not what its name pins.
    """
    labels = image.labels
    flavor = labels.get(FLAVOR_LABEL, "")
    if flavor not in FLAVORS:
        raise ConfigurationError(
            f"{reference}: expected label {FLAVOR_LABEL} to be one of {', '.join(FLAVORS)}, "
            f"found {flavor or 'none'}: this is no headrace image"
        )
    wanted = reference.partition("@")[2]
    if wanted and wanted != image.digest:
        raise ConfigurationError(f"{reference}: expected {wanted}, found {image.digest}")
    patched = patch_records(layout, flavor)[0]
    versions = {wheel.name: wheel.version for wheel in wheel_records(layout, flavor)}
    return Subject(
        layout=layout,
        flavor=flavor,
        digest=image.digest,
        folder=folder,
        reference=reference,
        version=versions[canonicalize_name(patched.project)],
        revision=labels.get("org.opencontainers.image.revision", ""),
        series_sha256=patched.series_sha256,
    )
