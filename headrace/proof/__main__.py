"""`python -m headrace.proof NAME`: a JSON request on stdin, a JSON answer on stdout."""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import sys
from collections.abc import Callable, Mapping

from headrace.proof import (
    account,
    completion,
    extensions,
    files,
    libraries,
    metadata,
    module,
    offline,
    symbols,
)
from headrace.proof.answer import Answer, Request

PROOFS: Mapping[str, Callable[[Request], Answer]] = {
    "account": account.prove,
    "completion": completion.prove,
    "extensions": extensions.prove,
    "files": files.prove,
    "libraries": libraries.prove,
    "metadata": metadata.prove,
    "module": module.prove,
    "offline": offline.prove,
    "symbols": symbols.prove,
}
DEADLINE_S = 540.0


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PROOFS:
        sys.stderr.write(f"usage: python -m headrace.proof {'|'.join(PROOFS)} < request.json\n")
        return 2
    request = json.load(sys.stdin)
    # A hang would prove nothing and say nothing: leave with every stack instead.
    faulthandler.dump_traceback_later(request.get("deadline_s", DEADLINE_S), exit=True)
    # Whatever an imported module prints, the answer stays the only thing on stdout.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answer = PROOFS[arguments[0]](request)
    faulthandler.cancel_dump_traceback_later()
    with answers:
        json.dump(dataclasses.asdict(answer), answers)
        answers.write("\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
