"""Building, loading and reproducing the image: the real Dockerfile, with three tiny wheels."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, ImageError
from headrace.pipeline import bake, image, lockfiles, reproduce
from headrace.pipeline.base import base_folder
from headrace.pipeline.daemon import ensure_daemon
from headrace.pipeline.debian import debs_folder, fetch_debian
from headrace.pipeline.debian_lock import lock_path, read_lock
from headrace.pipeline.image import ImageResult, build_image, load_image, read_image
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import Manifest
from headrace.pipeline.oci import Image, blob_path, read_layout
from headrace.pipeline.revision import Revision, read_revision
from tests.pipeline.sample_image import record_image, write_image

CHECKOUT = Layout.find()
DOCKERFILE = (CHECKOUT.docker / "Dockerfile").read_text()
GIT = ("git", "-c", "user.name=tests", "-c", "user.email=tests@example.org")


def nothing(layout: Layout, flavor: str) -> None:
    """Stand in for the download of the real wheels."""


def write_wheel(folder: Path, name: str, version: str, source: str) -> str:
    """Write a wheel of one module; return its sha256."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as zipped:
        for member, text in files.items():
            zipped.writestr(zipfile.ZipInfo(member), text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_checkout(root: Path) -> Layout:
    """Make a git checkout that builds a small image: this one's docker folder, tiny wheels."""
    made = Layout(root)
    for name in ("LICENSE", "NOTICE", "pins.toml"):
        made.root.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT.root / name, made.root)
    shutil.copytree(CHECKOUT.docker, made.docker)
    shutil.copytree(CHECKOUT.root / "ci", made.root / "ci")
    (made.root / ".gitignore").write_text("/build/\n")
    house = made.wheelhouse("cpu")
    torch = write_wheel(house, "torch", "1.0", "VALUE = 1\n")
    engine = write_wheel(house, "engine", "1.0", "import torch\n")
    made.locks.mkdir()
    (made.locks / "cpu.txt").write_text(
        f"engine==1.0 --hash=sha256:{engine}\ntorch==1.0 --hash=sha256:{torch}\n"
    )
    shutil.copy(lock_path(CHECKOUT), made.locks)
    debs_folder(made).parent.mkdir(parents=True)
    shutil.copytree(debs_folder(CHECKOUT), debs_folder(made))
    if "debian base" in Manifest(CHECKOUT).stages:
        # The base that `make build` made; reproducing it is a test of its own below.
        shutil.copytree(base_folder(CHECKOUT), base_folder(made))
        stage = {"debian base": Manifest(CHECKOUT).stages["debian base"]}
        made.manifest.write_text(json.dumps({"schema": 1, "stages": stage}))
    write_own_wheels(made, "cpu")
    made.patched.mkdir()
    (made.sources / "archives").mkdir(parents=True)
    (made.patched / "lmcache-0.5.5.json").write_text('{"series_sha256": "abc", "files": {}}')
    subprocess.run([*GIT, "init", "--quiet", root], check=True)
    commit(made)
    return made


def write_own_wheels(layout: Layout, flavor: str) -> None:
    write_wheel(layout.wheels(flavor), "lmcache", "0.5.5+headrace.9", "import engine\n")
    write_wheel(layout.wheels(flavor), "headrace", "1.0", "import lmcache\n")


def commit(layout: Layout) -> None:
    git = [*GIT, "-C", str(layout.root)]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    # `make build` fetched them; a checkout without a build fetches them now.
    fetch_debian(CHECKOUT)
    return make_checkout(tmp_path_factory.mktemp("image") / "checkout")


@pytest.fixture(scope="module")
def built(checkout: Layout) -> ImageResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockfiles, "fetch_wheelhouse", nothing)
        return build_image(checkout, "cpu")


def members(folder: Path, layer: str) -> dict[str, tarfile.TarInfo]:
    data = gzip.decompress(blob_path(folder, layer).read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: member for member in tar}


@pytest.mark.timeout(900)
def test_the_image_says_what_it_is(built: ImageResult, checkout: Layout) -> None:
    found = read_layout(built.path, check_layers=True)
    revision = read_revision(checkout)
    assert not revision.dirty
    assert found.digest == built.digest
    assert found.labels == {
        "org.opencontainers.image.title": "headrace",
        "org.opencontainers.image.version": "0.5.5+headrace.9",
        "org.opencontainers.image.revision": revision.name,
        "org.opencontainers.image.created": revision.created,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.headrace.series.sha256": "abc",
        "org.headrace.flavor": "cpu",
    }
    assert found.config["created"] == revision.created
    settings = found.config["config"]
    assert {"TORCHDYNAMO_DISABLE=1", "VLLM_USE_AOT_COMPILE=0"} <= set(settings["Env"])
    assert not [pair for pair in settings["Env"] if pair.startswith("CUDA")]
    assert settings["User"] == "10001:10001"
    assert settings["Entrypoint"] == ["headrace", "serve"]
    assert built.base == read_layout(base_folder(checkout)).digest
    assert json.loads((checkout.build / "image/cpu.json").read_text())["digest"] == built.digest


@pytest.mark.timeout(900)
def test_the_layers_hold_no_time_of_the_build_and_no_tool(
    built: ImageResult, checkout: Layout
) -> None:
    epoch = read_lock(lock_path(checkout)).epoch
    names: set[str] = set()
    for layer in read_layout(built.path).layers:
        held = members(built.path, layer)
        assert not [name for name, member in held.items() if member.mtime > epoch]
        names |= {name.removeprefix("./") for name in held}
    programs = {Path(name).name for name in names if re.match(r"(usr|opt/headrace)/s?bin/", name)}
    assert "python3.11" in programs
    assert not programs & {"gcc", "g++", "cc", "ld", "make", "pip", "pip3", "uv", "curl"}
    assert not [name for name in names if name.endswith((".whl", ".deb", ".pip"))]
    assert not [name for name in names if re.match(r"(mnt|srv|media|tmp|dev|root/\.cache)/.", name)]
    assert "usr/share/doc/headrace/LICENSE" in names
    assert "opt/headrace/lib/python3.11/site-packages/__pycache__/torch.cpython-311.pyc" in names


@pytest.mark.timeout(900)
def test_nothing_to_do_runs_no_build(
    built: ImageResult, checkout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("baked although nothing changed")

    monkeypatch.setattr(image, "bake", refuse)
    monkeypatch.setattr(lockfiles, "fetch_wheelhouse", nothing)
    assert build_image(checkout, "cpu") == built


@pytest.mark.timeout(900)
def test_another_commit_shares_every_layer(
    built: ImageResult, checkout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockfiles, "fetch_wheelhouse", nothing)
    later = Revision("f" * 40, read_revision(checkout).epoch + 100)
    other = build_image(checkout, "cpu", destination=tmp_path / "other", revision=later)
    assert other.digest != built.digest
    assert read_layout(other.path).layers == read_layout(built.path).layers


@pytest.mark.timeout(1200)
def test_a_second_build_elsewhere_has_the_same_digest(
    built: ImageResult, checkout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockfiles, "fetch_wheelhouse", nothing)

    def prepare(copy: Layout, flavor: str) -> None:
        assert copy.build != checkout.build
        assert copy.work == checkout.work == checkout.build / "work"
        write_own_wheels(copy, flavor)
        copy.patched.mkdir()
        shutil.copy(checkout.patched / "lmcache-0.5.5.json", copy.patched)

    rows = reproduce.reproduce(checkout, "cpu", build_wheels=prepare)
    assert [row.name.split("-")[0] for row in rows] == ["headrace", "lmcache", "image cpu"]
    assert all(row.equal for row in rows)
    assert rows[-1].second == built.digest


@pytest.mark.timeout(900)
def test_the_loaded_image_runs_without_a_network_as_nobody(
    built: ImageResult, checkout: Layout
) -> None:
    program = "import headrace, os, sys; print(os.getuid(), sys.modules['torch'].VALUE)"
    with ensure_daemon(checkout):
        name = load_image(checkout, "cpu")
        try:
            done = subprocess.run(
                ["docker", "run", "--rm", "--network=none", "--read-only", "--entrypoint=python",
                 name, "-c", program],
                capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
        finally:
            subprocess.run(["docker", "image", "rm", name], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "10001 1\n"), done.stderr


def test_a_wheel_that_differs_is_named(
    checkout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layer = read_layout_of("sha256:1")
    monkeypatch.setattr(reproduce, "read_layout", lambda folder: layer)
    result = ImageResult(
        flavor="cpu", digest="sha256:1", path=tmp_path, reference="r", base="b", version="v",
        revision=read_revision(checkout).name, series_sha256="s", size=1, layers=(),
    )  # fmt: skip
    monkeypatch.setattr(image, "read_image", lambda layout, flavor: result)
    monkeypatch.setattr(image, "build_image", lambda *args, **kwargs: result)

    def differ(copy: Layout, flavor: str) -> None:
        write_own_wheels(copy, flavor)
        write_wheel(copy.wheels(flavor), "headrace", "1.0", "import other\n")

    with pytest.raises(ImageError, match=r"difference in headrace-1\.0-py3-none-any\.whl;"):
        reproduce.reproduce(checkout, "cpu", build_wheels=differ)


def read_layout_of(digest: str) -> Image:
    return Image(digest, "sha256:2", {}, (), (), 0)


def test_reproduce_refuses_an_image_of_another_commit(
    checkout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = ImageResult("cpu", "sha256:1", tmp_path, "r", "old", "v", "s", "b", 1, ())
    monkeypatch.setattr(image, "read_image", lambda layout, flavor: result)
    with pytest.raises(ConfigurationError, match="found one of old; run `python build"):
        reproduce.reproduce(checkout, "cpu", build_wheels=lambda layout, flavor: None)


@pytest.mark.parametrize(
    "name", ["debian:bookworm-slim", "debian", "debian@sha256:12", "a b@sha256:" + "0" * 64]
)
def test_a_base_image_without_digest_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"BASE_IMAGE: expected NAME@sha256:"):
        build_image(CHECKOUT, "cpu", base_image=name)


def test_a_base_image_by_digest_is_accepted() -> None:
    image.require_digest("registry.example:5000/debian:12@sha256:" + "0" * 64)
    image.require_digest(None)


def test_an_unknown_flavor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="found 'gpu'"):
        build_image(CHECKOUT, "gpu")


def test_no_image_yet_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"run `python build\.py image --flavor cpu`"):
        read_image(Layout(tmp_path), "cpu")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ("[]", "a JSON list, no object"),
        pytest.param("[" * 100_000, "nesting without end", id="nesting"),
        ({"digest": None}, "digest: Field required"),
        ({"reference": 3}, "reference: Input should be a valid string"),
        ({"layers": "sha256:1"}, "layers: Input should be a valid tuple"),
        ({"flavor": "sm103"}, "one of 'sm103'"),
    ],
)
def test_a_broken_record_of_an_image_is_one_line(
    tmp_path: Path, change: str | dict[str, object], found: str
) -> None:
    folder = Layout(tmp_path).image("cpu")
    record_image(folder, write_image(folder, [], {}))
    record = folder.with_suffix(".json")
    if isinstance(change, dict):
        values = {**json.loads(record.read_text()), **change}
        change = json.dumps({key: value for key, value in values.items() if value is not None})
    assert read_image(Layout(tmp_path), "cpu")
    record.write_text(change)
    with pytest.raises(ImageError) as refused:
        read_image(Layout(tmp_path), "cpu")
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{record}: expected ")
    assert f"found {found}" in line
    assert line.endswith("; run `python build.py image --flavor cpu`")


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"manifests": [3]}', '{"manifests": [{"digest": "latest"}]}']
)
def test_a_broken_layout_of_an_image_is_one_line(tmp_path: Path, index: str) -> None:
    folder = Layout(tmp_path).image("cpu")
    record_image(folder, write_image(folder, [], {}))
    (folder / "index.json").write_text(index)
    with pytest.raises(ImageError) as refused:
        read_image(Layout(tmp_path), "cpu")
    (line,) = str(refused.value).splitlines()
    assert line.startswith(str(folder))
    assert line.endswith("; run `python build.py image --flavor cpu`")


def test_a_blob_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path, [], {})
    index = json.loads((tmp_path / "index.json").read_text())
    manifest = json.loads(blob_path(tmp_path, index["manifests"][0]["digest"]).read_bytes())
    index["manifests"][0]["digest"] = manifest["config"]["digest"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ImageError, match=r"expected one OCI image, found KeyError\('digest'\)"):
        read_layout(tmp_path)


def test_a_record_of_another_image_is_refused(built: ImageResult, tmp_path: Path) -> None:
    folder = tmp_path / "build/image"
    shutil.copytree(built.path, folder / "cpu")
    record = json.loads(built.path.with_suffix(".json").read_text())
    (folder / "cpu.json").write_text(json.dumps({**record, "digest": "sha256:" + "0" * 64}))
    with pytest.raises(ImageError, match=f"found {built.digest}"):
        read_image(Layout(tmp_path), "cpu")


def test_uncommitted_changes_are_labelled(tmp_path: Path) -> None:
    made = Layout(tmp_path)
    subprocess.run([*GIT, "init", "--quiet", tmp_path], check=True)
    (tmp_path / "file").write_text("one")
    commit(made)
    clean = read_revision(made)
    (tmp_path / "file").write_text("two")
    assert not clean.dirty
    assert read_revision(made) == Revision(f"{clean.name}-dirty", clean.epoch)


def test_a_folder_without_commits_is_refused(tmp_path: Path) -> None:
    subprocess.run([*GIT, "init", "--quiet", tmp_path], check=True)
    with pytest.raises(ConfigurationError, match="build from a git clone"):
        read_revision(Layout(tmp_path))


def test_every_file_of_the_docker_folder_decides_the_image() -> None:
    assert sorted(bake.DOCKER_FILES) == sorted(path.name for path in CHECKOUT.docker.iterdir())


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--no-color", CHECKOUT.docker / "Dockerfile"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert "hadolint ignore" not in DOCKERFILE


def test_no_build_step_has_a_network_or_pulls_a_frontend() -> None:
    steps = re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE)
    assert len(steps) == 5
    assert all(step.startswith("--network=none ") for step in steps)
    assert not re.search(r"^#\s*syntax\s*=", DOCKERFILE, re.MULTILINE)
    assert not re.search(r"^(COPY|ADD) ", DOCKERFILE, re.MULTILINE)
