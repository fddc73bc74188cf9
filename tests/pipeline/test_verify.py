"""An image is proved in containers of exactly its digest; each planted fault turns it red."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigurationError, HeadraceError, ImageError, VerificationError
from headrace.pipeline import checks, container, proofs, verify
from headrace.pipeline.container import Outcome
from headrace.pipeline.evidence import MANDATORY_CHECKS, MANDATORY_SUITES
from headrace.pipeline.report import load_report, report_path
from headrace.pipeline.subject import RefutedError, Subject, UnprovedError, subject_of
from headrace.pipeline.suite_cases import judge_suite
from tests.pipeline.python_image import CONFIG, SITE, SUITE, PythonImage
from tests.pipeline.sample_image import Entry, layer_of, write_image
from tests.suites.sites import headrace

pytestmark = pytest.mark.usefixtures("daemon", "small_engine")

RED = SUITE.replace('"verdict": "green"', '"verdict": "red"') + "sys.exit(11)\n"


@pytest.fixture
def small_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's extension stands for torch and the engine."""
    monkeypatch.setattr(proofs, "PRELOAD", [])
    monkeypatch.setattr(proofs, "ENGINE_MODULES", ["toy.native"])
    monkeypatch.setattr(proofs, "SINGLE", ["native"])


@pytest.fixture
def image(tmp_path: Path, interpreter: bytes) -> Iterator[PythonImage]:
    made = PythonImage(tmp_path / "checkout", interpreter)
    yield made
    record = made.layout.image("cpu").with_suffix(".json")
    if record.is_file():
        reference = json.loads(record.read_text())["reference"]
        # Most tests never loaded it, which --force takes as done.
        subprocess.run(["docker", "rmi", "--force", reference], timeout=60, check=True)


def judge(image: PythonImage, name: str) -> str:
    """Run one check on the image as it was built; return its detail."""
    with subject_of(image.layout, "cpu") as subject:
        return proofs.CHECKS[name](subject)


def containers() -> set[str]:
    listed = subprocess.run(
        ["docker", "ps", "--all", "--quiet"], capture_output=True, text=True, timeout=60, check=True
    )
    return set(listed.stdout.split())


def test_a_whole_image_is_green_and_its_report_is_bound_to_its_digest(image: PythonImage) -> None:
    digest = image.build()
    before = containers()
    report = verify.verify(image.layout, "cpu")
    assert report.verdict == "green"
    assert [check.name for check in report.checks] == list(MANDATORY_CHECKS["cpu"])
    assert [suite.name for suite in report.suites] == list(MANDATORY_SUITES["cpu"])
    assert [case.case for suite in report.suites for case in suite.cases] == ["GET of nothing"] * 2
    saved = report_path(image.layout, digest)
    assert load_report(saved) == report
    assert "GET of nothing" in saved.with_suffix(".txt").read_text()
    for suite in ("missing-key", "needle"):
        assert (saved.with_suffix("") / suite / "results.jsonl").is_file()
    words = json.loads((saved.with_suffix("") / "needle" / "words.json").read_text())
    assert words[words.index("--image") + 1] == digest, "the suite's own report names the image"
    assert containers() <= before
    left = {path.name for path in image.layout.build.iterdir()}
    assert left == {"wheels", "wheelhouse", "patched", "image", "report", "log"}


def test_a_red_part_is_named_and_the_report_is_kept(image: PythonImage) -> None:
    digest = image.build(planted={"root/.netrc": "x"}, suite=RED)
    with pytest.raises(
        VerificationError, match=r"no-secrets is red: layer 2: /root/\.netrc"
    ) as red:
        verify.verify(image.layout, "cpu")
    assert str(report_path(image.layout, digest)) in str(red.value)
    report = load_report(report_path(image.layout, digest))
    assert {part.name: part.verdict for part in report.checks if part.verdict != "green"} == {
        "no-secrets": "red"
    }
    assert report.suites[0].verdict == "red"


@pytest.mark.parametrize(
    ("name", "planted", "config", "message"),
    [
        ("packaged-files", {f"{SITE}/toy/part.py": "answer = 41\n"}, {}, "expected sha256"),
        ("packaged-files", {f"{SITE}/toy/.wh.part.py": ""}, {},
         r"toy/part\.py: expected one file, found none"),
        ("packaged-files", {"usr/lib/python3/site-packages/toy/part.py": ""}, {},
         f"found /{SITE}/toy/part.py, /usr/lib/python3/site-packages/toy/part.py"),
        ("no-compiler", {"usr/bin/gcc": Entry(mode=0o755)}, {}, "layer 2: /usr/bin/gcc"),
        ("no-build-remains", {"src/CMakeFiles/a": ""}, {}, "layer 2: /src/CMakeFiles/a"),
        ("no-secrets", {}, {"Env": [*CONFIG["Env"], "API_TOKEN=x"]}, "Env: sets API_TOKEN"),
        ("account", {}, {"User": ""}, "expected an ordinary User, found none"),
        ("account", {}, {"User": "0:0"}, "expected an ordinary User, found 0:0"),
        ("labels", {}, {"Labels": {}}, "image.title: expected headrace, found none"),
        ("labels", {}, {"Labels": {**CONFIG["Labels"], "org.opencontainers.image.revision": "x"}},
         "image.revision: expected b{40}, found x"),
        ("starts-offline", {}, {"Entrypoint": ["vllm", "serve"]},
         r"Entrypoint \['headrace', 'serve'\] and no Cmd, found \['vllm', 'serve'\], \[\]"),
        ("starts-offline", {}, {"Cmd": ["prefill"]}, r"and no Cmd, found .*, \['prefill'\]"),
    ],
)  # fmt: skip
def test_each_fault_that_shows_from_outside_is_red(
    image: PythonImage, name: str, planted: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    image.build(planted=planted, config=config)
    with pytest.raises(RefutedError, match=message):
        proofs.CHECKS[name](image.subject())


def test_each_fault_that_shows_inside_is_red(image: PythonImage) -> None:
    about = "Metadata-Version: 2.1\nName: torchvision\nVersion: 1\n"
    image.build(
        planted={
            f"{SITE}/toy/part.py": "answer = 41\n",
            f"{SITE}/toy/gone.py": "",
            f"{SITE}/toy/stray.so": "",
            "opt/more/libcudart.so.13": "",
            f"{SITE}/torchvision-1.dist-info/METADATA": about,
        }
    )
    faults = {
        "patched-files": "toy/gone.py: deleted by a patch of toy, still there; .*expected sha256",
        "extensions": r"stray\.so: an extension that no record lists",
        "libraries": r"libcudart\.so\.13: a library that this flavor excludes",
        "metadata": "torchvision: installed, but excluded: does not load beside this torch",
    }
    with subject_of(image.layout, "cpu") as subject:
        for name, message in faults.items():
            with pytest.raises(RefutedError, match=message):
                proofs.CHECKS[name](subject)


def test_a_copy_that_an_image_setting_puts_first_is_red(image: PythonImage) -> None:
    copy = {"opt/more/toy/__init__.py": "", "opt/more/toy/part.py": "answer = 42\n"}
    image.build(planted=copy, config={"Env": [*CONFIG["Env"], "PYTHONPATH=/opt/more"]})
    with pytest.raises(RefutedError, match=r"toy/part\.py: Python resolves /opt/more/toy/part\.py"):
        judge(image, "patched-files")


def test_an_image_of_another_series_is_red(image: PythonImage) -> None:
    image.build()
    subject = image.subject()
    subject.series_sha256 = "c" * 64
    with pytest.raises(RefutedError, match=r"series: expected cccc.*found aaaa"):
        proofs.patched_files(subject)


def test_a_server_that_dies_is_red_and_its_log_is_kept(image: PythonImage) -> None:
    image.build(vllm="print('no such model'); raise SystemExit(3)\n")
    with pytest.raises(RefutedError, match="status 3 and said last: no such model; log: "):
        judge(image, "starts-offline")
    assert "no such model" in (image.layout.logs / "serve-cpu.log").read_text()


def test_the_images_command_becomes_vllm(image: PythonImage) -> None:
    """Nothing stands between docker's signals and vLLM, and no word is lost."""
    digest = image.build(vllm="import os, sys; print(os.getpid(), sys.argv[1:])\n")
    with (
        subject_of(image.layout, "cpu"),
        container.created(digest, ["/model", "--port", "8001"]) as made,
    ):
        assert made.run(timeout=60).stdout == "1 ['serve', '/model', '--port', '8001']\n"


def test_a_proof_that_the_image_lacks_is_void(image: PythonImage) -> None:
    image.build(planted={f"{SITE}/headrace/.wh.proof": ""})
    with pytest.raises(UnprovedError, match=r"metadata ended with status 1: .*headrace\.proof"):
        judge(image, "metadata")


def test_a_container_has_no_network(image: PythonImage) -> None:
    digest = image.build()
    with subject_of(image.layout, "cpu"):
        code = "import socket; print(socket.if_nameindex())"
        with container.created(digest, ["-c", code], entrypoint="python") as made:
            assert made.run(timeout=60).stdout.strip() == "[(1, 'lo')]"


def test_a_container_that_runs_too_long_is_ended_and_removed(image: PythonImage) -> None:
    digest = image.build()
    with subject_of(image.layout, "cpu"):
        code = "import time; time.sleep(600)"
        with container.created(digest, ["-c", code], entrypoint="python") as made:
            outcome = made.run(timeout=2)
            assert outcome.status == -1 and "did not end within 2 s" in outcome.last_line
        assert made.id not in containers()


def test_a_daemon_that_holds_another_image_under_the_name_is_red(image: PythonImage) -> None:
    digest = image.build()
    with subject_of(image.layout, "cpu") as subject:
        other = write_image(image.layout.build / "other", [layer_of({"a": ""})], {})
        subject.digest = other
        done = verify.run_checks(subject, proofs.CHECKS)
    assert done[0].verdict == "red"
    assert f"expected {other}, found {digest}" in done[0].detail
    assert {check.verdict for check in done[1:]} == {"void"}


def test_a_layer_that_is_not_what_the_config_says_is_not_green(image: PythonImage) -> None:
    image.build()
    with subject_of(image.layout, "cpu") as subject:
        layer = subject.image.layers[-1].removeprefix("sha256:")
        (subject.folder / "blobs/sha256" / layer).write_bytes(layer_of({"a": "other"}))
        checks = verify.run_checks(subject, {"digest": proofs.digest})
    assert checks[0].verdict == "void" and "expected content sha256:" in checks[0].detail


def test_an_image_is_found_by_the_daemons_name_and_proved_against_this_checkout(
    image: PythonImage,
) -> None:
    digest = image.build()
    with subject_of(image.layout, "cpu") as built:
        reference = built.reference
    with subject_of(image.layout, reference) as subject:
        assert (subject.digest, subject.flavor, subject.version) == (digest, "cpu", built.version)
        assert proofs.digest(subject) and proofs.labels(subject)
    assert not subject.folder.exists()


def test_an_image_of_somebody_else_is_refused(image: PythonImage) -> None:
    image.build(config={"Labels": {}})
    with subject_of(image.layout, "cpu") as built:
        reference = built.reference
    with (
        pytest.raises(ConfigurationError, match="this is no headrace image"),
        subject_of(image.layout, reference),
    ):
        pass


def test_an_image_whose_suites_run_here_takes_no_results(
    image: PythonImage, tmp_path: Path
) -> None:
    image.build()
    with subject_of(image.layout, "cpu") as built:
        reference = built.reference
    with pytest.raises(ConfigurationError, match="--needle-results: expected none for flavor cpu"):
        verify.prove(image.layout, reference, {"needle": tmp_path})


def test_a_name_that_nobody_has_says_what_to_run(image: PythonImage) -> None:
    with (
        pytest.raises(ImageError, match=r"run 'docker pull 127\.0\.0\.1:1/none:1'"),
        subject_of(image.layout, "127.0.0.1:1/none:1"),
    ):
        pass


def test_the_needle_suite_asks_one_image_the_same_and_another_other_prompts() -> None:
    """Words that the command takes, with all that the gate has to show in them."""
    digests = ["sha256:" + sign * 64 for sign in "12"]
    one, again, other = ([*checks.needle(digest)] for digest in (digests[0], *digests))
    assert one == again
    assert one[one.index("--seed") + 1] != other[other.index("--seed") + 1]
    listed = headrace(*one, "--list")
    assert listed.returncode == 0, listed.stderr
    names = listed.stdout.split()
    assert [name for name in names if name.endswith("-brief")] == ["16384-brief"]
    assert {"rank-0", "rank-1", "border", "spoilt-a", "spoilt-b"} <= set(names)
    assert {"4000-at-0", "4000-at-100"} <= set(names)


@pytest.mark.parametrize(
    ("status", "verdicts", "verdict", "detail"),
    [
        (0, ["green", "green"], "green", ""),
        (11, ["green", "red", "void"], "red", ""),
        (12, ["green", "void"], "void", ""),
        (12, [], "void", "no case ran"),
        (0, [], "void", "status 0 does not fit its cases, which are void"),
        (11, ["green"], "void", "status 11 does not fit its cases, which are green"),
        (-1, ["green"], "void", "status -1 does not fit its cases, which are green"),
        (0, ["red"], "red", "status 0 does not fit its cases, which are red"),
        (2, None, "void", "status 2, no usable results: it says why"),
    ],
)
def test_a_suite_is_judged_by_its_status_and_its_cases_together(
    tmp_path: Path, status: int, verdicts: list[str] | None, verdict: str, detail: str
) -> None:
    results = tmp_path / "results.jsonl"
    if verdicts is not None:
        shared = {"suite": "s", "case": "c", "expected": "a miss", "seen": "a miss", "ms": 1}
        lines = [json.dumps({**shared, "verdict": value}) for value in verdicts]
        results.write_text("".join(f"{line}\n" for line in lines))
    found = judge_suite(Outcome(status, "", "it says why"), results)
    assert found[0] == verdict
    assert found[1].startswith(detail) and bool(found[1]) == bool(detail)
    assert len(found[2]) == len(verdicts or [])


@pytest.mark.parametrize("text", ["{", "{}", "[]", "null", '{"suite": "s", "case": "c"}'])
def test_results_that_are_not_cases_are_void(tmp_path: Path, text: str) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text(text)
    assert judge_suite(Outcome(0, "", ""), results)[0] == "void"


def test_parts_that_a_flavor_needs_and_nobody_wrote_are_void(image: PythonImage) -> None:
    image.build()
    subject = image.subject()
    subject.flavor = "sm103"
    checks = verify.run_checks(subject, {"digest": lambda subject: "bound"})
    suites = verify.run_suites(subject, {})
    verdicts = {check.name: check.verdict for check in checks}
    assert verdicts.pop("digest") == "green"
    assert set(verdicts.values()) == {"void"} and "device-code" in verdicts
    assert {suite.verdict for suite in suites} == {"void"}


@pytest.mark.parametrize(
    ("failure", "verdict"),
    [
        (RefutedError(["wrong"]), "red"),
        (VerificationError("wrong"), "red"),
        (UnprovedError("wrong"), "void"),
        (ImageError("wrong"), "void"),
    ],
)
def test_what_refutes_is_red_and_what_cannot_run_is_void(
    image: PythonImage, failure: HeadraceError, verdict: str
) -> None:
    def raises(subject: Subject) -> str:
        raise failure

    checks: dict[str, Callable[[Subject], str]] = {"first": lambda subject: "fine", "it": raises}
    image.build()
    done = {check.name: check for check in verify.run_checks(image.subject(), checks)}
    assert (done["it"].verdict, done["it"].detail) == (verdict, "wrong")
