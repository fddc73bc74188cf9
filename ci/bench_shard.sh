#!/usr/bin/env bash
# How stock and patched store and load one prompt on all ranks of a replica, in one run.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python build.py wheels --flavor cpu --stock
exec .venv/bin/headrace bench shard --stock build/site/stock --patched build/site/patched "$@"
