#!/usr/bin/env bash
# What the stock release makes of every cell of the sharded store's table: writes the committed
# tests/patches/lmcache/stock_table.json.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python build.py wheels --flavor cpu --stock
exec .venv/bin/python -m tests.patches.lmcache.stock_table build/site/stock
