"""`edit` and `refresh`: a series goes through commits and comes back as the same bytes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.errors import MachineError, SeriesError
from headrace.pipeline.edit import edit
from headrace.pipeline.git import clean_environment
from headrace.pipeline.problem import ProblemsError
from headrace.pipeline.refresh import Refreshed, refresh
from tests.pipeline.test_series import all_kinds
from tests.pipeline.toy import PINS, PRISTINE, Checkout, git, message_of, numbers, text

HOSTILE = """\
[core]
    autocrlf = true
    eol = crlf
    quotePath = false
    abbrev = 4
    attributesFile = {folder}/attributes
    excludesFile = {folder}/excludes
    hooksPath = {folder}/hooks
    commentChar = S
[user]
    name = Somebody Else
    email = else@example.org
[commit]
    gpgSign = true
[diff]
    noprefix = true
    mnemonicPrefix = true
    renames = false
    algorithm = patience
    context = 9
    interHunkContext = 9
    indentHeuristic = false
    orderFile = {folder}/order
    suppressBlankEmpty = true
    external = false
    submodule = log
[format]
    subjectPrefix = HOSTILE
    signature = hostile
    numbered = true
    attach = true
    headers = "X-Hostile: yes"
    signOff = true
    noprefix = true
    useAutoBase = true
    coverLetter = true
    notes = true
    pretty = oneline
[log]
    showSignature = true
    date = relative
[color]
    ui = always
[i18n]
    commitEncoding = ISO-8859-1
    logOutputEncoding = ISO-8859-1
[init]
    defaultObjectFormat = sha256
    templateDir = {folder}/template
[apply]
    whitespace = fix
[status]
    showUntrackedFiles = no
[merge]
    conflictStyle = diff3
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings of a user that change every byte they can; returns the config file."""
    folder = tmp_path / "home"
    (folder / "hooks").mkdir(parents=True)
    (folder / "template").mkdir()
    (folder / "order").write_text("*.bin\n*.py\n")
    (folder / "attributes").write_text("*.py text eol=crlf diff=nonsense ident\n")
    (folder / "excludes").write_text("*.py\n")
    for hook in ("commit-msg", "pre-commit", "post-commit"):
        (folder / "hooks" / hook).write_text("#!/bin/sh\nexit 1\n")
        (folder / "hooks" / hook).chmod(0o755)
    config = folder / ".gitconfig"
    config.write_text(HOSTILE.format(folder=folder))
    for key, value in {
        "HOME": str(folder),
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_AUTHOR_NAME": "Somebody Else",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00 +0900",
        "GIT_DIFF_OPTS": "--unified=1",
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_DIR": str(folder / "nowhere"),
        "LC_ALL": "de_DE.UTF-8",
        "TZ": "Asia/Tokyo",
    }.items():
        monkeypatch.setenv(key, value)
    return config


def commit(folder: Path, message: str, files: dict[str, bytes]) -> None:
    Checkout.write(folder, files)
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "-m", message)


def opened(checkout: Checkout) -> Path:
    checkout.series(
        ("First", {"toy/numbers.py": numbers(line_20="twenty")}),
        ("Second", {"toy/new.py": text(b"new\n")}),
    )
    return edit(checkout.layout, "toy")


def test_import_and_export_give_the_same_bytes(checkout: Checkout) -> None:
    all_kinds(checkout)
    before = checkout.files()
    folder = edit(checkout.layout, "toy")
    assert git(folder, "log", "--format=%s", "--reverse").splitlines()[:3] == [
        "Pristine toy-1.0",
        "Change a line",
        "Change the same line",
    ]
    assert "Origin: headrace" in git(folder, "log", "-1", "--format=%b")
    assert git(folder, "status", "--porcelain", "--ignored") == ""
    assert (folder / "toy/deep/er/new file é.py").read_bytes() == b"no newline at the end"
    done = refresh(checkout.layout, "toy")
    assert (done.written, done.removed) == ((), ())
    assert checkout.files() == before
    assert checkout.problems() == []


def test_no_setting_of_a_user_changes_a_byte(checkout: Checkout, hostile: Path) -> None:
    all_kinds(checkout)
    before = checkout.files()
    assert b"Somebody" not in b"".join(before.values())
    folder = edit(checkout.layout, "toy")
    for path, data in PRISTINE.items():
        if path not in ("README", "toy/kept.log", "toy/numbers.py", "toy/dos.txt", "toy/blob.bin"):
            assert (folder / path).read_bytes() == data
    # The same settings in the work tree itself, as `git config` there would leave them.
    with (folder / ".git/config").open("a") as config:
        config.write(hostile.read_text().replace("defaultObjectFormat", "defaultBranch"))
    assert refresh(checkout.layout, "toy").written == ()
    assert checkout.files() == before
    assert checkout.problems() == []


def test_a_person_with_such_settings_can_commit(checkout: Checkout, hostile: Path) -> None:
    folder = opened(checkout)
    person = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_DEFAULT_HASH")}
    dos = PRISTINE["toy/dos.txt"].replace(b"two", b"TWO")
    Checkout.write(folder, {"toy/dos.txt": dos})
    git(folder, "commit", "-a", "--no-verify", "-m", message_of("Third"), env=person)
    assert refresh(checkout.layout, "toy").written == ("third.patch", "series")
    third = (checkout.folder / "third.patch").read_bytes()
    assert b"-two\r\n+TWO\r\n" in third
    assert b"Somebody" not in third
    assert b"Date: Thu, 1 Jan 2026 00:00:00 +0000\n" in third
    assert checkout.problems() == []


def test_what_a_person_does_with_commits_is_what_the_series_becomes(checkout: Checkout) -> None:
    folder = opened(checkout)
    git(folder, "reset", "--quiet", "--hard", "HEAD~2")
    commit(folder, message_of("Zeroth (#1): ünïcode below").replace("ü", "u").replace("ï", "i")
           + "\nÜber alles  \n\n\n   indented\n", {"toy/zero.py": b"0  \n\n\t\n"})  # fmt: skip
    commit(folder, message_of("Second"), {"toy/new.py": b"new\n"})
    done = refresh(checkout.layout, "toy")
    assert done == Refreshed(
        written=("zeroth-1-unicode-below.patch", "series"),
        removed=("first.patch",),
        unchanged=("second.patch",),
    )
    assert (checkout.folder / "series").read_text().splitlines()[1:] == [
        "zeroth-1-unicode-below.patch",
        "second.patch",
    ]
    zeroth = (checkout.folder / "zeroth-1-unicode-below.patch").read_text()
    assert "\nÜber alles\n\n   indented\n" in zeroth or "\nÜber alles\n\n\n   indented\n" in zeroth
    assert "+0  \n+\n+\t\n" in zeroth
    assert checkout.problems() == []
    before = checkout.files()
    edit(checkout.layout, "toy")
    assert refresh(checkout.layout, "toy").written == ()
    assert checkout.files() == before


def test_refresh_brings_applies_to_up_to_date(checkout: Checkout) -> None:
    folder = opened(checkout)
    message = message_of("Third", **{"Applies-To": "toy 0.9"}) + "\nApplies-To: is prose here\n"
    commit(folder, message, {"third": b"3\n"})
    refresh(checkout.layout, "toy")
    third = (checkout.folder / "third.patch").read_text()
    assert "\nApplies-To: toy 1.0\n" in third
    assert "\nApplies-To: is prose here\n" in third


def test_a_series_can_start_from_nothing(checkout: Checkout) -> None:
    folder = edit(checkout.layout, "toy")
    assert refresh(checkout.layout, "toy").written == ()
    commit(folder, message_of("First"), {"toy/build/a.log": b"ignored upstream\n"})
    assert refresh(checkout.layout, "toy").written == ("first.patch", "series")
    assert checkout.problems() == []


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([["rm", "--quiet", "README"]], "found changes in README"),
        ([["config", "x.y", "z"], ["mv", "README", "READ"]], "found changes in READ"),
        ([["commit", "--quiet", "--allow-empty", "-m", "Empty"]], "found none in .* 'Empty'"),
        ([["checkout", "-q", "--orphan", "o"], ["commit", "-qm", "o"]], "found a HEAD that is not"),
        (
            [
                ["checkout", "-q", "-b", "side", "HEAD~1"],
                ["merge", "-q", "--no-ff", "-m", "Both", "series"],
            ],
            "found the merge .* 'Both'",
        ),
        ([["commit", "-q", "--amend", "-m", "Second\n\n---\nx"]], "which ends a message"),
        (
            [["commit", "-q", "--amend", "-m", "FIRST!"]],
            "one commit for first.patch, found a second",
        ),
    ],
)
def test_a_history_that_is_no_series_is_refused(
    checkout: Checkout, commands: list[list[str]], expected: str
) -> None:
    folder = opened(checkout)
    before = checkout.files()
    for command in commands:
        git(folder, *command)
    with pytest.raises(SeriesError, match=expected):
        refresh(checkout.layout, "toy")
    assert checkout.files() == before


def test_a_new_file_that_is_not_committed_is_named(checkout: Checkout) -> None:
    folder = opened(checkout)
    (folder / "toy/forgotten.py").touch()
    with pytest.raises(SeriesError, match=r"found changes in toy/forgotten.py"):
        refresh(checkout.layout, "toy")


def test_an_unfinished_rebase_is_named(checkout: Checkout) -> None:
    folder = opened(checkout)
    (folder / ".git/rebase-merge").mkdir()
    with pytest.raises(SeriesError, match=r"found rebase-merge in .git"):
        refresh(checkout.layout, "toy")


def test_every_missing_field_is_named_and_nothing_is_written(checkout: Checkout) -> None:
    folder = opened(checkout)
    before = checkout.files()
    commit(folder, message_of("Third").replace("Mode: in-process\n", ""), {"third": b"3\n"})
    commit(folder, "Fourth", {"fourth": b"4\n"})
    with pytest.raises(ProblemsError) as refused:
        refresh(checkout.layout, "toy")
    third, fourth = (str(problem) for problem in refused.value.problems)
    assert "'Third':6: expected the field 'Mode:' in the first paragraph" in third
    assert "'Fourth':4: expected Origin, Forwarded" in fourth
    assert "git rebase -i refs/headrace/base" in fourth
    assert checkout.files() == before


def test_a_full_disk_leaves_the_series_as_it_was(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = opened(checkout)
    before = checkout.files()
    commit(folder, message_of("Third"), {"third": b"3\n"})
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name.startswith(".series"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MachineError, match="no space left"):
        refresh(checkout.layout, "toy")
    assert checkout.files() == before


def test_refresh_without_edit_says_so(checkout: Checkout) -> None:
    with pytest.raises(SeriesError, match=r"run `python build.py edit toy`"):
        refresh(checkout.layout, "toy")


def test_another_pin_since_edit_is_refused(checkout: Checkout) -> None:
    opened(checkout)
    checkout.pins(PINS.replace('"1.0"', '"1.1"'))
    with pytest.raises(SeriesError, match=r"expected commits on toy-1.1, which is pinned"):
        refresh(checkout.layout, "toy")


@pytest.mark.parametrize("kind", ["commit", "change", "unfinished"])
def test_edit_does_not_lose_work(checkout: Checkout, kind: str) -> None:
    folder = opened(checkout)
    edit(checkout.layout, "toy")
    if kind == "commit":
        commit(folder, message_of("Third"), {"third": b"3\n"})
    elif kind == "change":
        (folder / "third").touch()
    else:
        (folder / ".git/rebase-apply").mkdir()
    with pytest.raises(SeriesError, match="--discard"):
        edit(checkout.layout, "toy")
    edit(checkout.layout, "toy", discard=True)
    assert git(folder, "log", "--format=%s").splitlines() == ["Second", "First", "Pristine toy-1.0"]
    assert git(folder, "status", "--porcelain") == ""


def test_work_that_was_written_back_may_go(checkout: Checkout) -> None:
    folder = opened(checkout)
    commit(folder, message_of("Third"), {"third": b"3\n"})
    refresh(checkout.layout, "toy")
    edit(checkout.layout, "toy")
    assert git(folder, "log", "-1", "--format=%s") == "Third\n"


def test_wrong_header_fields_can_be_opened_to_correct_them(checkout: Checkout) -> None:
    checkout.series(("Only", {"only": text(b"1\n")}))
    checkout.replace("only.patch", "Mode: in-process", "Mode: other")
    folder = edit(checkout.layout, "toy")
    git(folder, "commit", "--quiet", "--amend", "-m", message_of("Only"))
    refresh(checkout.layout, "toy")
    assert checkout.problems() == []


def test_a_patch_of_plain_format_patch_is_brought_into_shape(checkout: Checkout) -> None:
    folder = opened(checkout)
    commit(folder, message_of("Third") + "\nMore é.\n", {"third": b"3\n", "README": b"toys\n"})
    git(folder, "format-patch", "-1", "--start-number=3", "--signoff", "-o", str(checkout.folder))
    with (checkout.folder / "series").open("a") as series:
        series.write("0003-Third.patch\n")
    assert [str(problem).split("; run")[0] for problem in checkout.problems()] == [
        "patches/toy/0003-Third.patch:4: expected the name third.patch for this subject, "
        "found 0003-Third.patch"
    ]
    edit(checkout.layout, "toy", discard=True)
    done = refresh(checkout.layout, "toy")
    assert (done.written, done.removed) == (("third.patch", "series"), ("0003-Third.patch",))
    assert checkout.problems() == []


def test_a_patch_that_cannot_be_read_is_refused(checkout: Checkout) -> None:
    opened(checkout)
    checkout.replace("first.patch", "@@ -17,7", "@@ -17,9")
    with pytest.raises(ProblemsError, match="9 old and 7 new lines as the hunk header says"):
        edit(checkout.layout, "toy")


def test_an_offset_is_taken_and_written_back_exactly(checkout: Checkout) -> None:
    folder = opened(checkout)
    checkout.replace("first.patch", "@@ -17,7 +17,7 @@", "@@ -15,7 +15,7 @@")
    assert checkout.problems()
    edit(checkout.layout, "toy")
    assert (folder / "toy/numbers.py").read_bytes() == numbers(line_20="twenty").data
    assert (folder / "toy/new.py").is_file()
    assert refresh(checkout.layout, "toy").written == ("first.patch",)
    assert checkout.problems() == []


def test_a_conflict_with_a_new_release_is_resolved_in_the_work_tree(checkout: Checkout) -> None:
    folder = opened(checkout)
    checkout.pins(PINS.replace('"1.0"', '"1.1"'))
    newer = checkout.layout.sources / "toy-1.1"
    Checkout.write(newer, PRISTINE)
    upstream = numbers(line_20="upstream's twenty", line_1="moved\nline 1").data
    Checkout.write(newer, {"toy/numbers.py": upstream})
    with pytest.raises(SeriesError, match=r"conflict in 'First': toy/numbers.py:21; resolve it"):
        edit(checkout.layout, "toy")
    with pytest.raises(SeriesError, match=r"found rebase-apply in .git"):
        refresh(checkout.layout, "toy")
    resolved = upstream.replace(b"upstream's twenty", b"our twenty")
    Checkout.write(folder, {"toy/numbers.py": resolved})
    git(folder, "add", "toy/numbers.py")
    git(folder, "am", "--continue")
    assert refresh(checkout.layout, "toy").written == ("first.patch", "second.patch")
    assert b"Applies-To: toy 1.1\n" in (checkout.folder / "second.patch").read_bytes()
    assert checkout.problems() == []


def test_what_upstream_merged_drops_out(checkout: Checkout) -> None:
    opened(checkout)
    checkout.pins(PINS.replace('"1.0"', '"1.1"'))
    newer = checkout.layout.sources / "toy-1.1"
    Checkout.write(newer, PRISTINE)
    Checkout.write(newer, {"toy/numbers.py": numbers(line_20="twenty").data})
    folder = edit(checkout.layout, "toy")
    assert git(folder, "log", "--format=%s").splitlines() == ["Second", "Pristine toy-1.1"]
    assert refresh(checkout.layout, "toy").removed == ("first.patch",)


def test_the_clean_environment_has_nothing_of_the_user(hostile: Path) -> None:
    env = clean_environment()
    assert not any(str(hostile.parent) in value for key, value in env.items() if key != "HOME")
    assert env["GIT_AUTHOR_NAME"] == "headrace maintainers"
