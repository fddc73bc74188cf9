"""Fetching, against a real index on loopback."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, MachineError, SourceError
from headrace.pipeline import index, sources
from headrace.pipeline.index import IndexSettings
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import load_pins

FILE = "demo-1.0.tar.gz"


def sdist(content: bytes = b"print('demo')\n", name: str = "demo-1.0/setup.py") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def wheel(content: bytes = b"print('demo')\n") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr("demo/__init__.py", content)
        zipped.writestr("demo-1.0.dist-info/RECORD", b"")
    return buffer.getvalue()


def offer(served: Path, *names: str) -> None:
    """Put files on the index by name."""
    (served / "index.html").write_text("".join(f'<a href="{name}">{name}</a>' for name in names))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Keep the test output clean."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index on loopback that holds one source archive; yields its folder."""
    folder = tmp_path / "index" / "demo"
    folder.mkdir(parents=True)
    (folder / FILE).write_bytes(sdist())
    (folder / "index.html").write_text(f'<a href="{FILE}">{FILE}</a>')
    handler = functools.partial(Quiet, directory=str(folder.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(index, "pip_settings", lambda: IndexSettings((url,), (), ""))
    yield folder
    server.shutdown()
    server.server_close()


def checkout(tmp_path: Path, archive: bytes, *, sha256: str = "", file: str = FILE) -> Layout:
    kind = "pypi wheel" if file.endswith(".whl") else "pypi sdist"
    digest = sha256 or hashlib.sha256(archive).hexdigest()
    root = tmp_path / "checkout"
    root.mkdir(exist_ok=True)
    (root / "pins.toml").write_text(
        f'[demo]\nversion = "1.0"\nkind = "{kind}"\nfile = "{file}"\nsha256 = "{digest}"\n'
        f'size = {len(archive)}\nlicense = "MIT"\nflavors = ["cpu"]\npatched = true\n'
    )
    return Layout(root)


def test_a_pin_is_fetched_checked_and_unpacked_once(tmp_path: Path, served: Path) -> None:
    layout = checkout(tmp_path, (served / FILE).read_bytes())
    assert [path.name for path in sources.fetch(layout)] == [FILE]
    assert (layout.sources / "demo-1.0/setup.py").read_bytes() == b"print('demo')\n"
    (served / FILE).unlink()
    sources.fetch(layout, "cpu")


def test_a_file_that_does_not_match_is_deleted_and_named(tmp_path: Path, served: Path) -> None:
    layout = checkout(tmp_path, (served / FILE).read_bytes(), sha256="cd" * 32)
    with pytest.raises(SourceError, match=rf"{FILE}: expected sha256 cdcd.*found [0-9a-f]{{64}}"):
        sources.fetch(layout)
    assert [p for p in layout.sources.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("there", [True, False])
def test_a_size_that_the_pinned_file_does_not_have_is_named(
    tmp_path: Path, served: Path, there: bool
) -> None:
    archive = (served / FILE).read_bytes()
    layout = checkout(tmp_path, archive)
    if there:
        sources.fetch(layout)
        (served / FILE).unlink()
    text = layout.pins.read_text()
    layout.pins.write_text(text.replace(f"size = {len(archive)}", "size = 7"))
    wanted = rf"pins\.toml: \[demo\] size: expected {len(archive)}, as {FILE} .* found 7; correct"
    with pytest.raises(ConfigurationError, match=wanted):
        sources.fetch(layout)


def test_a_damaged_archive_on_disk_is_fetched_again(tmp_path: Path, served: Path) -> None:
    layout = checkout(tmp_path, (served / FILE).read_bytes())
    (archive,) = sources.fetch(layout)
    archive.write_bytes(b"damaged")
    sources.fetch(layout)
    assert archive.read_bytes() == (served / FILE).read_bytes()


def test_a_damaged_tree_is_unpacked_again(tmp_path: Path, served: Path) -> None:
    layout = checkout(tmp_path, (served / FILE).read_bytes())
    sources.fetch(layout)
    (layout.sources / "demo-1.0/setup.py").write_text("edited")
    sources.fetch(layout)
    assert (layout.sources / "demo-1.0/setup.py").read_bytes() == b"print('demo')\n"


def test_an_unsafe_archive_leaves_no_tree(tmp_path: Path, served: Path) -> None:
    (served / FILE).write_bytes(sdist(name="demo-1.0/../../evil"))
    layout = checkout(tmp_path, (served / FILE).read_bytes())
    with pytest.raises(SourceError, match="inside the archive's folder"):
        sources.fetch(layout)
    assert [path.name for path in layout.sources.iterdir()] == ["archives"]


def test_a_file_that_the_index_lacks_is_named(tmp_path: Path, served: Path) -> None:
    layout = checkout(tmp_path, b"x", file="demo-1.0.post1.tar.gz")
    with pytest.raises(SourceError, match=r"\[demo\]: expected demo-1.0.post1.tar.gz on the index"):
        sources.fetch(layout)


def test_a_pin_without_hash_is_refused(tmp_path: Path, served: Path) -> None:
    layout = checkout(tmp_path, b"x")
    text = layout.pins.read_text()
    layout.pins.write_text(text.replace(hashlib.sha256(b"x").hexdigest(), ""))
    with pytest.raises(
        SourceError, match=r"\[demo\]: expected a sha256 of demo-1.0.tar.gz, found none"
    ):
        sources.fetch(layout)


def test_what_one_stage_alone_uses_waits_for_that_stage(tmp_path: Path, served: Path) -> None:
    layout = checkout(tmp_path, b"x", sha256="cd" * 32)
    with layout.pins.open("a") as pins:
        pins.write('only-for = "that stage"\n')
    assert sources.fetch(layout) == []
    with pytest.raises(SourceError, match="expected sha256 cdcd"):
        sources.fetch_pin(layout, load_pins(layout.pins).get("demo"))


def test_a_lost_network_is_one_line_that_names_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = IndexSettings(("http://user:token@127.0.0.1:9/simple",), (), "")
    monkeypatch.setattr(index, "pip_settings", lambda: nowhere)
    layout = checkout(tmp_path, b"x")
    with pytest.raises(MachineError, match="the package index does not answer") as stop:
        sources.fetch(layout)
    assert "\n" not in str(stop.value)
    assert "token" not in str(stop.value)


def test_another_version_is_brought_for_a_rebase(tmp_path: Path, served: Path) -> None:
    layout = checkout(tmp_path, (served / FILE).read_bytes())
    newer = "demo-1.1.tar.gz"
    (served / newer).write_bytes(sdist(b"new\n", "demo-1.1/setup.py"))
    offer(served, FILE, newer)
    pin = load_pins(layout.pins).get("demo")
    tree = sources.fetch_other_version(layout, pin, "1.1")
    assert (tree / "setup.py").read_bytes() == b"new\n"
    with pytest.raises(SourceError, match=r"expected a source archive of 9.9"):
        sources.fetch_other_version(layout, pin, "9.9")


def test_a_patched_wheel_is_unpacked_at_its_root(tmp_path: Path, served: Path) -> None:
    name = "demo-1.0-py3-none-any.whl"
    (served / name).write_bytes(wheel())
    offer(served, name)
    layout = checkout(tmp_path, wheel(), file=name)
    assert [path.name for path in sources.fetch(layout)] == [name]
    assert (layout.sources / "demo-1.0/demo/__init__.py").read_bytes() == b"print('demo')\n"


def test_another_wheel_of_the_same_tags_is_brought_for_a_rebase(
    tmp_path: Path, served: Path
) -> None:
    layout = checkout(tmp_path, wheel(), file="demo-1.0-py3-none-any.whl")
    pin = load_pins(layout.pins).get("demo")
    # An index offers these in any order, and a build of another platform is another tree.
    other, newer = "demo-1.1-cp311-cp311-manylinux_2_28_x86_64.whl", "demo-1.1-py3-none-any.whl"
    (served / "demo-1.1.tar.gz").write_bytes(sdist(b"source\n", "demo-1.1/demo/__init__.py"))
    (served / other).write_bytes(wheel(b"compiled\n"))
    (served / newer).write_bytes(wheel(b"new\n"))
    offer(served, "demo-1.1.tar.gz", other)
    with pytest.raises(SourceError, match=r"a wheel of 1\.1 like demo-1\.0-py3-none-any\.whl"):
        sources.fetch_other_version(layout, pin, "1.1")
    offer(served, "demo-1.1.tar.gz", other, newer)
    tree = sources.fetch_other_version(layout, pin, "1.1")
    assert (tree / "demo/__init__.py").read_bytes() == b"new\n"


def test_a_file_without_a_hash_yet_is_hashed(tmp_path: Path, served: Path) -> None:
    layout = checkout(tmp_path, b"x")
    pin = load_pins(layout.pins).get("demo").model_copy(update={"sha256": "", "size": 0})
    data = (served / FILE).read_bytes()
    assert sources.download_unlocked(layout, pin) == (hashlib.sha256(data).hexdigest(), len(data))


def test_a_kind_without_a_tree_has_no_other_version(tmp_path: Path) -> None:
    layout = checkout(tmp_path, b"x")
    layout.pins.write_text(layout.pins.read_text().replace("pypi sdist", "pytorch cpu"))
    with pytest.raises(ConfigurationError, match="found 'pytorch cpu'"):
        sources.fetch_other_version(layout, load_pins(layout.pins).get("demo"), "1.1")
