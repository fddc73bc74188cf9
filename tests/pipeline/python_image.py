"""A checkout and an image that carry what the real ones do, in small: for tests of `verify`.

The image is the interpreter that runs the tests, a patched package "toy" with an extension, the
headrace package, and stand-ins for the commands `vllm` and `headrace`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import packaging

from headrace.pipeline.image import read_image
from headrace.pipeline.layout import Layout
from headrace.pipeline.subject import Subject
from tests.pipeline.sample_image import Entry, layer_of, record_image, write_image
from tests.pipeline.toy import PINS

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGING = Path(str(packaging.__file__)).parent
PREFIX = "opt/python"
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"{PREFIX}/lib/{VERSION}/site-packages"
SHEBANG = f"#!/{PREFIX}/bin/{VERSION}\n"
SERIES = "a" * 64
REVISION = "b" * 40
TOY_VERSION = "1.0+headrace.1"
NATIVE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_native(void) { return PyModule_Create(&module); }
"""
VLLM = """
import http.server, json, pathlib, sys
assert sys.argv[1] == "serve" and (pathlib.Path(sys.argv[2]) / "config.json").is_file()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({})
    def do_POST(self):
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        usage = {"completion_tokens": wanted["max_tokens"]}
        self.answer({"choices": [{"text": "w3"}], "usage": usage})
    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
# Of the real command, what becomes vLLM: it has to do with this interpreter's own library.
SERVE = """
import sys
if sys.argv[1:2] == ["serve"]:
    from headrace.cli import main
    main()
"""
SUITE = """
import json, pathlib, sys
suite, *words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--out") + 1])
case = {"suite": suite, "case": "GET of nothing", "expected": "a miss", "seen": "a miss",
        "verdict": "green", "ms": 0.4}
(folder / "results.jsonl").write_text(json.dumps(case) + chr(10))
(folder / "words.json").write_text(json.dumps(words))
"""
CONFIG: Mapping[str, Any] = {
    "User": "10001:10001",
    "WorkingDir": "/",
    "Env": [f"PATH=/{PREFIX}/bin", "PYTHONDONTWRITEBYTECODE=1"],
    "Entrypoint": ["headrace", "serve"],
    "Labels": {
        "org.opencontainers.image.title": "headrace",
        "org.opencontainers.image.version": TOY_VERSION,
        "org.opencontainers.image.revision": REVISION,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.headrace.series.sha256": SERIES,
        "org.headrace.flavor": "cpu",
    },
}


def script(body: str) -> Entry:
    return Entry((SHEBANG + body).encode(), 0o755)


def interpreter_layer() -> bytes:
    """Return a layer with this interpreter, its standard library and what both link to."""
    base = Path(sys.base_prefix)
    library = Path(sysconfig.get_path("stdlib"))
    binary = (base / "bin" / VERSION).resolve()
    entries: dict[str, Entry | bytes | str] = {
        f"{PREFIX}/bin/{VERSION}": Entry(binary.read_bytes(), 0o755),
        f"{PREFIX}/bin/python": Entry(link=VERSION, mode=0o777),
    }
    left_out = {"test", "tests", "site-packages", "dist-packages", "__pycache__", "idlelib",
                "ensurepip", "lib2to3", "tkinter", "turtledemo"}  # fmt: skip
    modules = []
    for path in sorted(library.rglob("*")):
        parts = path.relative_to(library).parts
        if left_out & set(parts) or parts[0].startswith("config-") or not path.is_file():
            continue
        if path.suffix == ".so":
            modules.append(path)
        entries[f"{PREFIX}/lib/{VERSION}/{'/'.join(parts)}"] = Entry(path.read_bytes())
    for linked in linked_libraries([binary, *modules]):
        entries[str(linked).lstrip("/")] = Entry(linked.resolve().read_bytes(), 0o755)
    return layer_of(entries)


def linked_libraries(files: list[Path]) -> list[Path]:
    """Return the shared libraries, and the loader, that `files` need, as `ldd` finds them."""
    shown = subprocess.run(
        ["ldd", *files], capture_output=True, text=True, check=False, timeout=60
    ).stdout
    return sorted({Path(path) for path in re.findall(r"(/\S+\.so\S*)(?: \(0x)", shown)})


def compile_native(folder: Path) -> bytes:
    target = folder / "native.so"
    include = sysconfig.get_path("include")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-I{include}", "-x", "c", "-", "-o", target],
        input=NATIVE,
        text=True,
        check=True,
        timeout=60,
    )
    return target.read_bytes()


def package_files(folder: Path) -> dict[str, bytes]:
    """Return the Python files of a package by path below its parent."""
    found = sorted(folder.rglob("*.py"))
    return {path.relative_to(folder.parent).as_posix(): path.read_bytes() for path in found}


def wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Write a wheel into `folder`; return all files that installing it makes."""
    info = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    whole = {**files, f"{info}/METADATA": about.encode()}
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for path, data in whole.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([path, f"sha256={digest}", len(data)])
    folder.mkdir(parents=True, exist_ok=True)
    record = rows.getvalue().encode()
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, data in {**whole, f"{info}/RECORD": record}.items():
            archive.writestr(path, data)
    return {**whole, f"{info}/RECORD": record}


class PythonImage:
    """A built checkout under `root`; `build` makes its image, with `planted` as a last layer."""

    flavor = "cpu"

    def __init__(self, root: Path, interpreter: bytes) -> None:
        self.layout = Layout(root)
        self.interpreter = interpreter
        root.mkdir(parents=True, exist_ok=True)
        self.layout.pins.write_text(PINS)
        self.layout.locks.mkdir()
        (self.layout.locks / "exclude.txt").write_text(
            "# does not load beside this torch\ntorchvision ; python_version < '0'\n"
        )
        (self.layout.locks / "exclude-cpu.txt").write_text("# nothing more\n")
        part = b"answer = 42\n"
        toy = {"toy/__init__.py": b"", "toy/part.py": part, "toy/native.so": compile_native(root)}
        own, locked = self.layout.wheels(self.flavor), self.layout.wheelhouse(self.flavor)
        site = {
            **wheel(own, "toy", TOY_VERSION, toy),
            **wheel(own, "headrace", "0.1", package_files(CHECKOUT / "headrace")),
            **wheel(locked, "packaging", packaging.__version__, package_files(PACKAGING)),
        }
        self.site = {f"{SITE}/{path}": data for path, data in site.items()}
        self.layout.patched.mkdir(parents=True)
        facts = {
            "project": "toy",
            "version": "1.0",
            "series_sha256": SERIES,
            "patches": [],
            "files": {
                "toy/part.py": hashlib.sha256(part).hexdigest(),
                "toy/gone.py": None,
                "csrc/native.c": "0" * 64,
            },
        }
        (self.layout.patched / "toy-1.0.json").write_text(json.dumps(facts))

    def subject(self) -> Subject:
        """Return the built image without giving it to the daemon, for what is read outside."""
        built = read_image(self.layout, self.flavor)
        return Subject(
            self.layout, self.flavor, built.digest, built.path, built.reference,
            built.version, built.revision, built.series_sha256,
        )  # fmt: skip

    def build(
        self,
        *,
        planted: Mapping[str, Entry | bytes | str] | None = None,
        config: Mapping[str, Any] | None = None,
        vllm: str = VLLM,
        suite: str = SUITE,
    ) -> str:
        """Write the layout and the record of the flavor's image; return the digest."""
        folder = self.layout.image(self.flavor)
        commands = {
            f"{PREFIX}/bin/vllm": script(vllm),
            f"{PREFIX}/bin/headrace": script(SERVE + suite),
        }
        layers = [self.interpreter, layer_of({**self.site, **commands})]
        if planted:
            layers.append(layer_of(planted))
        digest = write_image(folder, layers, {**CONFIG, **(config or {})})
        record_image(
            folder, digest, revision=REVISION, version=TOY_VERSION, series_sha256=SERIES,
            reference=f"headrace-test-{os.getpid()}:{digest.removeprefix('sha256:')[:12]}",
        )  # fmt: skip
        return digest
