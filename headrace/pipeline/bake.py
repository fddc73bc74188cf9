"""Run docker buildx bake: from everything that decides the bytes of an image to an OCI layout.

The daemon downloads nothing: the base, the Debian packages and the wheels are handed to it as named
contexts. Layers hold no time but that of the Debian lock, and the config none but the commit's, so
that a second build has the same digest, and another commit shares the layers that did not change.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.console import call, disk_error, say, working
from headrace.errors import ImageError
from headrace.pipeline import oci
from headrace.pipeline.base import base_folder, build_base
from headrace.pipeline.contexts import TORCH_LAYER, WHEEL_LAYERS, stage_contexts
from headrace.pipeline.daemon import ensure_daemon
from headrace.pipeline.debian import PACKAGES_OF_FLAVORS
from headrace.pipeline.debian_lock import lock_path, read_lock
from headrace.pipeline.flashinfer import read_mode
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.pins import load_pins
from headrace.pipeline.records import patch_record
from headrace.pipeline.revision import Revision

# Gzip, because every registry and runtime takes it; at a level that costs a few percent of size and
# saves half of the time.
OUTPUT = "type=oci,tar=false,compression=gzip,compression-level=3"
BUILD_TIMEOUT = 3600
DOCKER_FILES = (
    "Dockerfile", "Dockerfile.dockerignore", "docker-bake.hcl", "complete-cuda.sh",
    "install-debs.sh", "install-wheels.sh", "settle.sh", "tidy-debian.sh",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Everything that decides the bytes of an image.

    Attributes:
        kernel_module: how FlashInfer's fused-MoE module is in the image, "jit" or "aot"; "" where
            there is no FlashInfer.
    """

    revision: Revision
    base: str
    base_image: str | None
    lock_epoch: int
    version: str
    series_sha256: str
    kernel_module: str
    inputs: Mapping[str, str]


def make_plan(layout: Layout, flavor: str, base_image: str | None, revision: Revision) -> Plan:
    lock = lock_path(layout)
    base = base_image.split("@")[1] if base_image else build_base(layout).digest
    pin = load_pins(layout.pins).get("lmcache")
    wheels = sorted(layout.wheels(flavor).glob("*.whl"))
    versions = [path.name.split("-")[1] for path in wheels if path.name.startswith("lmcache-")]
    if len(versions) != 1:
        raise ImageError(
            f"{layout.wheels(flavor)}: expected one wheel of lmcache, found {len(versions)}; "
            f"run `python build.py wheels --flavor {flavor}`"
        )
    files = [lock, layout.locks / f"{flavor}.txt", layout.root / "LICENSE",
             layout.root / "NOTICE", *(layout.docker / name for name in DOCKER_FILES)]  # fmt: skip
    inputs = {path.relative_to(layout.root).as_posix(): hash_file(path) for path in files}
    inputs |= {path.name: hash_file(path) for path in wheels}
    inputs |= {
        "base": base,
        "revision": revision.name,
        "epoch": str(revision.epoch),
        "output": OUTPUT,
        "packages": " ".join(PACKAGES_OF_FLAVORS[flavor]),
        "torch layer": TORCH_LAYER[flavor],
    }
    return Plan(
        revision=revision,
        base=base,
        base_image=base_image,
        lock_epoch=read_lock(lock).epoch,
        version=versions[0],
        series_sha256=patch_record(layout, pin).series_sha256,
        kernel_module=_kernel_module(wheels),
        inputs=inputs,
    )


def bake(layout: Layout, flavor: str, plan: Plan, folder: Path, no_cache: bool) -> None:
    contexts = stage_contexts(layout, flavor)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    settings = [
        f"{flavor}.output={OUTPUT},dest={partial}",
        *(f"{flavor}.contexts.{name}={contexts / name}" for name in ("debs", *WHEEL_LAYERS)),
    ]
    variables = {
        "VERSION": plan.version,
        "REVISION": plan.revision.name,
        "CREATED": plan.revision.created,
        "SERIES_SHA256": plan.series_sha256,
        "KERNEL_MODULE": plan.kernel_module,
        "LOCK_EPOCH": str(plan.lock_epoch),
        "SOURCE_DATE_EPOCH": str(plan.revision.epoch),
        "BASE_IMAGE": plan.base_image or "headrace-base",
        # Newer releases of bake ask before they read a folder outside the checkout.
        "BUILDX_BAKE_ENTITLEMENTS_FS": "0",
    }
    if plan.base_image is None:
        base = base_folder(layout).resolve()
        settings.append(f"{flavor}.contexts.headrace-base=oci-layout://{base}@{plan.base}")
    log = layout.logs / f"image-{flavor}.log"
    log.unlink(missing_ok=True)
    try:
        with ensure_daemon(layout), working(f"building the image of flavor {flavor}"):
            call(
                ["docker", "buildx", "bake", "--progress=plain", "--provenance=false",
                 "--file", layout.docker / "docker-bake.hcl",
                 *(["--no-cache"] if no_cache else []),
                 *(word for setting in settings for word in ("--set", setting)), flavor],
                error=ImageError, cwd=layout.root, env=variables, log=log, timeout=BUILD_TIMEOUT,
            )  # fmt: skip
        image = oci.read_layout(partial, check_layers=True)
        _require_labels(image, plan)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    say(f"{folder}: {image.digest}, {image.size / 1e6:.0f} MB in {len(image.layers)} layers")


def _kernel_module(wheels: list[Path]) -> str:
    found = [path for path in wheels if path.name.startswith("flashinfer_python-")]
    return read_mode(found[0]) if found else ""


def _require_labels(image: oci.Image, plan: Plan) -> None:
    found = image.labels.get("org.opencontainers.image.revision")
    if found != plan.revision.name:
        raise ImageError(
            f"{image.digest}: expected the label of revision {plan.revision.name}, found {found}"
        )
