"""The one entry of the build: `python build.py COMMAND`; see `python build.py --help`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parent / ".venv"


def main() -> None:
    """Run the command line in this checkout's environment, whichever Python was called."""
    python = VENV / "bin" / "python"
    if not (VENV / "headrace-lock").is_file():
        sys.exit(f"{VENV}: expected the checkout's environment, found none; run `make venv`")
    if Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(python, [str(python), *sys.argv])
    from headrace.pipeline.cli import main as run

    run()


if __name__ == "__main__":
    main()
