#!/usr/bin/env bash
# The test suite: lint, the two LMCache builds that the tests compare, upstream's own tests of what
# the series touches, then ours. Arguments go to pytest; with any, upstream's tests are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python

ci/lint.sh
"$python" build.py check
"$python" build.py wheels --flavor cpu --stock
if [ $# -eq 0 ]; then
    "$python" build.py upstream --scope touched
fi
# What hangs is a finding: each test has a deadline, and dumps its stacks when it passes.
exec "$python" -X faulthandler -m pytest --durations=15 "$@"
