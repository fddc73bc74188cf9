#!/usr/bin/env bash
# Stock and patched RESP client side by side, in one run.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python build.py wheels --flavor cpu --stock
exec .venv/bin/headrace bench resp --stock build/site/stock --patched build/site/patched "$@"
