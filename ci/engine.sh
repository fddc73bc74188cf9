#!/usr/bin/env bash
# The real engine's tests: vLLM on the CPU with the patched LMCache, on two ranks. Makes build/engine,
# the image's Python environment, from the wheels that `make build` fetched: no network, every file
# checked by its hash. Arguments go to pytest. The engines' logs stay in build/log/engine.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
engine=build/engine

"$python" build.py wheels --flavor cpu --stock
wanted="$(cat locks/cpu.txt ci/engine.sh | sha256sum | cut -d' ' -f1)"
if [ "$(cat "$engine/headrace-lock" 2>/dev/null || true)" != "$wanted" ]; then
    echo "making $engine from locks/cpu.txt"
    "$python" -m venv --clear --without-pip "$engine"
    "$python" -m pip --python "$engine/bin/python" --disable-pip-version-check install --quiet \
        --no-index --find-links build/wheelhouse/cpu --no-deps --require-hashes --no-compile \
        --requirement locks/cpu.txt || {
        echo "make engine: pip failed; run \`make build\`, which fetches what locks/cpu.txt names" >&2
        exit 10
    }
    echo "$wanted" >"$engine/headrace-lock"
fi
exec "$python" -m tests.engine.run --durations=5 "$@"
