"""What no layer may hold is found by path and by content, also when a later layer deletes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ImageError
from headrace.pipeline.layer_rules import Kind
from headrace.pipeline.layers import Scan, scan_layers
from headrace.pipeline.oci import Image, read_layout
from tests.pipeline.sample_image import Entry, layer_of, write_image

RUNS = 0o755
# Put together here so that no key or token stands in this repository.
KEY = f"-----BEGIN {'PRIVATE'} KEY-----\n{'A' * 64}\n-----END {'PRIVATE'} KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"
TOKEN = "ghp" + "_" + "x" * 36


def scan(
    folder: Path,
    *layers: Mapping[str, Entry | bytes | str],
    config: Mapping[str, Any] | None = None,
) -> Scan:
    write_image(folder, [layer_of(layer) for layer in layers], config or {})
    return scan_layers(folder, read_layout(folder), lambda path: path.endswith(".py"))


@pytest.mark.parametrize(
    ("path", "entry", "kind"),
    [
        ("usr/bin/gcc-12", Entry(mode=RUNS), "compiler"),
        ("usr/bin/x86_64-linux-gnu-g++", Entry(mode=RUNS), "compiler"),
        ("usr/bin/cc", Entry(link="gcc"), "compiler"),
        ("usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", Entry(), "compiler"),
        ("usr/local/cuda/bin/nvcc", Entry(mode=RUNS), "compiler"),
        ("usr/bin/ld.gold", Entry(mode=RUNS), "compiler"),
        ("src/connector.o", Entry(), "build remains"),
        ("src/build/CMakeFiles/x/flags.make", Entry(), "build remains"),
        ("src/.git/HEAD", Entry(), "build remains"),
        ("root/.cache/pip/http/a", Entry(), "build remains"),
        ("var/cache/apt/archives/gcc.deb", Entry(), "build remains"),
        ("tmp/leftover", Entry(), "build remains"),
        ("wheels/lmcache-1-py3-none-any.whl", Entry(), "build remains"),
        ("root/.netrc", Entry(), "secret"),
        ("etc/pip.conf", Entry(), "secret"),
        ("home/a/.docker/config.json", Entry(), "secret"),
        ("home/a/.ssh/known_hosts", Entry(), "secret"),
        ("run/secrets/ca", Entry(), "secret"),
        ("usr/local/share/ca-certificates/proxy.crt", Entry(), "secret"),
        ("opt/settings.txt", Entry(KEY.encode()), "secret"),
        ("opt/settings.txt", Entry(f"token = {TOKEN}\n".encode()), "secret"),
        ("etc/apt/sources.list", Entry(b"deb http://me:word@mirror/ x main\n"), "secret"),
    ],
)
def test_each_forbidden_file_is_found_in_its_layer(
    tmp_path: Path, path: str, entry: Entry, kind: Kind
) -> None:
    found = scan(tmp_path, {"bin/sh": Entry(mode=RUNS)}, {path: entry}).of(kind)
    assert len(found) == 1
    assert found[0].startswith(f"layer 1: /{path}: ")
    assert TOKEN not in found[0]


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("opt/headrace/bin/ninja", Entry(mode=RUNS)),
        ("opt/x/go", Entry()),
        ("usr/share/doc/gcc-12-base/copyright", Entry()),
        ("usr/lib/python3.11/ensurepip/_bundled/pip-23.0.1-py3-none-any.whl", Entry()),
        ("opt/x/.gitignore", Entry()),
        ("var/lib/apt/lists/lock", Entry()),
        ("opt/lib/python3.11/site-packages/reader.py", Entry(f"M = '{KEY[:27]}'\n".encode())),
        ("opt/python/ssl.py", Entry(CERTIFICATE.format("' + text + '").encode())),
        ("opt/doc.txt", Entry(b"key = AKIAIOSFODNN7EXAMPLE\n")),
        ("opt/headrace/opt/compiler/lib/libomp-itt-stubs.o", Entry()),
    ],
)
def test_what_only_looks_alike_is_not_found(tmp_path: Path, path: str, entry: Entry) -> None:
    assert scan(tmp_path, {path: entry}).findings == []


def test_what_may_break_a_rule_is_reported_with_its_reason(tmp_path: Path) -> None:
    path = "opt/headrace/opt/compiler/lib/libomp-itt-stubs.o"
    assert list(scan(tmp_path, {path: ""}).waived) == [f"/{path}"]


def test_a_file_that_a_later_layer_deletes_is_still_found(tmp_path: Path) -> None:
    found = scan(tmp_path, {"root/.netrc": "x"}, {"root/.wh..netrc": ""})
    assert [finding.where for finding in found.findings] == ["layer 0: /root/.netrc"]


def test_ca_certificates_must_come_from_the_debian_package(tmp_path: Path) -> None:
    known, foreign = CERTIFICATE.format("AAAA"), CERTIFICATE.format("BBBB")
    base = {"usr/share/ca-certificates/mozilla/a.crt": known}
    bundle = "etc/ssl/certs/ca-certificates.crt"
    assert scan(tmp_path / "good", base, {bundle: known}).findings == []
    found = scan(tmp_path / "bad", base, {bundle: known + foreign}).of("secret")
    assert found == [f"layer 1: /{bundle}: 1 CA certificates that no Debian package brought"]


def test_secrets_in_the_config_are_named_and_not_quoted(tmp_path: Path) -> None:
    config = {"Env": ["PATH=/bin", "API_TOKEN=hidden", "INDEX=https://me:hidden@host/simple"]}
    found = scan(tmp_path, {"a": ""}, config=config).of("secret")
    assert len(found) == 2
    assert "API_TOKEN" in found[0] and "hidden" not in "".join(found)


def test_hashes_are_those_of_the_files_that_a_container_sees(tmp_path: Path) -> None:
    found = scan(
        tmp_path,
        {"a/one.py": "old", "a/two.py": "gone", "b/three.py": "gone", "c/four.py": "kept", "x": ""},
        {"a/one.py": "new", "a/.wh.two.py": "", "b/.wh..wh..opq": "", ".wh.nothing": ""},
    )
    assert found.hashes == {
        "a/one.py": hashlib.sha256(b"new").hexdigest(),
        "c/four.py": hashlib.sha256(b"kept").hexdigest(),
    }


def test_large_files_are_hashed_without_being_searched(tmp_path: Path) -> None:
    data = b"x" * (2 << 20)
    found = scan(tmp_path, {"a/large.py": data})
    assert found.hashes == {"a/large.py": hashlib.sha256(data).hexdigest()}


def test_content_that_the_config_does_not_name_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path, [layer_of({"a": "1"})], {})
    image = read_layout(tmp_path)
    lying = Image(
        image.digest, image.config_digest, image.config, image.layers, ("sha256:" + "0" * 64,), 0
    )
    with pytest.raises(ImageError, match="expected content sha256:0000"):
        scan_layers(tmp_path, lying, lambda path: False)


def test_a_layer_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path, [layer_of({"a": b"1" * 100_000, "b": bytes(range(256)) * 400})], {})
    image = read_layout(tmp_path)
    blob = tmp_path / "blobs" / "sha256" / image.layers[0].removeprefix("sha256:")
    blob.write_bytes(blob.read_bytes()[:-200])
    with pytest.raises(ImageError, match="expected a tar or tar\\+gzip layer"):
        scan_layers(tmp_path, image, lambda path: False)
