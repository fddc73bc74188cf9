#!/usr/bin/env bash
# Make .venv with all that a checkout needs, from locks/dev.txt, every file checked by its hash.
# PYTHON names the interpreter (default: python3.11 from PATH).
set -euo pipefail
cd "$(dirname "$0")/.."

# Two builds of one checkout take turns; the second finds the environment made.
mkdir -p build/log
exec 9>build/.venv-lock
flock 9

wanted="$(cat locks/dev.txt ci/venv.sh pyproject.toml | sha256sum | cut -d' ' -f1)"
if [ "$(cat .venv/headrace-lock 2>/dev/null || true)" = "$wanted" ]; then
    exit 0
fi

python="${PYTHON:-python3.11}"
if ! found="$("$python" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"; then
    echo "make venv: expected '$python' with its venv module, found none;" \
        "on Debian 12: apt-get install python3 python3-venv python3-dev" >&2
    exit 10
fi
if [ "$found" != 3.11 ]; then
    echo "make venv: expected Python 3.11 (the image's), found $found at '$python'; set PYTHON" >&2
    exit 10
fi

log=build/log/venv.log
echo "making .venv from locks/dev.txt (log: $log)"
failed() {
    tail -n 5 "$log" >&2
    echo "make venv: pip failed, see $log; check the network and \`pip config list\`, then run it again" >&2
    exit 10
}
# --clear: a killed run may have left half an environment behind.
"$python" -m venv --clear .venv >"$log" 2>&1 || failed
pip=(.venv/bin/python -m pip --disable-pip-version-check install --no-deps --no-compile --require-hashes)

only() { awk -v name="$1==" 'index($0, name) == 1 {on = 1} on {print} on && !/\\$/ {exit}' locks/dev.txt; }
# Torch's CPU build may lie in a wheelhouse that pip knows; else it is on the public CPU index.
only torch >build/log/torch.txt
"${pip[@]}" -r build/log/torch.txt >>"$log" 2>&1 ||
    "${pip[@]}" -r build/log/torch.txt --index-url https://download.pytorch.org/whl/cpu >>"$log" 2>&1 || failed
"${pip[@]}" -r locks/dev.txt >>"$log" 2>&1 || failed
.venv/bin/python -m pip --disable-pip-version-check install --no-deps --no-build-isolation \
    --editable . >>"$log" 2>&1 || failed
echo "$wanted" >.venv/headrace-lock
