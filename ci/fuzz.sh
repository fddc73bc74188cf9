#!/usr/bin/env bash
# Fuzz the reply reader of the patched client: ci/fuzz.sh [SECONDS]. The corpus is kept, so a later
# run goes on from it; findings lie in build/native/findings.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python build.py patch
exec .venv/bin/python -m tests.native.fuzz --seconds "${1:-3600}" --jobs "$(nproc)"
