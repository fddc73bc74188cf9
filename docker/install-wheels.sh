#!/bin/sh
# Install the wheels in /mnt, exactly those of /mnt/requirements.txt, into the venv /opt/headrace
# with the pip wheel in /media, which itself is not installed.
# Usage: install-wheels.sh   (a build step; LOCK_EPOCH is set)
set -eu
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
venv=/opt/headrace

[ -x $venv/bin/python ] || python3 -m venv --without-pip $venv
pip=$(echo /media/pip-*.whl)/pip
$venv/bin/python "$pip" install --quiet --disable-pip-version-check --root-user-action=ignore \
    --no-index --find-links /mnt --no-deps --require-hashes --no-compile --no-cache-dir \
    --requirement /mnt/requirements.txt
# Byte code that is checked by the hash of its source: the same bytes in each build, quick to start,
# and never used for a source that someone changed, as byte code without a check would be.
# What a layer below holds has an older date and is not compiled again. A few packages carry files
# for another Python, which no release of this one compiles.
find $venv/lib -name '*.py' -newermt "@$LOCK_EPOCH" | LC_ALL=C sort |
    $venv/bin/python -m compileall -qq -j 0 --invalidation-mode checked-hash -i - || true
