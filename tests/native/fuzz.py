"""Fuzz the reply reader for long: `python -m tests.native.fuzz --seconds 3600 --jobs 2`.

The corpus is kept between runs, so that a run goes on where the last one ended. An input that
breaks a property is kept beside it and named, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from headrace.pipeline.layout import Layout
from tests.native import corpus, toolchain
from tests.native.conftest import tree_of


def command(program: Path, corpus_folder: Path, findings: Path, seconds: int) -> list[str]:
    """Return the command line of one fuzzing process; it writes into both folders."""
    return [
        str(program), str(corpus_folder), f"-artifact_prefix={findings}{os.sep}",
        f"-max_total_time={seconds}", f"-max_len={corpus.MAX_BYTES}", "-timeout=10",
        "-rss_limit_mb=1024", "-print_final_stats=1",
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    folder = Layout.find().root / "build" / "native"
    corpus_folder, findings = folder / "corpus", folder / "findings"
    corpus.write(corpus_folder)
    findings.mkdir(exist_ok=True)
    try:
        program = toolchain.fuzzer(tree_of("patched"), folder)
    except (toolchain.MissingToolError, AssertionError) as error:
        print(error, file=sys.stderr)
        return 1
    line = command(program, corpus_folder, findings, arguments.seconds)
    # Each process reads again, now and then, what the others have added to the corpus.
    running = []
    for number in range(arguments.jobs):
        log = (folder / f"fuzz-{number}.log").open("wb")
        running.append(subprocess.Popen([*line, "-reload=10"], stdout=log, stderr=log))
    print(f"{arguments.jobs} processes for {arguments.seconds} s; logs: {folder}/fuzz-*.log")
    failed = [number for number, process in enumerate(running) if process.wait() != 0]
    for number in failed:
        print(f"fuzz-{number}.log: a property broke; inputs: {findings}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
