"""Child processes: what is printed, logged and raised."""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path

import pytest

from headrace import children, errors
from headrace.console import call, disk_error, plain, say, working
from headrace.errors import HeadraceError, MachineError, WheelError


def test_output_is_returned(capfd: pytest.CaptureFixture[str]) -> None:
    assert call([sys.executable, "-c", "print('out')"], error=WheelError) == "out\n"
    out, err = capfd.readouterr()
    assert out == ""
    assert "+ " in err


def test_what_is_printed_is_not_read_as_markup(capfd: pytest.CaptureFixture[str]) -> None:
    say("a [bold]:cat: [/red]")
    with working("loading host:cat:[/red]"):
        pass
    err = capfd.readouterr().err.splitlines()
    assert err[:2] == ["a [bold]:cat: [/red]", "loading host:cat:[/red] ..."]


def test_what_a_terminal_obeys_is_written_as_an_escape() -> None:
    assert plain("é ✓ [b]") == "é ✓ [b]"
    assert plain("\x1b[2J\r\n\t\x9b\u202e\u2028") == r"\x1b[2J\r\n\t\x9b\u202e\u2028"
    assert plain("\ud800") == r"\ud800"


def test_a_missing_program_is_named_with_advice() -> None:
    with pytest.raises(MachineError, match="couldn't find 'no-such-tool' in PATH; install it"):
        call(["no-such-tool"], error=WheelError, advice="install it")


def test_a_failure_has_the_class_of_its_stage_and_names_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    with pytest.raises(WheelError, match=r"status 3: .*full log: .*x\.log"):
        call([sys.executable, "-c", "print('why'); exit(3)"], error=WheelError, log=log)
    assert "why" in log.read_text()


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="did not end within 1 s"):
        call([sys.executable, "-c", "import time; time.sleep(60)"], error=WheelError, timeout=1)


def test_what_a_child_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it does not heed SIGTERM, and runs in a session of its own as ninja's do."""
    script = (
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > pid.new; mv pid.new pid; "
        "while :; do sleep 1; done' & wait"
    )
    monkeypatch.setattr(children, "PATIENCE_S", 1.0)
    with pytest.raises(WheelError, match="did not end within 4 s"):
        call(["sh", "-c", script], error=WheelError, cwd=tmp_path, timeout=4)
    status = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    # Whoever takes on orphans may not have asked for its end yet.
    assert not status.exists() or ") Z " in status.read_text()


def test_a_full_disk_is_one_line() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert "no space left" in str(disk_error(full, Path("/x/y")))
    assert "\n" not in str(disk_error(full, Path("/x/y")))


def test_of_a_copy_the_place_that_is_written_is_named(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/from", None, "/to")
    assert str(disk_error(full, Path("/x"))).startswith("/to: no space left on the disk")
    folder = shutil.Error([("/from/a", "/to/a", str(full)), ("/from/b", "/to/b", str(full))])
    assert str(disk_error(folder, Path("/to"))).startswith("/to: no space left on the disk")
    locked = shutil.Error([("/from/a", "/to/a", "[Errno 30] Read-only file system: '/to/a'")])
    assert str(disk_error(locked, Path("/to"))).startswith("/to/a: [Errno 30] Read-only")
    assert str(disk_error(locked, Path("/to"))).endswith(
        "make it writable and run the command again"
    )
    assert str(disk_error(shutil.Error("it is there already"), Path("/to"))).endswith("already")


@pytest.mark.parametrize("words", ["No space left on device", "Read-only file system"])
def test_a_program_that_the_disk_stops_is_no_fault_of_its_stage(words: str, tmp_path: Path) -> None:
    script = f"echo 'x.o: {words}' >&2; echo more; exit 1"
    log = tmp_path / "x.log"
    for where in (log, None):
        with pytest.raises(MachineError, match=rf"^'sh': x\.o: {words}; .*run the command again"):
            call(["sh", "-c", script], error=WheelError, log=where)
    # What an earlier run wrote into the same log says nothing of this one.
    with pytest.raises(WheelError, match="status 1"):
        call(["sh", "-c", "echo why; exit 1"], error=WheelError, log=log)


def test_each_error_class_has_an_exit_code_of_its_own() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = [kind.exit_code for kind in classes if issubclass(kind, HeadraceError)]
    assert len(codes) > 10
    assert len(codes) == len(set(codes))
    assert 0 not in codes
