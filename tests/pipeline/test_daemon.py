"""Finding a docker daemon, or starting one, and the two scripts that prepare a machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import MachineError
from headrace.pipeline import daemon
from headrace.pipeline.daemon import Daemon, ensure_daemon, exports_oci, probe
from headrace.pipeline.daemon_users import STARTED_BY_A_BUILD
from headrace.pipeline.layout import Layout

CHECKOUT = Layout.find()
STORE = {
    "ServerVersion": "26.1.5",
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
}
OLD = {"ServerVersion": "20.10", "DriverStatus": [["Backing Filesystem", "extfs"]]}
MakeTool = Callable[[str, str], None]
Living = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTool:
    """Put shell scripts in place of programs; PATH holds them and the shell's own tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("DOCKER_HOST", raising=False)

    def make(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    return make


def docker(info: object, *, buildx: int = 0, status: int = 0) -> str:
    """Return a docker client that answers `info` and `buildx version`."""
    return (
        f"case $1 in info) echo '{json.dumps(info)}'; exit {status};; buildx) exit {buildx};; esac"
    )


def socket_of(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/run/docker.sock"


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A checkout whose daemon script only notes what it was asked."""
    monkeypatch.setenv("HEADRACE_DOCKER_RUN", str(tmp_path / "run"))
    # Noted while it is what it was: a test that sets it in between would have that restored.
    monkeypatch.setenv("DOCKER_HOST", "")
    monkeypatch.delenv("DOCKER_HOST")
    script = tmp_path / "checkout/ci/docker-daemon.sh"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"#!/bin/sh\necho $1 >> {tmp_path}/asked\ncase $1 in\n"
        f"status) [ -e {tmp_path}/running ] ;;\n"
        f"start) touch {tmp_path}/running; echo export DOCKER_HOST={socket_of(tmp_path)} ;;\n"
        f"stop) rm {tmp_path}/running ;;\nesac\n"
    )
    script.chmod(0o755)
    return Layout(tmp_path / "checkout")


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Living]:
    """Start processes, and name the last of them as the daemon of tmp_path/run."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "60"]))
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run/dockerd.pid").write_text(f"{started[-1].pid}\n")
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def asked(layout: Layout) -> list[str]:
    path = layout.root.parent / "asked"
    return path.read_text().split() if path.exists() else []


def test_a_daemon_that_answers_is_used_and_left_alone(tool: MakeTool, layout: Layout) -> None:
    tool("docker", docker(STORE))
    with ensure_daemon(layout) as found:
        assert found == Daemon("", "26.1.5")
    assert asked(layout) == []


def answers_only_ours(tool: MakeTool, layout: Layout) -> None:
    silent = json.dumps({"ServerVersion": "", "ServerErrors": ["no daemon"]})
    ours = json.dumps(STORE)
    tool(
        "docker",
        f'if [ "$1" = info ] && [ "$DOCKER_HOST" != {socket_of(layout.root.parent)} ]; then\n'
        f"echo '{silent}'; exit 1\nfi\necho '{ours}'",
    )
    tool("dockerd", "exit 1")


def test_none_that_answers_starts_one_and_stops_it(
    tool: MakeTool, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_only_ours(tool, layout)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ZeroDivisionError), ensure_daemon(layout) as found:
        assert found.host == socket_of(layout.root.parent)
        assert os.environ["DOCKER_HOST"] == found.host
        raise ZeroDivisionError
    assert "DOCKER_HOST" not in os.environ
    assert asked(layout) == ["status", "start", "stop"]


def test_one_that_a_person_started_is_not_stopped(
    tool: MakeTool, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_only_ours(tool, layout)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (layout.root.parent / "running").touch()
    with ensure_daemon(layout):
        pass
    assert asked(layout) == ["status", "start"]


def test_one_of_a_person_that_comes_up_meanwhile_is_not_stopped(
    tool: MakeTool, layout: Layout, monkeypatch: pytest.MonkeyPatch, living: Living
) -> None:
    answers_only_ours(tool, layout)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    living()
    with ensure_daemon(layout):
        pass
    assert asked(layout) == ["status", "start"]


def test_one_that_a_build_started_after_another_ended_is_stopped(
    tool: MakeTool, layout: Layout, monkeypatch: pytest.MonkeyPatch, living: Living
) -> None:
    answers_only_ours(tool, layout)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    other = living()
    living()
    script = layout.root / "ci/docker-daemon.sh"
    pid_file = layout.root.parent / "run/dockerd.pid"
    script.write_text(
        script.read_text().replace("start) ", f"start) echo {other.pid} > {pid_file}; ")
    )
    with ensure_daemon(layout):
        pass
    assert asked(layout) == ["status", "start", "stop"]


@pytest.mark.parametrize("first_out", [0, 1])
def test_of_two_builds_the_last_one_stops_the_daemon(
    tool: MakeTool, layout: Layout, monkeypatch: pytest.MonkeyPatch, first_out: int
) -> None:
    answers_only_ours(tool, layout)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    builds = [ensure_daemon(layout), ensure_daemon(layout)]
    for build in builds:
        # As another process it does not know the variable that the first one set.
        monkeypatch.delenv("DOCKER_HOST", raising=False)
        build.__enter__()
    builds[first_out].__exit__(None, None, None)
    assert asked(layout) == ["status", "start", "status", "start"]
    monkeypatch.setenv("DOCKER_HOST", socket_of(layout.root.parent))
    builds[1 - first_out].__exit__(None, None, None)
    assert asked(layout)[4:] == ["stop"]


def test_a_build_that_is_led_to_the_daemon_keeps_it_running(
    tool: MakeTool, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_only_ours(tool, layout)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with ensure_daemon(layout):
        led = ensure_daemon(layout)
        led.__enter__()
    assert asked(layout) == ["status", "start"]
    led.__exit__(None, None, None)
    with ensure_daemon(layout):
        pass
    assert asked(layout)[2:] == ["status", "start", "stop"]


def test_what_a_killed_build_left_is_stopped_by_the_next(
    tool: MakeTool, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_only_ours(tool, layout)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (layout.root.parent / "running").touch()
    (layout.root.parent / "run").mkdir()
    (layout.root.parent / "run" / STARTED_BY_A_BUILD).touch()
    with ensure_daemon(layout):
        pass
    assert asked(layout) == ["status", "start", "stop"]
    assert not (layout.root.parent / "run" / STARTED_BY_A_BUILD).exists()


def test_only_root_has_one_started(
    tool: MakeTool, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_only_ours(tool, layout)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MachineError, match="only root on Linux"), ensure_daemon(layout):
        pass
    assert asked(layout) == []


def test_a_named_daemon_that_is_silent_is_an_error(
    tool: MakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool("docker", docker({}, status=1))
    monkeypatch.setenv("DOCKER_HOST", "tcp://away:2375")
    with pytest.raises(MachineError, match=r"DOCKER_HOST=tcp://away:2375: .*unset DOCKER_HOST"):
        probe()


def test_a_daemon_without_buildx_is_an_error(tool: MakeTool) -> None:
    tool("docker", docker(STORE, buildx=1))
    with pytest.raises(MachineError, match=r"buildx plugin, found none; run ci/install-debian\.sh"):
        probe()


def test_a_daemon_without_the_image_store_names_its_setting(tool: MakeTool) -> None:
    tool("docker", docker(OLD))
    with pytest.raises(MachineError, match=r"daemon 20\.10: .*\"containerd-snapshotter\": true"):
        probe()


def test_no_docker_at_all_names_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match=r"couldn't find 'docker' in PATH; run ci/install"):
        probe()


def test_a_daemon_that_hangs_is_an_error(tool: MakeTool, monkeypatch: pytest.MonkeyPatch) -> None:
    tool("docker", "exec sleep 60")
    monkeypatch.setattr(daemon, "PATIENCE", 0.5)
    with pytest.raises(MachineError, match="expected an answer within"):
        probe()


@pytest.mark.parametrize("facts", [{}, {"DriverStatus": None}, {"DriverStatus": "none"}, OLD])
def test_other_stores_do_not_export(facts: dict[str, object]) -> None:
    assert not exports_oci(facts)


def run(script: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CHECKOUT.root / "ci" / script, *words],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **env},
    )  # fmt: skip


def test_the_daemon_script_starts_none_beside_another(tool: MakeTool, tmp_path: Path) -> None:
    tool("docker", 'test "$2" = unix:///var/run/docker.sock')
    tool("dockerd", f"touch {tmp_path}/started")
    done = run("docker-daemon.sh", "start", HEADRACE_DOCKER_RUN=str(tmp_path / "run"))
    assert done.returncode == 1
    assert "use that one" in done.stderr
    assert not (tmp_path / "started").exists()


def test_the_daemon_script_starts_waits_and_stops(tool: MakeTool, tmp_path: Path) -> None:
    # A daemon that answers as soon as its process id is written.
    tool(
        "docker",
        f'test "$2" = unix://{tmp_path}/run/docker.sock && test -s {tmp_path}/run/dockerd.pid',
    )
    tool("dockerd", f"echo $$ > {tmp_path}/run/dockerd.pid; exec sleep 60")
    mark = tmp_path / "run" / STARTED_BY_A_BUILD
    mark.parent.mkdir()
    mark.touch()
    settings = {
        "HEADRACE_DOCKER_RUN": f"{tmp_path}/run",
        "HEADRACE_DOCKER_DATA": f"{tmp_path}/data",
    }
    done = run("docker-daemon.sh", "start", **settings)
    assert (done.returncode, done.stdout) == (
        0, f"export DOCKER_HOST=unix://{tmp_path}/run/docker.sock\n",
    )  # fmt: skip
    pid = int((tmp_path / "run/dockerd.pid").read_text())
    os.kill(pid, 0)
    assert not mark.exists(), "no build would leave a person's daemon alone"
    features = json.loads((tmp_path / "run/daemon.json").read_text())["features"]
    assert features == {"containerd-snapshotter": True}
    assert run("docker-daemon.sh", "stop", **settings).returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_daemon_script_quotes_the_log_of_one_that_dies(tool: MakeTool, tmp_path: Path) -> None:
    tool("docker", "exit 1")
    tool("dockerd", "echo no space for a bridge; exit 1")
    done = run("docker-daemon.sh", "start", HEADRACE_DOCKER_RUN=f"{tmp_path}/run",
               HEADRACE_DOCKER_DATA=f"{tmp_path}/data")  # fmt: skip
    assert done.returncode == 1
    assert "no space for a bridge" in done.stderr


@pytest.fixture
def coming_up(tool: MakeTool, tmp_path: Path, living: Living) -> subprocess.Popen[bytes]:
    """Have a daemon that does not answer yet, and write its files; no second may be started."""
    process = living()
    (tmp_path / "run/daemon.json").write_text("as it was")
    (tmp_path / "run" / STARTED_BY_A_BUILD).touch()
    (tmp_path / "run/dockerd.log").write_text("loading containers\n")
    tool("sleep", "exit 0")
    tool("dockerd", f"echo $$ > {tmp_path}/run/dockerd.pid; exec /bin/sleep 60")
    return process


def test_the_daemon_script_waits_for_one_that_has_not_come_up(
    tool: MakeTool, tmp_path: Path, coming_up: subprocess.Popen[bytes]
) -> None:
    tool(
        "docker", f"echo $2 >> {tmp_path}/asked; test $(grep -c run/docker {tmp_path}/asked) -gt 3"
    )
    done = run("docker-daemon.sh", "start", HEADRACE_DOCKER_RUN=f"{tmp_path}/run",
               HEADRACE_DOCKER_DATA=f"{tmp_path}/data")  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"export DOCKER_HOST={socket_of(tmp_path)}\n")
    assert (tmp_path / "run/daemon.json").read_text() == "as it was"
    assert (tmp_path / "run" / STARTED_BY_A_BUILD).exists(), "the build would not stop it"
    assert (tmp_path / "run/dockerd.pid").read_text() == f"{coming_up.pid}\n"


def test_the_daemon_script_names_one_that_never_answers(
    tool: MakeTool, tmp_path: Path, coming_up: subprocess.Popen[bytes]
) -> None:
    tool("docker", "exit 1")
    done = run("docker-daemon.sh", "start", HEADRACE_DOCKER_RUN=f"{tmp_path}/run",
               HEADRACE_DOCKER_DATA=f"{tmp_path}/data")  # fmt: skip
    assert done.returncode == 1
    assert f"of process {coming_up.pid}, which {tmp_path}/run/dockerd.pid names" in done.stderr
    assert "run ci/docker-daemon.sh stop, then start" in done.stderr
    assert "loading containers" in done.stderr
    assert (tmp_path / "run/daemon.json").read_text() == "as it was"
    assert coming_up.poll() is None


def test_the_daemon_script_starts_one_after_another_has_ended(
    tool: MakeTool, tmp_path: Path, coming_up: subprocess.Popen[bytes]
) -> None:
    coming_up.kill()
    coming_up.wait()
    tool(
        "docker",
        f"test $2 = {socket_of(tmp_path)} && "
        f"! grep -q ^{coming_up.pid}$ {tmp_path}/run/dockerd.pid",
    )
    done = run("docker-daemon.sh", "start", HEADRACE_DOCKER_RUN=f"{tmp_path}/run",
               HEADRACE_DOCKER_DATA=f"{tmp_path}/data")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/daemon.json").read_text())["features"]
    os.kill(int((tmp_path / "run/dockerd.pid").read_text()), signal.SIGTERM)


SOURCES = """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""


@pytest.fixture
def machine(tool: MakeTool, tmp_path: Path) -> Path:
    """A bare Debian 12: nothing is installed, and apt-get only notes what it was asked."""
    tool("dpkg-query", "exit 1")
    tool("docker", "exit 127")
    tool("id", "echo 0")
    tool("apt-get", f"cat {tmp_path}/etc/apt/preferences.d/* >/dev/null; echo apt-get $* >&2")
    for name in ("apt/sources.list.d", "apt/preferences.d"):
        (tmp_path / "etc" / name).mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text("VERSION_CODENAME=bookworm\n")
    return tmp_path / "etc"


def test_a_bare_machine_is_told_first_and_pins_only_docker(machine: Path) -> None:
    (machine / "apt/sources.list.d/debian.sources").write_text(SOURCES)
    done = run("install-debian.sh", HEADRACE_ETC=str(machine))
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("this script installs:") < done.stdout.index("done")
    assert (machine / "apt/sources.list.d/headrace-trixie.list").read_text() == (
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
        "http://mirror.example/debian trixie main\n"
    )
    pins = (machine / "apt/preferences.d/headrace-trixie").read_text().split("\n\n")
    assert "Package: *\n" in pins[0]
    assert "Pin-Priority: 50" in pins[0]
    assert "Package: docker.io docker-cli docker-buildx\n" in pins[1]
    assert json.loads((machine / "docker/daemon.json").read_text())["features"]
    install = next(line for line in done.stderr.splitlines() if " install " in line)
    assert {"docker-buildx", "mmdebstrap", "g++", "--no-install-recommends"} <= set(install.split())


def test_one_line_sources_serve_too(machine: Path) -> None:
    (machine / "apt/sources.list").write_text(
        "deb-src http://no.example/debian bookworm main\n"
        "deb [arch=amd64] https://mirror.example/debian bookworm main contrib\n"
    )
    assert run("install-debian.sh", HEADRACE_ETC=str(machine)).returncode == 0
    text = (machine / "apt/sources.list.d/headrace-trixie.list").read_text()
    assert text == "deb https://mirror.example/debian trixie main\n"


def test_check_only_says_what_is_missing(machine: Path) -> None:
    done = run("install-debian.sh", "--check", HEADRACE_ETC=str(machine))
    assert done.returncode == 1
    assert "docker-buildx" in done.stdout
    assert "apt-get" not in done.stderr
    assert not (machine / "apt/sources.list.d/headrace-trixie.list").exists()


def test_a_docker_that_works_is_left_alone(machine: Path, tool: MakeTool) -> None:
    tool("docker", "exit 0")
    tool("dockerd", "exit 0")
    done = run("install-debian.sh", HEADRACE_ETC=str(machine))
    assert done.returncode == 0, done.stderr
    assert "docker.io" not in done.stdout + done.stderr
    assert not (machine / "apt/sources.list.d/headrace-trixie.list").exists()
    assert not (machine / "docker").exists()


def test_nothing_missing_asks_nothing(machine: Path, tool: MakeTool) -> None:
    tool("docker", "exit 0")
    tool("dockerd", "exit 0")
    tool("dpkg-query", "echo installed")
    done = run("install-debian.sh", HEADRACE_ETC=str(machine))
    assert (done.returncode, done.stdout, done.stderr) == (
        0, "install-debian: nothing is missing\n", "",
    )  # fmt: skip


def test_another_system_is_refused(machine: Path) -> None:
    (machine / "os-release").write_text('VERSION_CODENAME=noble\nPRETTY_NAME="Ubuntu 24.04"\n')
    done = run("install-debian.sh", HEADRACE_ETC=str(machine))
    assert done.returncode == 1
    assert "expected Debian 12 (bookworm), found Ubuntu 24.04" in done.stderr


def test_without_root_it_says_so(machine: Path, tool: MakeTool) -> None:
    tool("id", 'if [ "$1" = -u ]; then echo 1000; else echo someone; fi')
    done = run("install-debian.sh", HEADRACE_ETC=str(machine))
    assert done.returncode == 1
    assert "expected root, found someone" in done.stderr
    assert "apt-get" not in done.stderr
