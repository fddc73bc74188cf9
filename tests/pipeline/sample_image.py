"""Small OCI layouts for tests, and a private registry to push them to."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import re
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.pipeline.oci import CONFIG, LAYER, MANIFEST

REGISTRY_S = 20.0


@dataclass(frozen=True)
class Entry:
    """A file of a layer; with `link`, a symbolic link to it instead."""

    data: bytes = b""
    mode: int = 0o644
    link: str = ""


def layer_of(entries: Mapping[str, Entry | bytes | str]) -> bytes:
    """Return a gzipped tar of `entries`, paths without a leading slash; same input, same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, value in entries.items():
            if isinstance(value, str):
                value = value.encode()
            entry = value if isinstance(value, Entry) else Entry(value)
            member = tarfile.TarInfo(path)
            member.mode = entry.mode
            if entry.link:
                member.type, member.linkname = tarfile.SYMTYPE, entry.link
            member.size = len(entry.data)
            tar.addfile(member, io.BytesIO(entry.data))
    return gzip.compress(buffer.getvalue(), compresslevel=1, mtime=0)


def write_image(folder: Path, layers: Sequence[bytes], config: Mapping[str, Any]) -> str:
    """Write a layout of `layers` (gzipped tars) with run settings `config`; return the digest."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    diff_ids = [hashlib.sha256(gzip.decompress(layer)).hexdigest() for layer in layers]
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{value}" for value in diff_ids]},
        "history": [{"created_by": "test"} for _ in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": put(json.dumps(image).encode(), CONFIG),
        "layers": [put(layer, LAYER) for layer in layers],
    }
    entry = put(json.dumps(manifest).encode(), MANIFEST)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return str(entry["digest"])


def record_image(folder: Path, digest: str, **facts: object) -> None:
    """Write the record of a built image beside its layout, as the image stage does."""
    values = {
        "flavor": folder.name,
        "digest": digest,
        "reference": f"headrace-test:{digest.removeprefix('sha256:')[:12]}",
        "revision": "0" * 40,
        "version": "1.0+headrace.1",
        "series_sha256": "a" * 64,
        "base": digest,
        "size": 0,
        "layers": [],
        **facts,
    }
    folder.with_suffix(".json").write_text(json.dumps(values))


def static_program(folder: Path, says: str) -> bytes:
    """Compile a program that needs no other file and prints one line."""
    source = f'#include <stdio.h>\nint main(void) {{ puts("{says}"); return 0; }}\n'
    target = folder / "program"
    subprocess.run(
        ["gcc", "-static", "-Os", "-s", "-x", "c", "-", "-o", target],
        input=source,
        text=True,
        check=True,
        timeout=60,
    )
    return target.read_bytes()


@contextlib.contextmanager
def registry(folder: Path, extra: str = "") -> Iterator[str]:
    """Run a registry on loopback, on a port of its own choice, storing in `folder`.

    Args:
        extra: more of its configuration, as YAML.

    Yields:
        127.0.0.1:PORT.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, log = folder / "config.yml", folder / "log"
    config.write_text(
        "version: 0.1\nlog: {level: info}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f'http: {{addr: "127.0.0.1:0", secret: test}}\n{extra}'
    )
    with log.open("wb") as stream:
        process = subprocess.Popen(
            ["docker-registry", "serve", config], stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + REGISTRY_S
        while not (match := re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no registry within {REGISTRY_S:.0f} s: {log.read_text()}")
            time.sleep(0.05)
        yield match[1]
    finally:
        process.kill()
        process.wait()
