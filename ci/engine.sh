#!/usr/bin/env bash
# The real engine's tests: vLLM on the CPU with the patched LMCache, on two ranks. Makes build/engine,
# the image's Python environment, from the wheels that `make build` fetched: no network, every file
# checked by its hash. Arguments go to pytest. The engines' logs stay in build/log/engine.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
engine=build/engine

"$python" build.py wheels --flavor cpu --stock
wanted="$(cat locks/cpu.txt ci/engine.sh headrace/pipeline/alias.py | sha256sum | cut -d' ' -f1)"
if [ "$(cat "$engine/headrace-lock" 2>/dev/null || true)" != "$wanted" ]; then
    echo "making $engine from locks/cpu.txt"
    "$python" -m venv --clear --without-pip "$engine"
    pip=("$python" -m pip --python "$engine/bin/python" --disable-pip-version-check install --quiet
        --no-index --no-deps --no-compile)
    # The second one is the name under which `vllm serve` asks for its own version.
    if ! "${pip[@]}" --find-links build/wheelhouse/cpu --require-hashes --requirement locks/cpu.txt ||
        ! "${pip[@]}" build/wheels/cpu/vllm-*.whl; then
        echo "make engine: pip failed; run \`make build\`, which fetches what locks/cpu.txt names" >&2
        exit 10
    fi
    echo "$wanted" >"$engine/headrace-lock"
fi
exec "$python" -m tests.engine.run --durations=5 "$@"
