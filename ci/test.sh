#!/usr/bin/env bash
# The test suite: lint, the patched trees and the two LMCache builds that the tests compare, upstream's
# own tests of what LMCache's series touches, ours, and a real engine's. Arguments go to pytest; with
# any, upstream's and the engine's are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python

ci/lint.sh
"$python" build.py check
"$python" build.py patch
"$python" build.py wheels --flavor cpu --stock
if [ $# -eq 0 ]; then
    "$python" build.py upstream --scope touched
fi
# What hangs is a finding: each test has a deadline, and dumps its stacks when it passes.
"$python" -X faulthandler -m pytest --durations=15 "$@"
if [ $# -eq 0 ]; then
    # One mode of three, and the needle suite: `make engine` asks them all.
    HEADRACE_ENGINE_MODE=sharded,needle-suite ci/engine.sh
fi
