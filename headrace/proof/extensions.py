"""Every compiled module is the recorded one, and loads with all its symbols.

Request: `{"distributions": [{"name": "lmcache", "files": {"lmcache/x.so": sha256}}],
"preload": ["torch"], "optional": {"x/plugin_*.so": reason}, "without_driver": true}`. What is
preloaded brings the libraries that the modules link to. Optional modules, and those of another
Python, are compared and not loaded; so is, without a driver, what asks for the driver's library.
"""

from __future__ import annotations

import ctypes
import fnmatch
import importlib
import importlib.metadata
import os
import re
import select
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from headrace.proof.answer import Answer, Request, folder_of, sha256_of
from headrace.proof.linker import DRIVER

LOAD_S = 120.0


def prove(request: Request) -> Answer:
    """Compare, then load each module in a process of its own: two may claim one registry."""
    answer = Answer()
    for module in request.get("preload", ()):
        importlib.import_module(module)
    for name, root, files in installed(request, answer):
        answer.problems += stray_modules(root, files)
        for relative, expected in sorted(files.items()):
            path = root / relative
            if not path.is_file():
                answer.problems.append(f"{path}: expected an extension of {name}, found none")
            elif (found := sha256_of(path)) != expected:
                answer.problems.append(f"{path}: expected sha256 {expected}, found {found}")
            elif foreign(relative) or optional(relative, request.get("optional", ())):
                answer.facts.setdefault("skipped", []).append(relative)
            elif not (problem := load_in_child(path, relative)):
                answer.facts.setdefault("loaded", []).append(relative)
            elif request.get("without_driver") and says_driver(problem):
                answer.facts.setdefault("driver", []).append(relative)
            else:
                answer.problems.append(f"{path}: {problem}")
    return answer


def installed(request: Request, answer: Answer) -> Iterator[tuple[str, Path, Mapping[str, str]]]:
    """Yield name, folder and recorded files of each distribution; a missing one is a problem."""
    for distribution in request["distributions"]:
        name = distribution["name"]
        if root := folder_of(name, answer):
            yield name, root, distribution["files"]


def foreign(relative: str) -> bool:
    """Tell whether a file is a module of another version of Python, which none imports here."""
    tag = re.search(r"\.cpython-(\d+)-", relative)
    return tag is not None and tag[1] != f"{sys.version_info.major}{sys.version_info.minor}"


def optional(relative: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(relative, pattern) for pattern in patterns)


def says_driver(problem: str) -> bool:
    """Tell whether the dynamic loader found everything but a library of the driver."""
    return any(problem.startswith(f"{name}: cannot open shared object file") for name in DRIVER)


def stray_modules(root: Path, files: Mapping[str, str]) -> list[str]:
    """Name compiled modules beside the recorded ones that no record lists."""
    packages = {PurePosixPath(relative).parts[0] for relative in files if "/" in relative}
    found = (path for package in packages for path in (root / package).rglob("*.so"))
    return [
        f"{path}: an extension that no record lists"
        for path in sorted(found)
        if path.relative_to(root).as_posix() not in files
    ]


def load_in_child(path: Path, relative: str) -> str:
    """Load `path` in a forked child; return what went wrong, "" if nothing did."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            load(path, relative)
            os.write(write_end, b"loaded")
        except BaseException as failure:  # noqa: BLE001 - whatever it is, the parent reports it
            os.write(write_end, " ".join(str(failure).split())[:2000].encode())
        finally:
            # Neither buffers nor exit handlers of the parent may run twice.
            os._exit(0)
    os.close(write_end)
    try:
        return outcome(child, read_end)
    finally:
        os.close(read_end)


def outcome(child: int, read_end: int) -> str:
    ready, _, _ = select.select([read_end], [], [], LOAD_S)
    if not ready:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"did not load within {LOAD_S:.0f} s"
    said = os.read(read_end, 4096).decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name} while loading"
    return "" if said == "loaded" else said or "ended without a word while loading"


def load(path: Path, relative: str) -> None:
    """Bind every symbol of `path` now; import it too if it is a Python module.

    Raises:
        OSError: a library is missing or a symbol is undefined.
        ImportError: Python refuses it, or resolves another file under its name.
    """
    library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    pure = PurePosixPath(relative)
    stem = pure.name.split(".", 1)[0]
    if not hasattr(library, f"PyInit_{stem}"):
        return
    name = ".".join([*pure.parent.parts, stem])
    module = importlib.import_module(name)
    if Path(str(module.__file__)).resolve() != path.resolve():
        raise ImportError(f"Python resolves {module.__file__} as {name}")


def loaded_libraries(stems: Iterable[str]) -> dict[str, list[str]]:
    """Return, for each library stem such as "libgomp", the files mapped into this process."""
    paths = mapped_libraries()
    return {
        stem: sorted({os.path.realpath(path) for path in paths if stem_of(path) == stem})
        for stem in stems
    }


def mapped_libraries() -> list[str]:
    """Return the shared libraries that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sorted(
        {line.split(maxsplit=5)[5] for line in lines if line.count("/") and ".so" in line}
    )


def stem_of(path: str) -> str:
    """Return "libgomp" of "…/libgomp-6a29c32d.so.1.0.0" and of "…/libgomp.so.1"."""
    base = Path(path).name.split(".so", 1)[0]
    head, dash, tail = base.rpartition("-")
    is_hash = bool(dash) and len(tail) >= 8 and all(c in "0123456789abcdef" for c in tail)
    return head if is_hash else base
