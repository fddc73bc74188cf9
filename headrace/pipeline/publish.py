"""Publish exactly the image that was proved: push by digest, re-read it, and only then tag it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headrace.console import call, say, working
from headrace.errors import ConfigurationError, PublishError
from headrace.pipeline.image import ImageResult, read_built, read_image
from headrace.pipeline.layout import Layout
from headrace.pipeline.oci import blob_path
from headrace.pipeline.pins import FLAVORS, load_pins
from headrace.pipeline.reference import Reference, parse_reference
from headrace.pipeline.registry import Registry, docker_config
from headrace.pipeline.report import load_report, refuse_unless_publishable, report_path

PUSH_S = 3600.0


@dataclass(frozen=True)
class Published:
    """Where the image is now. `pushed` is False if the registry had all of it already."""

    reference: str
    by_digest: str
    digest: str
    pushed: bool


def publish(layout: Layout, image: str, to: str) -> Published:
    """Push a proved image under a new tag.

    A tag is never moved: one that names another image is refused. Doing it again is harmless.

    Args:
        image: the flavor, or the digest of a flavor that was built in this checkout.
        to: HOST[:PORT]/REPOSITORY:TAG.

    Raises:
        PublishError: the name is not qualified, a pin is not locked, no green and whole report
            names this digest, the tag is taken, or the registry does not hold what was pushed.
        MachineError: the registry is not reached, or skopeo is missing.
    """
    reference = parse_reference(to)
    built = find_image(layout, image)
    refuse_unlocked(layout, built.flavor)
    refuse_unproved(layout, built.digest)
    manifest = blob_path(built.path, built.digest).read_bytes()
    read_built(built.path, built.flavor, check_layers=True)
    with Registry(reference) as registry:
        taken = registry.tagged_digest()
        if taken and taken != built.digest:
            raise PublishError(
                f"{reference}: expected a new tag, found one on {taken}; tags are not moved: "
                "publish under another"
            )
        pushed = not complete(registry, built.digest, manifest)
        if pushed:
            push(built.path, reference, built.digest)
        re_read(registry, built.digest, manifest)
        if not taken:
            registry.tag(manifest)
        if (found := registry.tagged_digest()) != built.digest:
            raise PublishError(f"{reference}: expected {built.digest}, found {found or 'no tag'}")
    say(f"published {reference} = {reference.at(built.digest)}")
    return Published(str(reference), reference.at(built.digest), built.digest, pushed)


def find_image(layout: Layout, image: str) -> ImageResult:
    """Return the built image that `image` names, a flavor or a digest.

    Raises:
        ImageError: that flavor was not built.
        PublishError: no built image has that digest.
    """
    if image in FLAVORS:
        return read_image(layout, image)
    found = [
        read_image(layout, flavor)
        for flavor in FLAVORS
        if layout.image(flavor).with_suffix(".json").is_file()
    ]
    for built in found:
        if image in (built.digest, built.reference):
            return built
    raise PublishError(
        f"{image}: expected {', '.join(FLAVORS)} or the digest of a built image, found "
        f"{', '.join(built.digest for built in found) or 'no built image'}"
    )


def refuse_unlocked(layout: Layout, flavor: str) -> None:
    """Raise PublishError while a pin of `flavor` has no hash."""
    if unlocked := load_pins(layout.pins).unlocked(flavor):
        names = ", ".join(pin.id for pin in unlocked)
        raise PublishError(
            f"{layout.pins}: expected a sha256 for {names}, found none; run "
            "`python build.py lock pins` on a machine that reaches it, then build and verify again"
        )


def refuse_unproved(layout: Layout, digest: str) -> None:
    """Raise PublishError unless a green and whole report names exactly `digest`."""
    path = report_path(layout, digest)
    if not path.is_file():
        raise PublishError(
            f"{path}: expected a green report on {digest}, found none; run 'python build.py verify'"
        )
    try:
        report = load_report(path)
    except ConfigurationError as unusable:
        raise PublishError(str(unusable)) from unusable
    refuse_unless_publishable(report, digest)


def push(folder: Path, reference: Reference, digest: str) -> None:
    """Copy the layout to the registry by digest: no tag exists until the copy was re-read."""
    words: list[str | Path] = ["skopeo", "copy", "--quiet", "--preserve-digests"]
    if docker_config().is_file():
        words += ["--dest-authfile", docker_config()]
    if reference.plain_http:
        words.append("--dest-tls-verify=false")
    with working(f"pushing {digest} to {reference.host}/{reference.repository}"):
        call(
            [*words, f"oci:{folder}", f"docker://{reference.at(digest)}"],
            error=PublishError,
            timeout=PUSH_S,
            advice="install skopeo",
        )


def complete(registry: Registry, digest: str, manifest: bytes) -> bool:
    """Tell whether the registry already holds the manifest and every blob of it."""
    return registry.manifest(digest) == manifest and not missing_blobs(registry, manifest)


def re_read(registry: Registry, digest: str, manifest: bytes) -> None:
    """Raise PublishError unless the registry serves the same manifest and holds every blob."""
    if registry.manifest(digest) != manifest:
        raise PublishError(
            f"{registry.reference.at(digest)}: expected the manifest that was pushed, found none"
        )
    if missing := missing_blobs(registry, manifest):
        raise PublishError(f"{registry.reference.at(digest)}: {missing[0]}")


def missing_blobs(registry: Registry, manifest: bytes) -> list[str]:
    """Return one line for each blob that the registry lacks or holds with another size."""
    content = json.loads(manifest)
    lines = []
    for blob in (content["config"], *content["layers"]):
        size = registry.blob_size(blob["digest"])
        if size != blob["size"]:
            found = "none" if size < 0 else f"{size} bytes"
            lines.append(f"blob {blob['digest']}: expected {blob['size']} bytes, found {found}")
    return lines
