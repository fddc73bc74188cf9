"""`headrace serve` stands in for `vllm serve`: what it hands over, and what it refuses to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from headrace.engine.hand_over import FLAGS, HELP, VALUED
from headrace.engine.serve import app

HEADRACE = (sys.executable, "-m", "headrace.cli", "serve")
# It says how it was started, and ends as it is told to.
VLLM = f"""#!{sys.executable}
import json, os, signal, sys
print(json.dumps({{
    "words": sys.argv[1:], "pid": os.getpid(), "folder": os.getcwd(), "heard": sys.stdin.read(),
    "environment": dict(os.environ), "default": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
}}))
sys.exit(7)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder with a `vllm`."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(VLLM)
    program.chmod(0o755)
    return program.parent


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("/models/NAME", "--port", "8001"),
        ("--model", "NAME"),
        ("OWNER/NAME", "--", "a b", "", "é\n$(x)"),
        ("a/decode",),
        ("./prefil",),
        ("--decode", "8"),
        ("--help=all",),
        ("--help", "--model", "NAME"),
        ("NAME", "--help"),
        ("NAME", "prefill"),
        ("--port", "8000", "--model", "prefill"),
        ("--port", "8000", "NAME", "decode"),
        ("--host", "prefill"),
        ("--served-model-name", "a", "prefill"),
        ("--port", "8000", "./prefill"),
        ("--print=1", "prefill"),
        ("",),
        ("code",),
        ("profile",),
    ],
    ids=repr,
)
def test_other_words_are_vllms(stand_in: Path, words: tuple[str, ...]) -> None:
    """The same words, process, folder, input, variables and end as without headrace."""
    environment = {"PATH": f"{stand_in}:/usr/bin:/bin", "LMCACHE_CHUNK_SIZE": "7", "A": "b c"}
    with subprocess.Popen(
        [*HEADRACE, *words], env=environment, cwd=stand_in, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        said, problem = process.communicate("heard", timeout=60)
    assert (process.returncode, problem) == (7, "")
    # What Python itself adds where there is no locale.
    environment |= {name: text for name, text in json.loads(said)["environment"].items()
                    if name == "LC_CTYPE"}  # fmt: skip
    assert json.loads(said) == {
        "words": ["serve", *words], "pid": process.pid, "folder": str(stand_in), "heard": "heard",
        "environment": environment, "default": True,
    }  # fmt: skip


def test_a_role_is_the_engines_own_process(stand_in: Path) -> None:
    with subprocess.Popen(
        [*HEADRACE, "decode", "NAME"], env={"PATH": f"{stand_in}:/usr/bin:/bin"}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        said, _ = process.communicate(timeout=60)
    found = json.loads(said)
    assert found["words"][:4] == ["serve", "NAME", "--host", "0.0.0.0"]
    assert found["pid"] == process.pid
    assert found["default"]


@pytest.mark.parametrize(
    ("word", "role"),
    [
        ("prefil", "prefill"), ("Prefill", "prefill"), ("perfill", "prefill"),
        ("pre-fill", "prefill"), ("prefillx", "prefill"), ("Decode", "decode"),
        ("DECODE", "decode"), ("decod", "decode"), ("decoder", "decode"), ("dexode", "decode"),
    ],
)  # fmt: skip
def test_a_slip_in_a_role_is_one_line(stand_in: Path, word: str, role: str) -> None:
    ran = _serve(stand_in, word, "MODEL")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f"headrace: serve: expected prefill, decode or a model, found '{word}', which is no "
        f"folder; write {role}, or --model {word} for a model of that name\n"
    )


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (("--port", "8000", "prefill", "MODEL"), "prefill"),
        (("--print", "prefill", "MODEL"), "prefill"),
        (("--port=8000", "--no-nixl", "--host", "prefill", "decode"), "decode"),
    ],
    ids=repr,
)
def test_a_role_behind_options_is_one_line(
    stand_in: Path, words: tuple[str, ...], role: str
) -> None:
    ran = _serve(stand_in, *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f"headrace: serve: expected {role} as the first word, found it behind {words[0]}; "
        f"write the role first, or --model {role} for a model of that name\n"
    )


def test_the_options_written_out_are_those_of_the_roles() -> None:
    flags: set[str] = set()
    valued: set[str] = set()
    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        for option in command.params:
            if option.param_type_name == "option":
                names = {*option.opts, *option.secondary_opts}
                (flags if option.is_flag else valued).update(names)
    assert flags - {*HELP} == FLAGS
    assert valued == VALUED


def test_a_folder_that_looks_like_a_role_is_a_model(stand_in: Path) -> None:
    (stand_in / "Decode").mkdir()
    ran = _serve(stand_in, "Decode")
    assert json.loads(ran.stdout)["words"] == ["serve", "Decode"], ran.stderr


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_says_what_goes_where(stand_in: Path, word: str) -> None:
    ran = _serve(stand_in, word)
    assert ran.returncode == 0, ran.stderr
    said = " ".join(ran.stdout.split())
    for part in (
        "All other words, and none at all, go to vllm serve as they are.",
        "headrace serve --help=all vLLM's own options",
        "-h, --help",
        "Commands: prefill Start a prefill engine. decode Start a decode engine",
    ):
        assert part in said


@pytest.mark.parametrize("words", [(), ("/models/NAME",), ("--model", "NAME")], ids=repr)
def test_without_vllm_it_says_what_to_do(tmp_path: Path, words: tuple[str, ...]) -> None:
    ran = _serve(tmp_path, *words)
    assert (ran.returncode, ran.stdout) == (10, "")
    assert ran.stderr == (
        "headrace: couldn't find 'vllm' in PATH; run it in the image, or see headrace serve "
        "--help\n"
    )


def test_a_vllm_that_cannot_be_run_is_one_line(stand_in: Path) -> None:
    (stand_in / "vllm").chmod(0o644)
    ran = _serve(stand_in, "/models/NAME")
    assert (ran.returncode, ran.stderr) == (
        10,
        "headrace: couldn't start 'vllm': Permission denied\n",
    )


def test_nothing_is_imported_that_takes_time(stand_in: Path) -> None:
    """Before vLLM starts: a little of the standard library, and four small modules."""
    python = [sys.executable, "-X", "importtime", *HEADRACE[1:]]
    ran = subprocess.run(
        [*python, "/models/NAME"], env={"PATH": f"{stand_in}:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 7
    names = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()[1:]}
    names -= _imported_by_python_alone()
    ours = {"headrace", "headrace.engine", "headrace.engine.hand_over", "headrace.errors"}
    assert ours <= names
    assert {name.partition(".")[0] for name in names - ours} <= sys.stdlib_module_names
    assert not names & {"dataclasses", "difflib", "inspect", "logging", "pathlib", "re", "typing"}


def test_signals_reach_the_engine(stand_in: Path) -> None:
    (stand_in / "vllm").write_text(
        f"#!{sys.executable}\nimport signal\nprint('up', flush=True)\nsignal.pause()\n"
    )
    with subprocess.Popen(
        [*HEADRACE, "/models/NAME"], env={"PATH": str(stand_in)}, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.wait(timeout=30) == -signal.SIGTERM


def _imported_by_python_alone() -> set[str]:
    """Return what this environment imports at every start, the finder of a checkout included."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "pass"], env={"PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()[1:]}


def _serve(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it where `folder` has the only `vllm`."""
    return subprocess.run(
        [*HEADRACE, *words], env={"PATH": f"{folder}:/usr/bin:/bin"}, cwd=folder,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
