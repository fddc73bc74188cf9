"""The `headrace` command: the one entry, which the image starts every engine through."""

from __future__ import annotations

import sys

from headrace.engine.hand_over import hand_over
from headrace.errors import HeadraceError


def main() -> None:
    """Run the command; a `HeadraceError` is one line on stderr and its own exit status."""
    try:
        if sys.argv[1:2] == ["serve"]:
            hand_over(sys.argv[2:])
        # Imported late: it takes longer than what is handed to vLLM may lose.
        from headrace.commands import run

        run()
    except HeadraceError as error:
        from headrace.console import say

        for line in str(error).splitlines():
            say(f"headrace: {line}")
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main()
