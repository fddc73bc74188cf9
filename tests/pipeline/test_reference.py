"""Names to publish under are qualified, lower-case, and carry a tag."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, ImageError, PublishError
from headrace.pipeline import verify
from headrace.pipeline.layout import Layout
from headrace.pipeline.reference import parse_reference
from headrace.pipeline.target import require_target

DIGEST = "sha256:" + "1" * 64


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag", "base_url"),
    [
        ("r.example/headrace:1", "r.example", "headrace", "1", "https://r.example/v2/headrace"),
        ("r.example:5000/a/b-c:v_1.0-x", "r.example:5000", "a/b-c", "v_1.0-x",
         "https://r.example:5000/v2/a/b-c"),
        ("localhost/a:1", "localhost", "a", "1", "http://localhost/v2/a"),
        ("127.0.0.1:5000/a:1", "127.0.0.1:5000", "a", "1", "http://127.0.0.1:5000/v2/a"),
        ("[::1]:5000/a:1", "[::1]:5000", "a", "1", "http://[::1]:5000/v2/a"),
        ("10.0.0.1:5000/a:1", "10.0.0.1:5000", "a", "1", "https://10.0.0.1:5000/v2/a"),
        ("127.0.0.1.r.example/a:1", "127.0.0.1.r.example", "a", "1",
         "https://127.0.0.1.r.example/v2/a"),
        ("docker.io/me/a:1", "docker.io", "me/a", "1", "https://registry-1.docker.io/v2/me/a"),
    ],
)  # fmt: skip
def test_good_names(text: str, host: str, repository: str, tag: str, base_url: str) -> None:
    found = parse_reference(text)
    assert (found.host, found.repository, found.tag) == (host, repository, tag)
    assert found.base_url == base_url
    assert str(found) == text
    assert found.at(DIGEST) == f"{host}/{repository}@{DIGEST}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("headrace", "a registry host before the repository"),
        ("headrace:1", "a registry host before the repository"),
        ("team/headrace:1", "unqualified names are guessed"),
        ("r.example/", "a repository after the host"),
        ("r.example/:1", "a repository after the host"),
        ("r.example/Team/a:1", "lower-case letters"),
        ("R.example/a:1", "a lower-case host"),
        ("r.example/a//b:1", "lower-case letters"),
        ("r.example/../a:1", "lower-case letters"),
        ("r.example/a b:1", "lower-case letters"),
        ("r.example/a", "a tag of letters"),
        ("r.example/a:", "a tag of letters"),
        ("r.example/a:-x", "a tag of letters"),
        ("r.example/a:" + "x" * 129, "a tag of letters"),
        (f"r.example/a@{DIGEST}", "a tag and no digest"),
        ("https://r.example/a:1", "no scheme"),
        ("me:word@r.example/a:1", "a tag and no digest"),
        ("", "a registry host"),
    ],
)
def test_bad_names_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(PublishError, match=message) as refused:
        parse_reference(text)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"--to {text}: expected HOST[:PORT]/REPOSITORY:TAG")


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("sm103", "expected a built image, found none; run `python build.py image --flavor sm103`"),
        (
            "nope",
            "expected a flavor (cpu, sm103) or an image's name with its tag or digest, found "
            "'nope'",
        ),
        ("", "expected a flavor (cpu, sm103) or an image's name with its tag or digest, found ''"),
        ("--x/y:1", "expected a flavor (cpu, sm103) or an image's name"),
        ("@sha256:" + "a" * 64, "expected a flavor (cpu, sm103) or an image's name"),
        ("foo@sha256:123", "64 hexadecimal digits after 'foo@', found 'sha256:123'"),
        ("foo@", "64 hexadecimal digits after 'foo@', found ''"),
        ("cpu", "expected a built image, found none; run `python build.py image --flavor cpu`"),
    ],
)
def test_what_cannot_be_an_image_is_refused_before_a_daemon_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, complaint: str
) -> None:
    def start(layout: Layout) -> Iterator[None]:
        raise AssertionError("a daemon for nothing")

    monkeypatch.setattr(verify, "ensure_daemon", start)
    with pytest.raises((ConfigurationError, ImageError)) as refused:
        verify.prove(Layout(tmp_path), target)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "target", ["toy:1", "host/toy", "[::1]:5000/toy", "toy@sha256:" + "a" * 64, "sha256:12ab"]
)
def test_a_name_that_a_daemon_may_know_passes(tmp_path: Path, target: str) -> None:
    require_target(Layout(tmp_path), target)
