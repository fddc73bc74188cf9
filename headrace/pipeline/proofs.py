"""The checks of an image, in the order in which they run. Each returns one line on what it saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from packaging.utils import canonicalize_name

from headrace.pipeline import container
from headrace.pipeline.layer_rules import Kind
from headrace.pipeline.records import components, exclusions
from headrace.pipeline.serving import starts_offline
from headrace.pipeline.subject import (
    FLAVOR_LABEL,
    RefutedError,
    Subject,
    UnprovedError,
    site_relative,
)

PRELOAD = ["torch"]
# What an engine process holds of us, imported in one process.
ENGINE_MODULES = ["torch", "vllm._C", "lmcache.lmcache_native", "lmcache.lmcache_redis"]
SINGLE = ["libgomp", "libtorch", "libtorch_cpu", "libtorch_python", "libc10", "libstdc++"]
CUDA_FILES = [
    *("libcud*.so*", "libcublas*.so*", "libcufft*.so*", "libcurand*.so*", "libcusparse*.so*"),
    *("libcusolver*.so*", "libnccl*.so*", "libnvrtc*.so*", "libnvidia*.so*", "libnvJitLink*.so*"),
]
CUDA_DISTRIBUTIONS = ["nvidia-*", "cuda-*", "cupy*", "nixl*", "flashinfer*"]

# Run-time requirements of our components that no lock resolves, besides those that locks/ excludes.
BUILD_ONLY = {
    "setuptools-scm": "LMCache lists the tool that its own build takes the version from",
}


def digest(subject: Subject) -> str:
    """The layout, the daemon and the report mean the same bytes."""
    held = container.held_digest(subject.reference)
    for where, found in ((subject.folder, subject.image.digest), ("docker daemon", held)):
        if found != subject.digest:
            raise RefutedError([f"{where}: expected {subject.digest}, found {found}"])
    return f"{len(subject.image.layers)} layers, {subject.scan.members} members read and hashed"


def labels(subject: Subject) -> str:
    """The labels say what the build recorded."""
    expected = {
        "org.opencontainers.image.title": "headrace",
        "org.opencontainers.image.version": subject.version,
        "org.opencontainers.image.revision": subject.revision,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.headrace.series.sha256": subject.series_sha256,
        FLAVOR_LABEL: subject.flavor,
    }
    found = subject.image.labels
    problems = [
        f"label {name}: expected {value or 'a value'}, found {found.get(name) or 'none'}"
        for name, value in expected.items()
        if not value or found.get(name) != value
    ]
    if problems:
        raise RefutedError(problems)
    return f"version {subject.version}, revision {subject.revision[:12]}"


def account(subject: Subject) -> str:
    """The image runs as a user who is not root and cannot change the installed code."""
    user = str(subject.image.config.get("config", {}).get("User") or "")
    if user.partition(":")[0] in ("", "0", "root"):
        raise RefutedError([f"image config: expected an ordinary User, found {user or 'none'}"])
    facts = subject.ask("account", {})
    return f"user {facts['uid']}, group {facts['gid']}, code is read-only to it"


def no_compiler(subject: Subject) -> str:
    return _clean(subject, "compiler")


def no_build_remains(subject: Subject) -> str:
    return _clean(subject, "build remains")


def no_secrets(subject: Subject) -> str:
    return _clean(subject, "secret")


def _clean(subject: Subject, kind: Kind) -> str:
    if problems := subject.scan.of(kind):
        raise RefutedError(problems)
    return f"none among {subject.scan.members} members of all layers"


def packaged_files(subject: Subject) -> str:
    """Every file of our wheels and of the locked ones is in the image, once, byte for byte."""
    found: dict[str, dict[str, str]] = {}
    for path, value in subject.scan.hashes.items():
        found.setdefault(site_relative(path), {})[path] = value
    problems = []
    count = 0
    for wheel in subject.wheels:
        for relative, expected in wheel.files.items():
            copies = found.get(relative, {})
            count += 1
            if len(copies) != 1:
                places = ", ".join(f"/{path}" for path in sorted(copies)) or "none"
                problems.append(f"{wheel.name}: {relative}: expected one file, found {places}")
            elif (value := next(iter(copies.values()))) != expected:
                problems.append(f"/{next(iter(copies))}: expected sha256 {expected}, found {value}")
    if problems:
        raise RefutedError(problems)
    return f"{count} files of {len(subject.wheels)} wheels"


def patched_files(subject: Subject) -> str:
    """Each patched file that a wheel packs is the one Python resolves and runs.

    Patched sources that are compiled or not packed at all, as tests are, are proved by the hash
    of the extension modules and by `packaged_files`.
    """
    projects = []
    total, compiled = 0, 0
    packed = {wheel.name: wheel for wheel in subject.wheels}
    here = {patch.series_sha256 for patch in subject.patches}
    if subject.series_sha256 not in here:
        raise RefutedError(
            [f"series: expected {subject.series_sha256}, as the image says, found "
             f"{', '.join(here)} in this checkout; run 'python build.py build'"]
        )  # fmt: skip
    for patch in subject.patches:
        wheel = packed[canonicalize_name(patch.project)]
        packages = {path.partition("/")[0] for path in wheel.files}
        python = {
            path: value
            for path, value in patch.files.items()
            if path.endswith(".py") and path.partition("/")[0] in packages
        }
        if unpacked := [p for p, value in python.items() if value and p not in wheel.files]:
            raise RefutedError([f"{path}: patched, but not in the wheel" for path in unpacked])
        data = {path: value for path, value in patch.files.items() if path in wheel.files}
        inside = {**python, **data}
        total += len(inside)
        compiled += len(patch.files) - len(inside)
        projects.append({"distribution": wheel.name, "files": inside})
    if not any(project["files"] for project in projects):
        raise UnprovedError("no patched file is in any wheel: nothing to prove")
    subject.ask("files", {"projects": projects})
    return f"{total} files resolved in the image; {compiled} patched sources are compiled or tests"


def extensions(subject: Subject) -> str:
    """Each extension module of our components is the recorded one and loads."""
    ours = components(subject.layout, subject.flavor) - set(PRELOAD)
    wanted = [
        {"name": wheel.name, "files": wheel.extensions}
        for wheel in subject.wheels
        if wheel.extensions and wheel.name in ours
    ]
    facts = subject.ask("extensions", {"preload": PRELOAD, "distributions": wanted})
    return f"{len(facts.get('loaded', []))} modules, all symbols bound"


def libraries(subject: Subject) -> str:
    """One copy of each run-time library in a process, and no CUDA library in a CPU image."""
    if subject.flavor != "cpu":
        raise UnprovedError(f"no rule yet for the libraries of flavor {subject.flavor}")
    subject.ask(
        "libraries",
        {
            "import": ENGINE_MODULES,
            "single": SINGLE,
            "absent": CUDA_FILES,
            "absent_distributions": CUDA_DISTRIBUTIONS,
            "roots": ["/opt", "/usr", "/home"],
        },
    )
    return f"one copy each of {', '.join(SINGLE)}; no CUDA library"


def metadata(subject: Subject) -> str:
    """Installed distributions agree with each other, but for the exclusions of the locks."""
    excluded = {**exclusions(subject.layout, subject.flavor), **BUILD_ONLY}
    facts = subject.ask("metadata", {"excluded": excluded})
    waived = ", ".join(sorted(facts.get("waived", {}))) or "none"
    return f"{facts['distributions']} distributions; excluded by design: {waived}"


CHECKS: Mapping[str, Callable[[Subject], str]] = {
    "digest": digest,
    "labels": labels,
    "account": account,
    "no-compiler": no_compiler,
    "no-build-remains": no_build_remains,
    "no-secrets": no_secrets,
    "packaged-files": packaged_files,
    "patched-files": patched_files,
    "extensions": extensions,
    "libraries": libraries,
    "metadata": metadata,
    "starts-offline": starts_offline,
}
