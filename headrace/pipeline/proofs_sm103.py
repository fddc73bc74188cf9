"""The checks of an image for GPUs that need no GPU: what it holds, and what loading would find."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from headrace.pipeline import proofs, serving
from headrace.pipeline.given import command
from headrace.pipeline.gpu import require_gpu
from headrace.pipeline.layer_rules import Kind
from headrace.pipeline.pins import load_pins
from headrace.pipeline.proofs_module import built_record
from headrace.pipeline.records import components
from headrace.pipeline.subject import RefutedError, Subject, UnprovedError
from headrace.pipeline.toolchain import TOOLCHAIN

# Loaded already when an engine loads extensions; of these, everybody sees the symbols of `GLOBAL`.
PRELOAD, GLOBAL = ["torch"], ["libtorch_global_deps"]
# What Python imports in an engine's process; LMCache's extension modules come on top.
IMPORTS = ["torch", "flashinfer", "vllm", "lmcache", "nixl", "nixl_cu13"]
SINGLE = ["libgomp", "libtorch", "libtorch_cpu", "libtorch_cuda", "libtorch_python", "libc10",
          "libstdc++", "libcudart"]  # fmt: skip
# By file name, over all layers: one file each. Another major of CUDA, or another NIXL beside the
# first, is loaded without a word and then computes with half of the state.
ONE_FILE = ["libcudart", "libnixl", "libtorch", "libtorch_cpu", "libtorch_cuda", "libtorch_python",
            "libc10", "libc10_cuda"]  # fmt: skip
OTHER_MAJOR = ["*-cu11", "*-cu12", "flashinfer-jit-cache*"]

# Extensions that their package does without where they do not load, by path below site-packages.
OPTIONAL: Mapping[str, str] = {
    "nixl_cu13.libs/nixl/*.so": "second copies; NIXL loads plugins/ beside libnixl.so",
    ".nixl_cu13.mesonpy.libs/plugins/libplugin_GPUNETIO.so": "needs NVIDIA DOCA on the machine",
    ".nixl_cu13.mesonpy.libs/plugins/libtelemetry_exporter_doca.so": (
        "needs NVIDIA DOCA on the machine"
    ),
    ".nixl_cu13.mesonpy.libs/plugins/libplugin_INFINIA.so": "needs DDN Infinia's client",
    ".nixl_cu13.mesonpy.libs/plugins/libplugin_LIBFABRIC.so": "needs libfabric on the machine",
    "nixl_ep_cu13/nixl_ep_cpp_torch21[124].*.so": "for other releases of torch; one is for 2.13",
}


def no_compiler(subject: Subject) -> str:
    """No compiler but the one that the engine's first start needs, at its known places."""
    return _but_toolchain(subject, "compiler")


def no_build_remains(subject: Subject) -> str:
    """Nothing that a build left; what the toolchain links into programs belongs to it."""
    return _but_toolchain(subject, "build remains")


def _but_toolchain(subject: Subject, kind: Kind) -> str:
    problems = subject.scan.of(kind) + missing_tools(subject.scan.paths, subject.flavor, kind)
    if problems:
        raise RefutedError(problems)
    rules = TOOLCHAIN[subject.flavor]
    reasons = {why for (of, _), why in rules.items() if of == kind}
    count = sum(why in reasons for why in subject.scan.waived.values())
    return (
        f"none among {subject.scan.members} members of all layers but the {count} files of the "
        "first start's toolchain"
    )


def missing_tools(paths: Iterable[str], flavor: str, kind: Kind) -> list[str]:
    """Name each exception of a flavor's toolchain that nothing in the image needs."""
    known = list(paths)
    return [
        f"expected {why} ({pattern}), found none"
        for (of, pattern), why in TOOLCHAIN[flavor].items()
        if of == kind and not any(re.fullmatch(pattern, path) for path in known)
    ]


def extensions(subject: Subject) -> str:
    """Each extension module is the recorded one, and loads if it does so without a driver.

    One that asks for the GPU's driver cannot be loaded where there is none. It is compared by its
    hash here, and what loading it would bind is followed by `symbols`.
    """
    facts = subject.ask(
        "extensions",
        {
            "preload": PRELOAD,
            "distributions": _recorded(subject),
            "optional": OPTIONAL,
            "without_driver": True,
        },
    )
    return (
        f"{len(facts.get('loaded', []))} modules loaded with all symbols bound; "
        f"{len(facts.get('driver', []))} need the driver and are compared by hash alone here, "
        f"{len(facts.get('skipped', []))} are optional or for another Python"
    )


def symbols(subject: Subject) -> str:
    """Every undefined symbol of every extension is in the image, or the driver's own."""
    facts = subject.ask(
        "symbols",
        {
            "preload": PRELOAD,
            "global": GLOBAL,
            "distributions": _recorded(subject),
            "optional": OPTIONAL,
        },
    )
    return (
        f"{facts['symbols']} symbols of {facts['libraries']} libraries, {facts['driver']} of them "
        f"the driver's; {facts['foreign']} modules for another Python; optional and incomplete: "
        f"{sum(map(len, facts['optional'].values()))}"
    )


def _recorded(subject: Subject) -> list[dict[str, Any]]:
    # Torch is proved by importing it.
    ours = components(subject.layout, subject.flavor) - set(PRELOAD)
    return [
        {"name": wheel.name, "files": wheel.extensions}
        for wheel in subject.wheels
        if wheel.extensions and wheel.name in ours
    ]


def libraries(subject: Subject) -> str:
    """One major of CUDA, one NIXL, one torch: on disk over all layers, and in a process."""
    if problems := copies(subject.scan.paths):
        raise RefutedError(problems)
    facts = subject.ask(
        "libraries",
        {
            "import": PRELOAD,
            "single": SINGLE,
            "absent": [],
            "absent_distributions": OTHER_MAJOR,
            "roots": [],
        },
    )
    cudart = PurePosixPath(facts["mapped"]["libcudart"][0]).name
    return f"one copy each of {', '.join(ONE_FILE)} on disk, {cudart} in the process"


def copies(paths: Iterable[str]) -> list[str]:
    """Name each library of `ONE_FILE` of which the layers hold none, or more than one."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(paths):
        name = PurePosixPath(path).name
        # The hash is what bundling adds to a name; a link ends in .so alone and is the same file.
        match = re.fullmatch(r"(lib[\w+]+?)(?:-[0-9a-f]{8,})?\.so((?:\.\d+)*)", name)
        if match and match[1] in ONE_FILE:
            found[match[1]].append(path)
    problems = []
    for stem in ONE_FILE:
        folders = {str(PurePosixPath(path).parent) for path in found[stem]}
        majors = {m[1] for path in found[stem] if (m := re.search(r"\.so\.(\d+)", path))}
        if len(folders) != 1 or len(majors) > 1:
            places = ", ".join(f"/{path}" for path in found[stem]) or "none"
            problems.append(f"{stem}: expected one copy in the image, found {places}")
    return problems


def offline_imports(subject: Subject) -> str:
    """No import of what an engine consists of asks the network for anything."""
    own = [
        path.partition(".")[0].replace("/", ".")
        for wheel in subject.wheels
        if wheel.name == "lmcache"
        for path in sorted(wheel.extensions)
    ]
    # Without it FlashInfer asks which GPU there is.
    gpu = load_pins(subject.layout.pins).get("flashinfer").compile_for
    request = {
        "modules": [*IMPORTS, *own],
        "environment": {"FLASHINFER_CUDA_ARCH_LIST": gpu},
    }
    facts = subject.ask("offline", request)
    if facts["void"]:
        module, why = next(iter(facts["void"].items()))
        raise UnprovedError(
            f"{module} does not import without a driver ({why}); {len(facts['imported'])} others "
            "ask for nothing"
        )
    return f"{', '.join(facts['imported'])} ask the network for nothing"


def starts_offline(subject: Subject) -> str:
    """The check of the same name of all flavors, on a GPU. It has not run on one yet.

    Raises:
        RefutedError: the server ends, or does not answer.
        UnprovedError: the mode is "jit", whose start is not offline, or there is no B300.
    """
    if built_record(subject)["mode"] == "jit":
        raise UnprovedError(
            "mode jit: the first start compiles the module and fetches FlashInfer's kernels for "
            "it, so an image of this mode is not published; build with --module aot"
        )
    # The driver says it without the letter.
    gpu = load_pins(subject.layout.pins).get("flashinfer").compile_for.rstrip("af")
    name = require_gpu(gpu)
    return f"on {name}: {serving.starts_offline(subject, gpus='all')}"


def needle(digest: str) -> list[str]:
    """Void: the suite's own engine is vLLM's for CPUs, and results of another were not given.

    Raises:
        UnprovedError: always; says how to give them.
    """
    raise UnprovedError(
        "it asks a live engine of this flavor, and no results of one were given; run "
        f"{command(digest)}, then 'build.py verify' with --needle-results FOLDER"
    )


CHECKS = {
    **proofs.CHECKS,
    "no-compiler": no_compiler,
    "no-build-remains": no_build_remains,
    "extensions": extensions,
    "libraries": libraries,
    "starts-offline": starts_offline,
    "symbols": symbols,
    "offline-imports": offline_imports,
}
