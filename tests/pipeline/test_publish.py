"""Publishing against a real registry: by digest, read back, tagged last, refused when in doubt."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from headrace.errors import HeadraceError, ImageError, MachineError, PublishError
from headrace.pipeline import publish as stage
from headrace.pipeline.daemon import ensure_daemon
from headrace.pipeline.layout import Layout
from headrace.pipeline.publish import publish
from headrace.pipeline.reference import Reference, parse_reference
from headrace.pipeline.registry import Registry
from headrace.pipeline.report import report_path, save_report
from tests.pipeline.sample_image import (
    Entry,
    layer_of,
    record_image,
    registry,
    static_program,
    write_image,
)
from tests.pipeline.test_report import CHECKS, OTHER, check, report
from tests.pipeline.toy import PINS

SAYS = "hello from a published image"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return static_program(tmp_path_factory.mktemp("program"), SAYS)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    # Nobody's own logins take part, and none is left behind.
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "pins.toml").write_text(PINS)
    return Layout(tmp_path)


def build(layout: Layout, program: bytes, note: str = "") -> str:
    """Make a small image of flavor cpu; return its digest."""
    folder = layout.image("cpu")
    layers = [layer_of({"program": Entry(program, 0o755)}), layer_of({"note": note})]
    digest = write_image(folder, layers, {"Entrypoint": ["/program"], "User": "10001"})
    record_image(folder, digest)
    return digest


def prove(layout: Layout, digest: str) -> None:
    save_report(layout, report(image=digest))


@pytest.fixture
def proved(layout: Layout, program: bytes, request: pytest.FixtureRequest) -> str:
    digest = build(layout, program, note=request.node.name)
    prove(layout, digest)
    return digest


@pytest.fixture
def name(request: pytest.FixtureRequest, host: str) -> str:
    """A repository of this test's own in the shared registry."""
    plain = "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")
    return f"{host}/headrace/{plain.replace('--', '-')}:1.0"


def tags(name: str) -> list[str]:
    reference = parse_reference(name)
    reply = httpx.get(f"{reference.base_url}/tags/list")
    return [] if reply.status_code == 404 else list(reply.json()["tags"] or [])


def refused(layout: Layout, name: str, message: str, image: str = "cpu") -> None:
    with pytest.raises(HeadraceError, match=message) as failure:
        publish(layout, image, name)
    assert "\n" not in str(failure.value)
    assert tags(name) == []


def test_a_proved_image_is_pushed_and_can_be_pulled_by_digest_and_run(
    layout: Layout, proved: str, name: str
) -> None:
    done = publish(layout, "cpu", name)
    assert done.pushed and done.digest == proved
    assert done.by_digest == f"{name.removesuffix(':1.0')}@{proved}"
    assert tags(name) == ["1.0"]
    with ensure_daemon(Layout.find()):
        subprocess.run(["docker", "pull", "--quiet", done.by_digest], check=True, timeout=60)
        try:
            ran = subprocess.run(
                ["docker", "run", "--rm", "--network", "none", done.by_digest],
                check=True,
                timeout=60,
                capture_output=True,
                text=True,
            )
            shown = subprocess.run(
                ["docker", "image", "inspect", "--format", "{{.Id}}", done.by_digest],
                check=True,
                timeout=60,
                capture_output=True,
                text=True,
            )
        finally:
            subprocess.run(["docker", "rmi", "--force", done.by_digest], check=True, timeout=60)
    assert ran.stdout.strip() == SAYS
    assert shown.stdout.strip() == proved


def test_doing_it_again_pushes_nothing(layout: Layout, proved: str, name: str) -> None:
    assert publish(layout, "cpu", name).pushed
    again = publish(layout, proved, name)
    assert not again.pushed
    assert tags(name) == ["1.0"]


def test_a_second_tag_on_the_same_image_is_added(layout: Layout, proved: str, name: str) -> None:
    publish(layout, "cpu", name)
    assert not publish(layout, "cpu", name.replace(":1.0", ":1.1")).pushed
    assert sorted(tags(name)) == ["1.0", "1.1"]


def test_a_tag_on_another_image_is_not_moved(
    layout: Layout, proved: str, name: str, program: bytes
) -> None:
    publish(layout, "cpu", name)
    other = build(layout, program, note="another")
    prove(layout, other)
    with pytest.raises(PublishError, match=f"expected a new tag, found one on {proved}"):
        publish(layout, "cpu", name)
    with Registry(parse_reference(name)) as client:
        assert client.tagged_digest() == proved
        assert client.manifest(other) == b""


def test_without_a_report_nothing_is_pushed(layout: Layout, program: bytes, name: str) -> None:
    digest = build(layout, program)
    refused(layout, name, f"expected a green report on {digest}, found none")


def test_a_report_under_another_digests_name_is_refused(
    layout: Layout, program: bytes, name: str
) -> None:
    digest = build(layout, program)
    prove(layout, OTHER)
    report_path(layout, OTHER).rename(report_path(layout, digest))
    refused(layout, name, f"expected one on {digest}, found one on {OTHER}")


@pytest.mark.parametrize("verdict", ["red", "void"])
def test_a_report_that_is_not_green_is_refused(
    layout: Layout, program: bytes, name: str, verdict: str
) -> None:
    digest = build(layout, program)
    checks = (check(CHECKS[0].name, "red" if verdict == "red" else "void"), *CHECKS[1:])
    save_report(layout, report(image=digest, checks=checks, verdict=verdict))
    refused(layout, name, f"digest is {verdict}")


def test_a_report_with_a_skipped_part_is_refused(layout: Layout, program: bytes, name: str) -> None:
    digest = build(layout, program)
    save_report(layout, report(image=digest, checks=CHECKS[1:]))
    refused(layout, name, "expected check digest, which was skipped")


def test_an_edited_report_is_refused(layout: Layout, proved: str, name: str) -> None:
    path = report_path(layout, proved)
    path.write_text(path.read_text().replace('"detail": "seen"', '"detail": "fine"', 1))
    refused(layout, name, "it was edited")


def test_a_report_that_is_cut_short_says_what_to_run(
    layout: Layout, proved: str, name: str
) -> None:
    path = report_path(layout, proved)
    path.write_text(path.read_text()[:99])
    with pytest.raises(PublishError, match=r"expected a report, found .*; run 'python build\.py"):
        publish(layout, "cpu", name)


def test_an_unlocked_pin_is_refused(layout: Layout, proved: str, name: str) -> None:
    text = "\n".join('sha256 = ""' if "sha256" in line else line for line in PINS.splitlines())
    layout.pins.write_text(text)
    refused(layout, name, "expected a sha256 for toy, found none")


def test_an_image_rebuilt_since_its_proof_is_refused(
    layout: Layout, proved: str, name: str, program: bytes
) -> None:
    digest = build(layout, program, note="rebuilt")
    refused(layout, name, f"expected a green report on {digest}, found none")
    refused(layout, name, f"{proved}: expected cpu, sm103 or the digest", image=proved)


def test_a_layout_that_was_touched_is_refused(layout: Layout, proved: str, name: str) -> None:
    folder = layout.image("cpu")
    manifest = json.loads((folder / "blobs/sha256" / proved.removeprefix("sha256:")).read_bytes())
    layer = folder / "blobs/sha256" / manifest["layers"][0]["digest"].removeprefix("sha256:")
    layer.write_bytes(layer.read_bytes() + b"\0")
    refused(layout, name, "expected sha256:.*; run `python build.py image --flavor cpu`$")


def test_nothing_built_is_refused(layout: Layout, name: str) -> None:
    with pytest.raises(ImageError, match="expected a built image, found none"):
        publish(layout, "cpu", name)
    refused(layout, name, "found no built image", image=OTHER)


def test_a_bad_name_is_refused_before_anything_is_read(layout: Layout) -> None:
    with pytest.raises(PublishError, match="unqualified names are guessed"):
        publish(layout, "cpu", "team/headrace:1")


def test_a_registry_that_is_away_is_one_line(layout: Layout, proved: str, host: str) -> None:
    with pytest.raises(MachineError, match=r"127\.0\.0\.1:1: expected a registry that answers"):
        publish(layout, "cpu", "127.0.0.1:1/headrace:1")


def test_a_blob_that_got_lost_leaves_no_tag(
    layout: Layout, proved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry takes everything and then loses a layer: the re-read finds it."""
    whole = stage.push

    with registry(tmp_path / "registry") as host:
        name = f"{host}/headrace:1"

        def push_and_lose(folder: Path, reference: Reference, digest: str) -> None:
            whole(folder, reference, digest)
            manifest = json.loads((folder / "blobs/sha256" / digest[7:]).read_bytes())
            lost = manifest["layers"][0]["digest"].removeprefix("sha256:")
            blobs = tmp_path / "registry/data/docker/registry/v2/blobs/sha256"
            (blobs / lost[:2] / lost / "data").unlink()

        monkeypatch.setattr(stage, "push", push_and_lose)
        refused(layout, name, "blob sha256:[0-9a-f]{64}: expected [0-9]+ bytes, found none")


def test_a_push_that_fails_leaves_no_tag(layout: Layout, proved: str, tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    with registry(folder) as host:
        name = f"{host}/headrace:1"
        (folder / "data/docker/registry/v2").mkdir(parents=True)
        # A file where the registry wants a folder, as after damage to its disk.
        (folder / "data/docker/registry/v2/blobs").write_text("")
        refused(layout, name, "skopeo|expected status")


USER, PASSWORD = "builder", "pass-word"
# bcrypt of PASSWORD, which is all that the registry's htpasswd takes.
HASHED = "$2b$05$abcdefghijklmnopqrstuulQElbHkP7vjLqXxb3Lzm18cJsfRyGH6"


def log_in(folder: Path, host: str, password: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """A registry that wants a password."""
    passwords = tmp_path / "passwords"
    passwords.write_text(f"{USER}:{HASHED}\n")
    extra = f"auth: {{htpasswd: {{realm: test, path: {passwords}}}}}\n"
    with registry(tmp_path / "guarded", extra) as host:
        yield host


def test_the_login_that_docker_stored_is_used_and_never_printed(
    layout: Layout, proved: str, guarded: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log_in(layout.root / "docker", guarded, PASSWORD)
    assert publish(layout, "cpu", f"{guarded}/headrace:1").pushed
    printed = "".join(capfd.readouterr())
    assert "published" in printed
    assert PASSWORD not in printed


def test_a_wrong_login_is_refused_and_never_printed(
    layout: Layout, proved: str, guarded: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log_in(layout.root / "docker", guarded, "other-word")
    with pytest.raises(PublishError, match="expected status 200, found 401") as failure:
        publish(layout, "cpu", f"{guarded}/headrace:1")
    assert "other-word" not in str(failure.value) + "".join(capfd.readouterr())


def test_no_login_says_how_to_log_in(layout: Layout, proved: str, guarded: str) -> None:
    with pytest.raises(PublishError, match=f"run 'docker login {guarded}'"):
        publish(layout, "cpu", f"{guarded}/headrace:1")


def test_a_credential_helper_is_asked(
    layout: Layout, proved: str, guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = layout.root / "bin/docker-credential-test"
    helper.parent.mkdir()
    answer = json.dumps({"Username": USER, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\nread host; [ \"$host\" = {guarded} ] && echo '{answer}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(helper.parent), prepend=os.pathsep)
    (layout.root / "docker").mkdir()
    config = {"credHelpers": {guarded: "test"}}
    (layout.root / "docker/config.json").write_text(json.dumps(config))
    assert publish(layout, "cpu", f"{guarded}/headrace:1").pushed


class Tokens(ThreadingHTTPServer):
    """A registry that wants a bearer token, and the service that hands them out."""

    asked: str = ""
    basic: str = ""


class TokenHandler(BaseHTTPRequestHandler):
    server: Tokens

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/token":
            self.server.asked = parse_qs(url.query)["scope"][0]
            self.server.basic = self.headers.get("Authorization", "")
            self.answer(200, json.dumps({"token": "letmein"}))
        elif self.headers.get("Authorization") == "Bearer letmein":
            self.answer(404, "{}")
        else:
            port = self.server.server_address[1]
            realm = f'Bearer realm="http://127.0.0.1:{port}/token",service="test"'
            self.answer(401, "{}", {"WWW-Authenticate": realm})

    def answer(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass


def test_a_bearer_token_is_fetched_with_the_stored_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with Tokens(("127.0.0.1", 0), TokenHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            host = f"127.0.0.1:{server.server_address[1]}"
            log_in(tmp_path, host, PASSWORD)
            with Registry(parse_reference(f"{host}/team/headrace:1")) as client:
                assert client.tagged_digest() == ""
        finally:
            server.shutdown()
            thread.join()
    assert server.asked == "repository:team/headrace:pull,push"
    assert base64.b64decode(server.basic.removeprefix("Basic ")) == f"{USER}:{PASSWORD}".encode()
