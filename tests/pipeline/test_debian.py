"""Locking and fetching Debian packages, against a mirror that is a folder."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import (
    ConfigurationError,
    ImageError,
    MachineError,
    MirrorMovedError,
    SourceError,
)
from headrace.pipeline import debian, mirrors
from headrace.pipeline.base import require_locked
from headrace.pipeline.debian import fetch_debian
from headrace.pipeline.debian_lock import (
    SETS,
    Deb,
    DebianLock,
    format_lock,
    lock_path,
    parse_uris,
    read_lock,
)
from headrace.pipeline.layout import Layout
from headrace.pipeline.mirrors import Source, choose_sources, find_sources

COMMITTED = lock_path(Layout.find())
SHA = "0" * 64


class TrustedSource(Source):
    """A mirror without signatures, which only a test may trust."""

    def line(self) -> str:
        return f"deb [arch=amd64 trusted=yes] {self.uri} {self.release} main"


class Mirror:
    """A Debian mirror in a folder, with real packages that hold nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "dists/bookworm/main/binary-amd64/Packages"
        self.index.parent.mkdir(parents=True)
        (folder / "dists/bookworm/Release").write_text(
            "Suite: bookworm\nCodename: bookworm\nDate: Sat, 01 Aug 2026 00:00:00 UTC\n"
            "Architectures: amd64\nComponents: main\n"
        )
        self.index.write_text("")

    def add(self, name: str, version: str, *, listed: bool = True) -> Deb:
        """Build a package into the pool; `listed` puts it into the index as well."""
        tree = self.folder / "tree" / name
        (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
        control = (
            f"Package: {name}\nVersion: {version}\nArchitecture: all\n"
            "Maintainer: tests <tests@example.org>\nDescription: nothing\n"
        )
        (tree / "DEBIAN/control").write_text(control)
        path = f"pool/main/{name[0]}/{name}/{name}_{version.split(':')[-1]}_all.deb"
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["dpkg-deb", "--build", "--root-owner-group", tree, target],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        data = target.read_bytes()
        sha = hashlib.sha256(data).hexdigest()
        if listed:
            with self.index.open("a") as stream:
                stream.write(f"{control}Filename: {path}\nSize: {len(data)}\nSHA256: {sha}\n\n")
        return Deb("base", name, version, "all", sha, len(data), path)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "checkout/locks").mkdir(parents=True)
    return Layout(tmp_path / "checkout")


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    made = Mirror(tmp_path / "mirror")
    # apt copies from such a mirror, as it would from a server.
    source = TrustedSource(f"copy:{made.folder}", "bookworm")
    monkeypatch.setattr(debian, "find_sources", lambda suite: [source])
    return made


def write_lock(layout: Layout, *debs: Deb) -> None:
    lock_path(layout).write_text(format_lock(DebianLock("bookworm", 1, debs)))


def test_fetch_brings_exactly_the_locked_files_and_indexes_them(
    layout: Layout, mirror: Mirror
) -> None:
    one, two = mirror.add("one", "1.0"), mirror.add("two", "1:2.0", listed=False)
    folder = debian.debs_folder(layout)
    folder.mkdir(parents=True)
    (folder / "stranger_1_all.deb").write_bytes(b"not locked")
    write_lock(layout, one, two)
    assert fetch_debian(layout) == (one, two)
    assert sorted(path.name for path in folder.glob("*.deb")) == [one.file, two.file]
    index = (folder / "Packages").read_text()
    assert re.findall(r"^Package: (.+)$", index, re.MULTILINE) == ["one", "two"]
    assert re.findall(r"^SHA256: (.+)$", index, re.MULTILINE) == [one.sha256, two.sha256]
    assert re.findall(r"^Filename: (.+)$", index, re.MULTILINE) == [
        f"./{one.file}",
        f"./{two.file}",
    ]


def test_fetch_again_asks_no_mirror(
    layout: Layout, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock(layout, mirror.add("one", "1.0"))
    fetch_debian(layout)

    def refuse(suite: str) -> list[Source]:
        raise AssertionError("asked for a mirror although nothing is missing")

    monkeypatch.setattr(debian, "find_sources", refuse)
    fetch_debian(layout)


def test_a_damaged_file_is_named_and_fetched_again(
    layout: Layout, mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    one = mirror.add("one", "1.0")
    write_lock(layout, one)
    fetch_debian(layout)
    path = debian.debs_folder(layout) / one.file
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    fetch_debian(layout)
    assert path.read_bytes() == good
    assert f"{path}: expected sha256 {one.sha256}, found another file" in capsys.readouterr().err


def test_a_mirror_that_moved_on_is_named_with_both_versions(layout: Layout, mirror: Mirror) -> None:
    kept, gone = mirror.add("kept", "1.0"), mirror.add("gone", "1.0", listed=False)
    (mirror.folder / gone.path).unlink()
    mirror.add("gone", "1.1")
    write_lock(layout, kept, gone)
    with pytest.raises(MirrorMovedError, match=r"gone 1\.0 → 1\.1.*python build\.py lock debian"):
        fetch_debian(layout)
    # What was there is kept, so the next run starts where this one ended.
    assert (debian.debs_folder(layout) / kept.file).exists()


def test_a_package_that_vanished_is_named(layout: Layout, mirror: Mirror) -> None:
    mirror.add("other", "1.0")
    write_lock(layout, Deb("base", "lost", "3.0", "all", SHA, 1, "pool/main/l/lost/lost_3_all.deb"))
    with pytest.raises(MirrorMovedError, match=r"lost 3\.0 → nothing"):
        fetch_debian(layout)


def test_other_bytes_under_the_locked_version_are_no_move(layout: Layout, mirror: Mirror) -> None:
    one = mirror.add("one", "1.0")
    forged = mirror.folder / one.path
    forged.write_bytes(forged.read_bytes() + b"x")
    write_lock(layout, one)
    with pytest.raises(SourceError, match=r"one_1\.0_all\.deb.*not served with the locked sha256"):
        fetch_debian(layout)
    assert not list(debian.debs_folder(layout).glob("*.deb"))


def test_lock_takes_essential_packages_and_sorts_the_sets(
    layout: Layout, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("apt", "ca-certificates", "usr-is-merged", "python3", "libnuma1"):
        mirror.add(name, "1.0")
    mirror.add("python3-pip-whl", "1:1.0")
    mirror.add("g++", "4:1.0")
    mirror.add("libpython3-dev", "1.0")
    mirror.add("unwanted", "1.0")
    mirror.add("needed", "1.0")
    text = mirror.index.read_text()
    mirror.index.write_text(
        text.replace("Package: needed\n", "Package: needed\nPriority: required\n")
    )
    lock = debian.lock_debian(layout)
    assert read_lock(lock_path(layout)) == lock
    assert {deb.name for deb in lock.of("base")} == {
        "apt", "ca-certificates", "needed", "usr-is-merged",
    }  # fmt: skip
    assert [deb.name for deb in lock.of("runtime")] == ["libnuma1", "python3"]
    assert [(deb.name, deb.version) for deb in lock.of("tools")] == [("python3-pip-whl", "1:1.0")]
    assert [deb.name for deb in lock.of("compiler")] == ["g++", "libpython3-dev"]
    assert lock.epoch == 1785542400


def test_the_committed_lock_names_its_command_and_no_host() -> None:
    text = COMMITTED.read_text()
    assert text.splitlines()[0] == "# Generated by `python build.py lock debian`; do not edit."
    assert "://" not in text
    assert not re.search(r"\b(deb|ftp|security|snapshot)\.[a-z.]+\b", text)
    lock = read_lock(COMMITTED)
    assert format_lock(lock) == text
    names = {chosen: {deb.name for deb in lock.of(chosen)} for chosen in SETS}
    compiler = names.pop("compiler")
    assert {"g++", "gcc", "binutils", "libc6-dev", "libpython3.11-dev"} <= compiler
    assert {"apt", "ca-certificates", "dpkg", "libc6"} <= names["base"]
    assert {"python3", "python3.11", "libnuma1"} <= names["runtime"]
    assert names["tools"] == {"python3-pip-whl"}
    assert not {"gcc", "g++", "make", "cpp", "binutils"} & set().union(*names.values())


LINE = f"base one 1.0 all {SHA} 10 pool/main/o/one/one_1.0_all.deb"
HEAD = "# Generated\n# suite bookworm epoch 1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ":2: expected '# suite NAME epoch SECONDS'"),
        ("# Generated\n# suite bookworm\n", ":2: expected '# suite"),
        (HEAD + LINE.replace("base", "extra"), ":3: expected 'set name version"),
        (HEAD + LINE + "\n" + LINE.replace("10 pool", "ten pool"), ":4: expected 'set"),
        (HEAD + LINE.replace(SHA, SHA[1:]), ":3: expected 'set"),
        (HEAD + LINE.replace("pool/main", "pool/../../etc"), ":3: expected 'set"),
        (HEAD + LINE.replace("pool/main", "http://host/pool"), ":3: expected 'set"),
        (HEAD + LINE + " more", ":3: expected 'set"),
    ],
)
def test_a_malformed_lock_is_refused_with_its_line(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "lock.txt"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        read_lock(path)
    assert f"{path}{expected}" in str(refused.value)
    assert "python build.py lock debian" in str(refused.value)


def test_a_missing_lock_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no file; run `python build\.py lock debian`"):
        read_lock(tmp_path / "lock.txt")


def test_uris_give_the_pool_path_and_the_decoded_version() -> None:
    uri = "http://m.example/debian/pool/main/l/login/login_4.13%2bd_amd64.deb"
    line = f"'{uri}' login_1%3a4.13+d_amd64.deb 12 SHA256:{SHA}\n"
    path = "pool/main/l/login/login_4.13+d_amd64.deb"
    assert parse_uris(line, "base") == [Deb("base", "login", "1:4.13+d", "amd64", SHA, 12, path)]


@pytest.mark.parametrize(
    "line",
    [
        "'http://m.example/debian/pool/main/o/one_1_all.deb' one_1_all.deb 12 MD5Sum:00",
        f"'http://m.example/debian/one_1_all.deb' one_1_all.deb 12 SHA256:{SHA}",
    ],
)
def test_a_uri_without_sha256_or_pool_is_refused(line: str) -> None:
    with pytest.raises(MachineError, match="expected a package with its SHA256"):
        parse_uris(line, "base")


TARGETS = [
    "http://m.example/debian/ bookworm main",
    "http://m.example/debian/ bookworm contrib",
    "http://m.example/debian/ bookworm-updates main",
    "http://s.example/debian-security/ bookworm-security main",
    "http://m.example/debian/ trixie main",
    "https://other.example/node nodistro main",
]


def test_sources_are_the_suites_three_pockets_and_nothing_else() -> None:
    assert choose_sources(TARGETS, "bookworm", "bookworm") == [
        Source("http://m.example/debian", "bookworm"),
        Source("http://m.example/debian", "bookworm-updates"),
        Source("http://s.example/debian-security", "bookworm-security"),
    ]


def test_a_host_of_another_release_lends_its_mirror() -> None:
    targets = [line.replace("bookworm", "forky") for line in TARGETS]
    assert Source("http://s.example/debian-security", "bookworm-security") in choose_sources(
        targets, "bookworm", "forky"
    )
    assert choose_sources(targets, "bookworm", "") == []


def silent(*args: object, **kwargs: object) -> str:
    return ""


def answering(text: str) -> Callable[..., str]:
    def call(*args: object, **kwargs: object) -> str:
        return text

    return call


def test_the_users_mirror_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "call", answering("\n".join(TARGETS)))
    monkeypatch.setenv(mirrors.MIRROR_VARIABLE, "http://mine.example/debian/")
    assert [source.uri for source in find_sources("bookworm")] == [
        "http://mine.example/debian", "http://mine.example/debian",
        "http://mine.example/debian-security",
    ]  # fmt: skip


def test_no_mirror_at_all_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "call", silent)
    monkeypatch.delenv(mirrors.MIRROR_VARIABLE, raising=False)
    with pytest.raises(MachineError, match=mirrors.MIRROR_VARIABLE):
        find_sources("bookworm")


STATUS = "Package: one\nStatus: install ok installed\nVersion: 1.0\n"


def test_the_base_holds_exactly_the_locked_packages() -> None:
    one = Deb("base", "one", "1.0", "all", SHA, 1, "pool/o.deb")
    require_locked(STATUS, [one])


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (STATUS.replace("1.0", "1.1"), "one 1.0, one 1.1"),
        (STATUS.replace("install ok installed", "install ok unpacked"), "one 1.0"),
        (STATUS + "\nPackage: two\nStatus: install ok installed\nVersion: 2\n", "two 2"),
    ],
)
def test_another_base_is_refused(status: str, named: str) -> None:
    one = Deb("base", "one", "1.0", "all", SHA, 1, "pool/o.deb")
    with pytest.raises(ImageError, match=f"found a difference in {named}"):
        require_locked(status, [one])


def test_a_lock_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_bytes(HEAD.encode() + b"\xff" + LINE.encode())
    with pytest.raises(ConfigurationError, match=r"lock\.txt:3: expected UTF-8, found byte 0xff"):
        read_lock(tmp_path / "lock.txt")
