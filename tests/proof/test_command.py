"""`python -m headrace.proof`: one JSON answer on stdout whatever else is printed, never a hang."""

from __future__ import annotations

import json
import os

from tests.proof.conftest import Site


def test_what_modules_print_stays_out_of_the_answer(site: Site) -> None:
    site.install("toy", {"toy/__init__.py": "import os\nprint('noise')\nos.write(1, b'more')\n"})
    request = {"projects": [{"distribution": "toy", "files": {"toy/gone.py": None}}]}
    done = site.run(["files"], json.dumps(request))
    assert json.loads(done.stdout)["problems"] == []
    assert "noise" in done.stderr and "more" in done.stderr


def test_an_unknown_proof_is_a_usage_error(site: Site) -> None:
    done = site.run(["nonsense"], "{}")
    assert done.returncode == 2
    assert "usage:" in done.stderr and done.stdout == ""


def test_a_hang_ends_at_the_deadline_with_stacks_and_without_an_answer(site: Site) -> None:
    site.install("toy", {"toy/__init__.py": "import time\ntime.sleep(60)\n"})
    files = {"projects": [{"distribution": "toy", "files": {"toy/x.py": None}}], "deadline_s": 0.5}
    done = site.run(["files"], json.dumps(files))
    assert done.returncode == 1 and done.stdout == ""
    assert "Timeout" in done.stderr and "toy/__init__.py" in done.stderr


def test_account_names_root_and_writable_code(site: Site) -> None:
    answer = site.prove("account", {})
    assert answer["facts"]["uid"] == os.getuid()
    assert ("runs as root (user id 0)" in answer["problems"]) == (os.getuid() == 0)
    assert any("can write to the installed code" in line for line in answer["problems"])
