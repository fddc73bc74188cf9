"""What a suite found: one record a case, one verdict for all, and the files that say so."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from headrace.console import disk_error
from headrace.errors import SuiteFailedError, SuiteVoidError

Verdict = Literal["green", "red", "void"]

RESULTS = "results.jsonl"
JUNIT = "junit.xml"

# XML 1.0 cannot hold most control characters, not even escaped; replies under test have many.
_PRINTABLE = {code: "\N{REPLACEMENT CHARACTER}" for code in range(32) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True)
class CaseResult:
    """One case. `void` means that the state which the case needs was not reached."""

    suite: str
    case: str
    expected: str
    seen: str
    verdict: Verdict
    ms: float


def overall(results: Sequence[CaseResult]) -> Verdict:
    """Return red if any case is red, else void if any is void or there is none, else green."""
    verdicts = {result.verdict for result in results}
    if "red" in verdicts:
        return "red"
    return "green" if verdicts == {"green"} else "void"


def write_results(
    folder: Path, suite: str, results: Sequence[CaseResult], about: Mapping[str, str]
) -> None:
    """Write results.jsonl (one line a case) and junit.xml into `folder`, each whole or not at all.

    `about` says what was tested and becomes the JUnit suite's properties.

    Raises:
        MachineError: the folder cannot be written.
    """
    lines = "".join(json.dumps(asdict(result), ensure_ascii=False) + "\n" for result in results)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / RESULTS, lines.encode())
        _replace(folder / JUNIT, _junit(suite, results, about))
    except OSError as failure:
        raise disk_error(failure, folder) from failure


def raise_unless_green(suite: str, results: Sequence[CaseResult], folder: Path) -> None:
    """Turn the verdict into the exit status.

    Raises:
        SuiteFailedError: a case is red.
        SuiteVoidError: none is red, and one is void or there is no case.
    """
    verdict = overall(results)
    if verdict == "green":
        return
    count = sum(result.verdict == verdict for result in results)
    message = f"{suite}: {count} of {len(results)} cases {verdict}; see {folder / RESULTS}"
    raise SuiteFailedError(message) if verdict == "red" else SuiteVoidError(message)


def _junit(suite: str, results: Sequence[CaseResult], about: Mapping[str, str]) -> bytes:
    def count(verdict: Verdict) -> str:
        return str(sum(result.verdict == verdict for result in results))

    root = ET.Element(
        "testsuite",
        name=suite,
        tests=str(len(results)),
        failures=count("red"),
        # Void is an error and not "skipped": a gate that cannot run must not read as passed.
        errors=count("void"),
        time=f"{sum(result.ms for result in results) / 1000:.3f}",
    )
    properties = ET.SubElement(root, "properties")
    for name, value in about.items():
        ET.SubElement(properties, "property", name=name, value=value.translate(_PRINTABLE))
    for result in results:
        case = ET.SubElement(
            root, "testcase", classname=suite, name=result.case, time=f"{result.ms / 1000:.3f}"
        )
        if result.verdict != "green":
            tag = "failure" if result.verdict == "red" else "error"
            seen = result.seen.translate(_PRINTABLE)
            node = ET.SubElement(case, tag, message=seen, type=result.verdict)
            node.text = f"expected: {result.expected}\nseen: {seen}".translate(_PRINTABLE)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)
