"""Patch files: header fields by their grammar, a diff that cannot lie about itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.fields import GRAMMAR
from headrace.pipeline.patchfile import (
    MAX_SUBJECT,
    PatchFile,
    file_name,
    message_problem,
    parse_patch,
)
from headrace.pipeline.problem import ProblemsError

ROOT = Path("/checkout")
PATH = ROOT / "patches/toy/say-it-twice.patch"
HEAD = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: headrace maintainers <maintainers@headrace.invalid>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: Say it twice

Origin: https://example.org/pull/1
Forwarded: not-needed
Upstream-Status: Submitted [https://example.org/pull/1]
Applies-To: toy 1.0
Mode: native client
Regression-Test: tests/test_toy.py::test_toy
Regression-Test: tests/toy/test_more.py::TestMore::test_more

Once was not enough.

"""
DIFF = """\
diff --git a/toy.py b/toy.py
index 1111111111111111111111111111111111111111..2222222222222222222222222222222222222222 100644
--- a/toy.py
+++ b/toy.py
@@ -3,3 +3,4 @@ def toy():
 three
-four
+four!
+four!
 five
"""
DIFF_AT = HEAD.count("\n") + 1


def parse(text: str | bytes, path: Path = PATH) -> PatchFile:
    return parse_patch(path, ROOT, text.encode() if isinstance(text, str) else text)


def problem_of(text: str | bytes) -> str:
    with pytest.raises(ProblemsError) as refused:
        parse(text)
    (problem,) = refused.value.problems
    assert problem.file == "patches/toy/say-it-twice.patch"
    return f"{problem.line}: {problem.expected} <> {problem.found}"


def header_problems(old: str, new: str) -> list[str]:
    assert old in HEAD
    return [
        f"{p.line}: {p.expected} <> {p.found}"
        for p in parse(HEAD.replace(old, new, 1) + DIFF).problems
    ]


def test_everything_is_read() -> None:
    patch = parse(HEAD + DIFF)
    assert patch.problems == ()
    assert patch.subject == "Say it twice"
    assert patch.body.endswith("\n\nOnce was not enough.")
    assert [(f.name, f.line) for f in patch.fields][-1] == ("Regression-Test", 12)
    assert patch.value("Mode") == "native client"
    assert patch.regression_tests == (
        "tests/test_toy.py::test_toy",
        "tests/toy/test_more.py::TestMore::test_more",
    )
    assert not patch.merged_upstream
    (change,) = patch.changes
    assert (change.line, change.path, change.old_mode) == (DIFF_AT, "toy.py", "100644")
    (hunk,) = change.hunks
    assert hunk.old == [b"three\n", b"four\n", b"five\n"]
    assert hunk.new == [b"three\n", b"four!\n", b"four!\n", b"five\n"]
    assert (hunk.line, hunk.old_start, hunk.new_start) == (DIFF_AT + 4, 3, 3)


def test_what_other_settings_of_format_patch_write_can_be_opened() -> None:
    head = HEAD.replace("Subject: ", "Subject: [PATCH 2/7] ").replace("it twice", "it\n twice")
    statistics = "---\n toy.py | 3 ++-\n 1 file changed, 2 insertions(+), 1 deletion(-)\n\n"
    patch = parse(head + statistics + DIFF + "-- \n2.39.5\n\n")
    assert (patch.subject, patch.problems) == ("Say it twice", ())
    assert patch.body.endswith("Once was not enough.")


def test_a_removed_line_that_looks_like_a_signature_is_one_of_the_hunk() -> None:
    diff = DIFF.replace("-four\n", "-- \n")
    assert b"- \n" in parse(HEAD + diff + "-- \n2.39\n\n").changes[0].hunks[0].old


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("http://example.org", "Origin"),
        ("somewhere", "Origin"),
        ("yes", "Forwarded"),
        ("Submitted", "Upstream-Status"),
        ("Submitted [PR 5]", "Upstream-Status"),
        ("Inappropriate []", "Upstream-Status"),
        ("Pending", "Upstream-Status"),
        ("toy", "Applies-To"),
        ("toy 1.0 or later", "Applies-To"),
        ("native", "Mode"),
        ("kernel, in-process", "Mode"),
        ("tests/test_toy.py", "Regression-Test"),
        ("tests/test_toy.py ::test_toy", "Regression-Test"),
        ("tests/../test_toy.py::test_toy", "Regression-Test"),
        ("tests/test_toy.py::toy", "Regression-Test"),
    ],
)
def test_a_field_of_another_grammar_is_named(value: str, field: str) -> None:
    text = next(line for line in HEAD.split("\n") if line.startswith(f"{field}: "))
    line = HEAD.split("\n").index(text) + 1
    expected = f"{line}: '{field}:' to be {GRAMMAR[field][1]} <> {value!r}"
    assert header_problems(text, f"{field}: {value}") == [expected]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Origin", "headrace"),
        ("Forwarded", "no"),
        ("Forwarded", "https://example.org/pull/1"),
        ("Upstream-Status", "Backport [1.1]"),
        ("Upstream-Status", "Inappropriate [ours alone]"),
        ("Mode", "in-process"),
        ("Mode", "multi-process"),
        ("Mode", "kernel"),
    ],
)
def test_every_value_of_the_grammar_is_taken(field: str, value: str) -> None:
    text = next(line for line in HEAD.split("\n") if line.startswith(f"{field}: "))
    assert header_problems(text, f"{field}: {value}") == []


def test_a_backport_is_merged_upstream() -> None:
    head = HEAD.replace("Submitted [https://example.org/pull/1]", "Backport [1.1]")
    assert parse(head + DIFF).merged_upstream


def test_missing_repeated_and_unknown_fields_are_all_named() -> None:
    names = ", ".join(GRAMMAR)
    assert header_problems("Mode: native client", "Moed: kernel\nOrigin: headrace") == [
        "11: 'Origin:' once <> 2",
        "6: the field 'Mode:' in the first paragraph after the subject <> none",
        f"10: one of {names} <> 'Moed'",
    ]


def test_fields_after_a_blank_line_are_prose() -> None:
    assert header_problems("Origin", "Reasons first.\n\nOrigin") == [
        f"4: {', '.join(GRAMMAR)} in the first paragraph after the subject <> none of these fields"
    ]


@pytest.mark.parametrize("subject", ["Sägt es zweimal", "x" * (MAX_SUBJECT + 1)])
def test_a_subject_that_gives_no_file_name_is_refused(subject: str) -> None:
    (found,) = header_problems("Say it twice", subject)
    assert found == f"4: a subject of 1 to {MAX_SUBJECT} ASCII characters <> {subject!r}"


def test_the_name_comes_from_the_subject() -> None:
    assert file_name("Say it: {rank} in `remote_url` (#5548)") == (
        "say-it-rank-in-remote-url-5548.patch"
    )
    (found,) = header_problems("Say it twice", "Say it thrice")
    assert found == ("4: the name say-it-thrice.patch for this subject <> say-it-twice.patch")


@pytest.mark.parametrize(
    ("old", "new", "offset", "expected"),
    [
        ("-3,3 +3,4", "-3,4 +3,4", 4, "4 old and 4 new lines as the hunk header says <> 3 old and"),
        ("-3,3 +3,4", "-3,3 +3,3", 4, "3 old and 3 new lines as the hunk header says <> 3 old and"),
        ("-3,3 +3,4", "-3,2 +3,3", 4, "2 old and 3 new lines as the hunk header says <> 3 old and"),
        ("-3,3 +3,4", "-3,3 +4,4", 4, "+3 as new start <> +4"),
        ("-3,3 +3,4", "-0,3 +0,4", 4, "lines that count from 1"),
        ("@@ -3,3 +3,4", "@@ -3;3 +3,4", 4, "a hunk header"),
        (" three\n", "\n", 5, "' ', '-', '+' or '\\' first (did an editor strip spaces?) <> ''"),
        (" five\n", "", 4, "3 old and 4 new lines as the hunk header says <> 2 old and 3 new"),
        ("--- a/toy.py", "--- a/other.py", 2, "'--- a/toy.py' <> '--- a/other.py'"),
        ("+++ b/toy.py", "+++ b/other.py", 3, "'+++ b/toy.py' <> '+++ b/other.py'"),
        ("a/toy.py b/toy.py", "a/toy.py b/other.py", 0, "one name, or 'rename from'"),
        (" 100644", " 120000", 0, "a plain file (100644 or 100755) <> 120000"),
        (" five\n", " five\nleft over\n", 9 + 1, "'diff --git a/PATH b/PATH' <> 'left over'"),
        (" five\n", " five", 9, "a newline"),
        ("-four\n", "-four\n\\ No newline\n\\ No newline\n", 8, "a line of the file before"),
        ("index", "Binary files differ\nindex", 1, "the bytes of a binary file"),
    ],
)  # fmt: skip
def test_a_diff_that_contradicts_itself_is_refused(
    old: str, new: str, offset: int, expected: str
) -> None:
    assert old in DIFF
    found = problem_of(HEAD + DIFF.replace(old, new, 1))
    assert found.startswith(f"{DIFF_AT + offset}: {expected}")


def test_a_line_without_newline_at_the_end_of_its_file_is_read() -> None:
    diff = DIFF.replace("+four!\n five\n", "+four!\n\\ No newline at end of file\n").replace(
        "-3,3 +3,4", "-3,2 +3,3"
    )
    assert parse(HEAD + diff).changes[0].hunks[0].new[-1] == b"four!"


def test_hunks_that_overlap_are_refused() -> None:
    again = "@@ -4 +5 @@\n-five\n+5\n"
    assert (
        problem_of(HEAD + DIFF + again)
        == f"{DIFF_AT + 10}: hunks in order, none over another <> one that goes back"
    )


@pytest.mark.parametrize(
    "path", ["../toy.py", "/etc/passwd", "a/../../toy.py", ".git/config", "x/.GIT/hooks/y", "a//b"]
)
def test_a_path_that_leaves_the_tree_is_refused(path: str) -> None:
    found = problem_of(HEAD + DIFF.replace("toy.py", path))
    assert found == f"{DIFF_AT}: a path inside the tree <> {path!r}"


def test_a_rename_out_of_the_tree_is_refused() -> None:
    diff = "diff --git a/x b/../y\nsimilarity index 100%\nrename from x\nrename to ../y\n"
    assert problem_of(HEAD + diff) == f"{DIFF_AT}: a path inside the tree <> '../y'"


def test_quoted_names_are_read() -> None:
    diff = (
        'diff --git "a/f\\303\\251\\t.py" "b/f\\303\\251\\t.py"\nold mode 100644\nnew mode 100755\n'
    )
    (change,) = parse(HEAD + diff).changes
    assert (change.path, change.new_mode) == ("fé\t.py", "100755")


def test_crlf_line_ends_of_the_file_are_refused() -> None:
    assert problem_of((HEAD + DIFF).replace("\n", "\r\n")).startswith("1: LF line ends <> CRLF")
    diff = DIFF.replace("\n", "\r\n")
    assert problem_of(HEAD + diff) == (
        f"{DIFF_AT}: LF line ends in the headers of a diff <> 'diff --git a/toy.py b/toy.py\\r'"
    )


def test_crlf_and_trailing_space_of_the_source_are_content() -> None:
    diff = DIFF.replace("four\n", "four\r\n").replace("+four!\n", "+four!  \t\n")
    hunk = parse(HEAD + diff).changes[0].hunks[0]
    assert hunk.old[1] == b"four\r\n"
    assert hunk.new[1] == b"four!  \t\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1: a diff"),
        ("just prose\n", "1: a diff"),
        (DIFF, "1: 'From ' and a commit id"),
        (HEAD.replace("From 0", "From: 0") + DIFF, "1: 'From ' and a commit id"),
        (HEAD.replace("Subject: Say it twice\n", "") + DIFF, "4: a 'Subject:' above this line"),
        (HEAD.replace("Date:", "Dated:") + DIFF, "3: From, Date, Subject or a blank line"),
        (HEAD, f"{DIFF_AT - 1}: a diff"),
    ],
)
def test_what_is_not_a_patch_is_refused(text: str, expected: str) -> None:
    assert problem_of(text).startswith(expected)


def test_other_encodings_are_refused_in_the_message_alone() -> None:
    latin = HEAD.replace("enough", "genügt").encode("latin-1")
    assert problem_of(latin + DIFF.encode()).startswith("14: UTF-8 <> 'Once was not gen\\\\xfc")
    assert parse(HEAD.encode() + DIFF.replace("four!", "vïer").encode("latin-1")).problems == ()


@pytest.mark.parametrize("line", ["---", "--- a/x", "diff --git a/x b/x", "Index: x", "a\rb"])
def test_a_message_that_would_be_cut_is_found(line: str) -> None:
    assert message_problem(f"Subject\n\nbody\n{line}\nmore\n")
    assert not message_problem("Subject\n\nFrom here on - and --- dashes in a line\n")


@given(st.data())
def test_damage_is_refused_or_read_but_never_a_crash(data: st.DataObject) -> None:
    text = (HEAD + DIFF).encode()
    start = data.draw(st.integers(0, len(text)))
    size = data.draw(st.integers(0, 40))
    put = data.draw(st.one_of(st.binary(max_size=8), st.sampled_from([b"\n", b"@@ ", b"-", b"\\"])))
    damaged = text[:start] + put + text[start + size :]
    try:
        patch = parse(damaged)
    except ProblemsError as refused:
        assert all(problem.line >= 1 for problem in refused.problems)
        return
    for change in patch.changes:
        for hunk in change.hunks:
            assert (len(hunk.old), len(hunk.new)) == (hunk.old_count, hunk.new_count)
