"""An import that reaches for the network is named, also when it swallows the failure."""

from __future__ import annotations

import pytest

from tests.proof.conftest import Site

CONNECT = """
import socket
try:
    socket.create_connection(({host!r}, 9), timeout=0.2).close()
except OSError:
    pass
"""
UDP = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect((ADDRESS, 9))\n"
UNIX = """
import socket
try:
    socket.socket(socket.AF_UNIX).connect("/nowhere")
except OSError:
    pass
"""
# As the dynamic loader says it.
DRIVER = "raise ImportError('{}: cannot open shared object file: No such file or directory')\n"


def problems(site: Site, text: str) -> list[str]:
    site.install("toy", {"toy/__init__.py": "from . import part\n", "toy/part.py": text})
    found: list[str] = site.prove("offline", {"modules": ["toy"]})["problems"]
    return found


@pytest.mark.parametrize(
    "text",
    ["", UNIX, CONNECT.format(host="127.0.0.1"), CONNECT.format(host="localhost"),
     CONNECT.format(host="::1")],
)  # fmt: skip
def test_what_stays_on_this_machine_is_green(site: Site, text: str) -> None:
    assert problems(site, text) == []


def test_a_look_up_is_named_with_the_module_that_asked(site: Site) -> None:
    assert problems(site, CONNECT.format(host="models.example.invalid")) == [
        "importing toy: toy.part asks the network for models.example.invalid (socket.getaddrinfo)"
    ]


def test_a_connection_by_address_is_named(site: Site) -> None:
    text = "try:\n" + "".join(
        f"    {line}\n" for line in UDP.replace("ADDRESS", "'192.0.2.1'").splitlines()
    )
    assert problems(site, f"{text}except OSError:\n    pass\n") == [
        "importing toy: toy.part asks the network for 192.0.2.1 (socket.connect)"
    ]


def test_a_thread_that_an_import_starts_is_seen(site: Site) -> None:
    text = (
        "import socket, threading\n"
        "def ask():\n    try: socket.gethostbyname('models.example.invalid')\n"
        "    except OSError: pass\n"
        "thread = threading.Thread(target=ask)\nthread.start()\nthread.join()\n"
    )
    assert problems(site, text) == [
        "importing toy: a thread asks the network for models.example.invalid (socket.gethostbyname)"
    ]


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_an_import_that_only_the_driver_stops_is_void(site: Site, library: str) -> None:
    site.install("toy", {"toy/__init__.py": DRIVER.format(library)})
    site.install("other", {"other/__init__.py": ""})
    answer = site.prove("offline", {"modules": ["toy", "other"]})
    assert answer["problems"] == []
    assert answer["facts"]["imported"] == ["other"]
    assert answer["facts"]["void"]["toy"].startswith(f"ImportError: {library}: cannot open")


def test_an_import_that_anything_else_stops_is_named(site: Site) -> None:
    assert problems(site, DRIVER.format("libcudart.so.13")) == [
        "toy does not import: ImportError: libcudart.so.13: cannot open shared object file: "
        "No such file or directory"
    ]


def test_a_module_that_connects_and_then_lacks_the_driver_is_red(site: Site) -> None:
    text = CONNECT.format(host="models.example.invalid") + DRIVER.format("libcuda.so.1")
    assert len(problems(site, text)) == 1
