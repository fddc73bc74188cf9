#!/usr/bin/env bash
# The test suite: lint, the two LMCache builds that the tests compare, then pytest.
# Arguments go to pytest; without them everything runs.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python

ci/lint.sh
"$python" build.py check
"$python" build.py wheels --flavor cpu --stock
# What hangs is a finding: each test has a deadline, and dumps its stacks when it passes.
exec "$python" -X faulthandler -m pytest --durations=15 "$@"
