#!/usr/bin/env bash
# ruff, mypy --strict, hadolint and shell syntax: what `make test` checks first.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/hadolint" docker/Dockerfile
for script in ci/*.sh .ci/run; do bash -n "$script"; done
