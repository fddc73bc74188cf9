#!/usr/bin/env bash
# Compile what the FlashInfer series touches, for the GPUs that it is for, and look at the result:
# no GPU and no system CUDA needed. What is compiled here is never shipped: the headers of the GEMM
# kernels stand in for those of the release, see tests/kernel/gate_headers.py. Minutes, and 0.6 GB to
# download the first time.
#
#   ci/compile_gate.sh          the files that the series touches
#   ci/compile_gate.sh --link   FlashInfer's whole module instead, as `wheels --module aot` compiles it
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
gate=build/gate
cubins=flashinfer_cubin-0.6.13-py3-none-any.whl
cubins_sha256=41e4848c2d09d220e8394489b2fb6cfec6b6ad09f897b5ab8b39fc23055f6c24
case "$*" in
"") run=tests.kernel.compile_gate ;;
--link) run=tests.kernel.link_gate ;;
*)
    echo "ci/compile_gate.sh: expected --link or nothing, found '$*'" >&2
    exit 2
    ;;
esac
if [ ! -f .venv/headrace-lock ]; then
    echo "ci/compile_gate.sh: expected the checkout's environment in .venv, found none;" \
        "run \`make venv\`" >&2
    exit 10
fi
pip=("$python" -m pip --disable-pip-version-check --quiet)

failed() {
    echo "make compile-gate: $1; check the network and \`pip config list\`, then run it again" >&2
    exit 10
}
mkdir -p "$gate"
wanted="$(
    { cat locks/kernel-gate.txt tests/kernel/gate_headers.py; echo "$cubins_sha256"; } | sha256sum |
        cut -d' ' -f1
)"
if [ "$(cat "$gate/headrace-lock" 2>/dev/null || true)" != "$wanted" ]; then
    echo "making $gate from locks/kernel-gate.txt"
    rm -rf "$gate"
    mkdir -p "$gate"
    "${pip[@]}" install --no-deps --no-compile --require-hashes --only-binary :all: \
        --target "$gate/toolchain" -r locks/kernel-gate.txt || failed "pip did not bring nvcc"
    "${pip[@]}" download --no-deps --only-binary :all: --dest "$gate" flashinfer-cubin==0.6.13 ||
        failed "pip did not bring $cubins"
    echo "$cubins_sha256  $gate/$cubins" | sha256sum --check --quiet ||
        failed "$gate/$cubins: expected sha256 $cubins_sha256, found another"
    "$python" -m tests.kernel.gate_headers "$gate/$cubins" "$gate/headers"
    rm "$gate/$cubins"
    echo "$wanted" >"$gate/headrace-lock"
fi
"$python" build.py patch
exec "$python" -m "$run"
