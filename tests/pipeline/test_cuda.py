"""The toolkit is whole or it is no toolkit, wherever its installation was ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import MachineError
from headrace.pipeline import cuda, sources
from headrace.pipeline.cuda import cuda_toolkit, existing_toolkit
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import Pin
from headrace.pipeline.scratch import scratch

LIBRARY = "libcudart.so.13"
ONE, TWO = (f"{name}==1 --hash=sha256:{'0' * 64}\n" for name in ("one", "two"))


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A checkout with the committed pins, whose toolkit is four files."""
    found = Layout(tmp_path / "checkout")
    found.locks.mkdir(parents=True)
    found.pins.write_text(Layout.find().pins.read_text())
    (found.locks / cuda.LOCK).write_text(ONE)

    def fetch(layout: Layout, pin: Pin) -> Path:
        return layout.sources / pin.file

    def install(layout: Layout, folder: Path, torch: Path, lock: Path) -> None:
        made = cuda.Toolkit(folder / "bin" / "python", home(layout))
        for path in (made.python, made.nvcc, made.cuobjdump, made.home / "lib" / LIBRARY):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(lock.read_text())

    monkeypatch.setattr(sources, "fetch_pin", fetch)
    monkeypatch.setattr(cuda, "_install", install)
    cuda_toolkit(found)
    return found


def home(layout: Layout) -> Path:
    return layout.build / "cuda/lib/python3.11/site-packages/nvidia/cu13"


def test_a_second_run_installs_nothing(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_install", None)
    assert cuda_toolkit(layout) == existing_toolkit(layout)


@pytest.mark.parametrize("at", ["_clear", "_install", "_complete"])
def test_one_that_is_ended_while_it_is_made_again_counts_for_none(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    (layout.locks / cuda.LOCK).write_text(TWO)

    def kill(*_: object) -> None:
        (home(layout) / "lib" / LIBRARY).unlink(missing_ok=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as ended:
        ended.setattr(cuda, at, kill)
        with pytest.raises(KeyboardInterrupt):
            cuda_toolkit(layout)
    with pytest.raises(MachineError, match=r"expected the CUDA toolkit, found none; .*wheels"):
        existing_toolkit(layout)
    assert (cuda_toolkit(layout).home / "lib" / LIBRARY).read_text() == TWO


def test_the_folder_may_be_a_link_to_a_larger_disk(layout: Layout, tmp_path: Path) -> None:
    (layout.locks / cuda.LOCK).write_text(TWO)
    (layout.build / "cuda").rename(tmp_path / "large")
    (layout.build / "cuda").symlink_to(tmp_path / "large")
    (tmp_path / "large" / "stale").touch()
    cuda_toolkit(layout)
    assert (home(layout) / "lib" / LIBRARY).read_text() == TWO
    assert not (tmp_path / "large" / "stale").exists()


def test_what_a_killed_pip_left_is_gone_and_the_next_gets_the_same_folder(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    left = layout.build / "work/tmp/pip-unpack/torch.whl"
    left.parent.mkdir(parents=True)
    left.touch()
    with scratch(layout) as env:
        folder = Path(env["TMPDIR"])
        assert folder == layout.build / "work/tmp"
        assert list(folder.iterdir()) == []
        (folder / "more").touch()
    assert not folder.exists()
