"""`rebase` reports what a new release means for each patch, by three signals, and only reports."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, MachineError, SourceError
from headrace.pipeline import commands_series
from headrace.pipeline import rebase as stage
from headrace.pipeline.layout import Layout
from headrace.pipeline.patchfile import PatchFile
from headrace.pipeline.pins import Pin
from headrace.pipeline.problem import ProblemsError
from headrace.pipeline.rebase import rebase
from headrace.pipeline.verdict import Verdict
from tests.pipeline.toy import Checkout, numbers, text

BOTH = numbers(line_5="five", line_30="thirty")


@pytest.fixture
def new(checkout: Checkout, tmp_path: Path) -> Path:
    """The tree of toy 1.1, at first the same as that of 1.0."""
    checkout.series(("Only", {"toy/numbers.py": BOTH, "toy/own.py": text(b"ours\n")}))
    return shutil.copytree(checkout.tree, tmp_path / "toy-1.1")


def judge(checkout: Checkout, new: Path) -> Verdict:
    (verdict,) = rebase(checkout.layout, "toy", "1.1", new)
    return verdict


def put(new: Path, path: str, data: bytes) -> None:
    Checkout.write(new, {path: data})


def test_an_unchanged_file_takes_the_patch(checkout: Checkout, new: Path) -> None:
    put(new, "README", b"toy, again\n")
    verdict = judge(checkout, new)
    assert verdict.outcome == "applies"
    assert (verdict.reverse_applies, verdict.three_way_leaves_nothing) == (False, False)
    assert (verdict.merged_hunks, verdict.conflicts, verdict.note) == ((), (), "")


def test_moved_lines_are_told(checkout: Checkout, new: Path) -> None:
    put(new, "toy/numbers.py", numbers(line_1="zero\nline 1", line_40="forty").data)
    verdict = judge(checkout, new)
    assert verdict.outcome == "applies"
    assert verdict.note == "lines moved: edit and refresh will rewrite them"


def test_a_renamed_file_takes_the_patch(checkout: Checkout, new: Path) -> None:
    (new / "toy/numbers.py").rename(new / "toy/figures.py")
    assert judge(checkout, new).outcome == "applies"


def test_a_patch_merged_verbatim_is_found_by_its_reverse(checkout: Checkout, new: Path) -> None:
    moved = numbers(line_1="zero\nline 1", line_5="five", line_30="thirty")
    put(new, "toy/numbers.py", moved.data)
    put(new, "toy/own.py", b"ours\n")
    verdict = judge(checkout, new)
    assert verdict.outcome == "merged upstream"
    assert (verdict.reverse_applies, verdict.three_way_leaves_nothing) == (True, True)


def test_a_merge_beside_other_changes_is_found_by_three_ways(checkout: Checkout, new: Path) -> None:
    # Line 7 is context of the first hunk, so the reverse does not apply.
    mixed = numbers(line_5="five", line_7="seven", line_30="thirty")
    put(new, "toy/numbers.py", mixed.data)
    put(new, "toy/own.py", b"ours\n")
    verdict = judge(checkout, new)
    assert verdict.outcome == "merged upstream"
    assert (verdict.reverse_applies, verdict.three_way_leaves_nothing) == (False, True)


def test_merged_hunks_are_listed_by_line(checkout: Checkout, new: Path) -> None:
    put(new, "toy/numbers.py", numbers(line_30="thirty").data)
    verdict = judge(checkout, new)
    assert verdict.outcome == "partly merged"
    line = checkout.line_of("only.patch", "@@ -27,7")
    assert verdict.merged_hunks == (f"patches/toy/only.patch:{line} (toy/numbers.py)",)
    assert verdict.conflicts == ()
    assert f"merged hunks: patches/toy/only.patch:{line}" in str(verdict)


def test_a_merged_new_file_counts_as_a_hunk(checkout: Checkout, new: Path) -> None:
    put(new, "toy/own.py", b"ours\n")
    verdict = judge(checkout, new)
    assert verdict.outcome == "partly merged"
    assert [hunk.split()[1] for hunk in verdict.merged_hunks] == ["(toy/own.py)"]


def test_a_conflict_is_named_by_file_and_line_of_the_new_tree(
    checkout: Checkout, new: Path
) -> None:
    put(new, "toy/numbers.py", numbers(line_1="zero\nline 1", line_5="upstream's five").data)
    verdict = judge(checkout, new)
    assert verdict.outcome == "conflicts"
    assert verdict.conflicts == ("toy/numbers.py:6",)
    assert "conflicts: toy/numbers.py:6" in str(verdict)


def test_a_deleted_file_is_a_conflict(checkout: Checkout, new: Path) -> None:
    (new / "toy/numbers.py").unlink()
    verdict = judge(checkout, new)
    assert (verdict.outcome, verdict.conflicts) == ("conflicts", ("toy/numbers.py:1",))


def test_another_file_of_the_same_name_is_a_conflict(checkout: Checkout, new: Path) -> None:
    put(new, "toy/own.py", b"theirs\n")
    verdict = judge(checkout, new)
    assert (verdict.outcome, verdict.conflicts) == ("conflicts", ("toy/own.py:1",))


def test_a_folder_where_a_file_was_does_not_stop_the_report(checkout: Checkout, new: Path) -> None:
    (new / "toy/numbers.py").unlink()
    put(new, "toy/numbers.py/inner.py", b"now a package\n")
    assert judge(checkout, new).outcome == "conflicts"


def test_later_patches_are_judged_with_the_earlier_ones_applied(
    checkout: Checkout, new: Path
) -> None:
    checkout.series(
        ("First", {"toy/numbers.py": numbers(line_20="twenty")}),
        ("Second", {"toy/numbers.py": numbers(line_20="twenty, twice")}),
        ("Third", {"toy/numbers.py": numbers(line_20="twenty, twice", line_35="x")}),
    )
    put(new, "toy/numbers.py", numbers(line_1="zero\nline 1").data)
    verdicts = rebase(checkout.layout, "toy", "1.1", new)
    assert [verdict.outcome for verdict in verdicts] == ["applies"] * 3
    put(new, "toy/numbers.py", numbers(line_20="upstream's").data)
    verdicts = rebase(checkout.layout, "toy", "1.1", new)
    assert [verdict.outcome for verdict in verdicts] == ["conflicts", "conflicts", "applies"]
    assert verdicts[2].note.endswith("judged without first.patch, second.patch")


def test_two_merged_patches_on_the_same_lines_are_both_found(checkout: Checkout, new: Path) -> None:
    checkout.series(
        ("First", {"toy/numbers.py": numbers(line_20="twenty")}),
        ("Second", {"toy/numbers.py": numbers(line_20="twenty, twice")}),
    )
    put(new, "toy/numbers.py", numbers(line_20="twenty, twice").data)
    verdicts = rebase(checkout.layout, "toy", "1.1", new)
    assert [verdict.outcome for verdict in verdicts] == ["merged upstream"] * 2
    assert [verdict.reverse_applies for verdict in verdicts] == [True, True]
    assert [verdict.conflicts for verdict in verdicts] == [(), ()]


def test_the_third_signal_is_never_claimed(checkout: Checkout, new: Path) -> None:
    verdict = judge(checkout, new)
    assert verdict.regression_passes is None
    assert verdict.regression_command == "`python build.py rebase toy --to 1.1 --run-tests`"
    assert f"not run ({verdict.regression_command})" in str(verdict)


@pytest.mark.parametrize(
    ("merged", "passes", "note"),
    [
        (False, True, "its regression test passes without it: upstream may have another fix"),
        (False, False, ""),
        (True, True, ""),
        (True, False, "but its regression test fails without it: look before you drop it"),
    ],
)
def test_the_third_signal_is_told_beside_the_others(
    checkout: Checkout, new: Path, merged: bool, passes: bool, note: str
) -> None:
    if merged:
        put(new, "toy/numbers.py", BOTH.data)
        put(new, "toy/own.py", b"ours\n")
    asked: list[str] = []

    def run(patch: PatchFile) -> bool:
        asked.extend(patch.regression_tests)
        return passes

    (verdict,) = rebase(checkout.layout, "toy", "1.1", new, run)
    assert asked == ["tests/test_toy.py::test_toy"]
    assert verdict.outcome == ("merged upstream" if merged else "applies")
    assert (verdict.regression_passes, verdict.note) == (passes, note)


def test_nothing_is_changed(checkout: Checkout, new: Path) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        files = [p for top in (checkout.layout.root, new) for p in top.rglob("*") if p.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    judge(checkout, new)
    assert state() == before


def test_a_series_that_does_not_apply_to_its_own_release_is_refused(
    checkout: Checkout, new: Path
) -> None:
    checkout.replace("only.patch", " line 4\n", " line four\n")
    with pytest.raises(ProblemsError, match="line four"):
        judge(checkout, new)


def test_a_missing_tree_is_named(checkout: Checkout, new: Path) -> None:
    with pytest.raises(SourceError, match=r"expected the unpacked toy 1.1, found no folder"):
        judge(checkout, new / "nowhere")


def test_an_old_git_is_named(
    checkout: Checkout, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "git_version", lambda: (2, 30))
    with pytest.raises(MachineError, match=r"expected 2.38 or newer .*, found 2.30"):
        judge(checkout, new)


@pytest.mark.parametrize("text", ["abc", "", "../x"])
def test_what_is_no_version_is_refused_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def fetch(layout: Layout, project: str) -> Pin:
        raise AssertionError("nothing to fetch for it")

    monkeypatch.setattr(commands_series, "_fetch", fetch)
    with pytest.raises(ConfigurationError) as stop:
        commands_series.rebase("lmcache", to=text)
    assert str(stop.value) == f"--to: expected a version such as 0.5.6, found '{text}'"
