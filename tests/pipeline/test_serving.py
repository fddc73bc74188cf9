"""An engine that needs a GPU gets it from docker, or the check says where it would."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import HeadraceError, ImageError
from headrace.pipeline import container, gpu, proofs_sm103, serving
from headrace.pipeline.container import Outcome
from headrace.pipeline.layout import Layout
from headrace.pipeline.subject import RefutedError, Subject, UnprovedError
from tests.pipeline.gpu_image import FLASHINFER
from tests.pipeline.toy import PINS

DIGEST = "sha256:" + "1" * 64
B300 = "10.3, NVIDIA B300 SXM6 AC"


class Docker:
    """Stands for the daemon: notes the words, and fails at the command `refuses`."""

    def __init__(self, refuses: str = "", ended: str = "true 0") -> None:
        self.refuses, self.ended = refuses, ended
        self.said: list[list[str]] = []

    def call(self, words: list[str], *, error: type[HeadraceError], timeout: float) -> str:
        self.said.append([str(word) for word in words])
        if words[1] == self.refuses:
            raise error(f"'docker' ended with status 1: docker {words[1]}")
        return DIGEST if "{{.Image}}" in words else self.ended

    def run(self, words: list[str], stdin: str, timeout: float) -> Outcome:
        self.said.append(["docker", *words])
        facts = {"seconds_to_health": 30.0, "tokens": 4}
        return Outcome(0, json.dumps({"problems": [], "facts": facts}), "")

    @property
    def created(self) -> list[str]:
        return next(words for words in self.said if words[1] == "create")


class Fake(Subject):
    """An image with the right command, of which nothing else is asked."""

    @property
    def image(self) -> Any:
        return SimpleNamespace(config={"config": {"Entrypoint": ["headrace", "serve"]}})


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    Layout(tmp_path).logs.mkdir(parents=True)
    Layout(tmp_path).pins.write_text(PINS + FLASHINFER)
    return Fake(Layout(tmp_path), "sm103", DIGEST, tmp_path, "headrace:1", "1", "b", "a")


def use(monkeypatch: pytest.MonkeyPatch, docker: Docker, *gpus: str, mode: str = "aot") -> None:
    monkeypatch.setattr(gpu, "QUERY", ("printf", "%s\n", *gpus) if gpus else ("no-nvidia-smi",))
    monkeypatch.setattr(container, "call", docker.call)
    monkeypatch.setattr(container, "_docker", docker.run)
    monkeypatch.setattr(container.Container, "save_log", lambda made, path: Path.touch(path))
    monkeypatch.setattr(proofs_sm103, "built_record", lambda subject: {"mode": mode})


def test_an_engine_gets_all_gpus_no_network_and_nothing_meant_for_cpus(
    monkeypatch: pytest.MonkeyPatch, subject: Subject
) -> None:
    docker = Docker()
    use(monkeypatch, docker, B300, B300)
    said = proofs_sm103.starts_offline(subject)
    assert said.startswith("on NVIDIA B300 SXM6 AC: healthy after 30.0 s, 4 tokens; log: ")
    words = docker.created
    assert words[words.index("--gpus") + 1] == "all"
    assert words.index("--gpus") < words.index(DIGEST) < words.index("--dtype")
    assert words[words.index("--dtype") + 1] == "bfloat16"
    assert words[words.index("--network") + 1] == "none"
    assert "--env" not in words


def test_an_engine_on_the_cpu_gets_none(monkeypatch: pytest.MonkeyPatch, subject: Subject) -> None:
    docker = Docker()
    use(monkeypatch, docker, B300)
    serving.starts_offline(subject)
    assert not {"--gpus", "--dtype"} & set(docker.created)
    assert "VLLM_CPU_KVCACHE_SPACE=1" in docker.created


@pytest.mark.parametrize(
    ("gpus", "mode", "said"),
    [
        ((), "aot", r"needs a GPU, found none \(couldn't find 'no-nvidia-smi' in PATH\); run"),
        (("9.0, NVIDIA H200",), "aot", "capability 10.3, found 9.0, NVIDIA H200; run"),
        ((B300, "9.0, NVIDIA H200"), "aot", "capability 10.3, found"),
        (("",), "aot", "capability 10.3, found none; run"),
        ((B300,), "jit", "mode jit: the first start compiles"),
    ],
)
def test_without_a_gpu_of_the_flavor_no_container_is_made(
    monkeypatch: pytest.MonkeyPatch, subject: Subject, gpus: tuple[str, ...], mode: str, said: str
) -> None:
    docker = Docker()
    use(monkeypatch, docker, *gpus, mode=mode)
    with pytest.raises(UnprovedError, match=said) as void:
        proofs_sm103.starts_offline(subject)
    assert docker.said == []
    assert "\n" not in str(void.value)
    assert mode == "jit" or str(void.value).endswith(gpu.ADVICE)


@pytest.mark.parametrize("refuses", ["create", "start"])
def test_a_docker_without_nvidias_runtime_makes_the_check_void(
    monkeypatch: pytest.MonkeyPatch, subject: Subject, refuses: str
) -> None:
    docker = Docker(refuses)
    use(monkeypatch, docker, B300)
    with pytest.raises(UnprovedError, match=f"with a GPU: .* docker {refuses}; run 'build.py ver"):
        proofs_sm103.starts_offline(subject)
    # What was made is removed.
    assert [words[1] for words in docker.said].count("rm") == (refuses == "start")
    with pytest.raises(ImageError):
        serving.starts_offline(subject)


def test_an_engine_that_ends_on_a_gpu_is_red(
    monkeypatch: pytest.MonkeyPatch, subject: Subject
) -> None:
    use(monkeypatch, Docker(ended="false 19"), B300)
    with pytest.raises(
        RefutedError, match="the server ended with status 19 and said last: nothing"
    ):
        proofs_sm103.starts_offline(subject)
