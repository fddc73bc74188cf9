#!/usr/bin/env bash
# Mixed requests on three ranks with the sharded store, synchronous and asynchronous, and what they
# leave behind: ci/no_leak.sh [REQUESTS].
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python build.py wheels --flavor cpu --stock
export HEADRACE_MIXED_REQUESTS="${1:-10000}" HEADRACE_SITE="$PWD/build/site/patched"
PYTHONPATH="$HEADRACE_SITE" exec .venv/bin/python -X faulthandler -m pytest -s \
    tests/patches/lmcache/test_sharded_no_leak.py
