#!/bin/sh
# Give everything that this build step wrote the date of the lock, so that a layer depends on
# neither the clock nor the commit. (BuildKit can clamp times when it exports, but then compresses
# every layer again for each export, which takes longer than the whole rest of a cached build.)
# Usage: settle.sh   (the end of a build step; LOCK_EPOCH is set)
set -eu

# What is mounted during the step is not in the layer.
find / \( -path /dev -o -path /proc -o -path /sys -o -path /tmp -o -path /mnt -o -path /media \
    -o -path /srv -o -path /etc/hosts -o -path /etc/hostname -o -path /etc/resolv.conf \) -prune \
    -o -newermt "@$LOCK_EPOCH" -exec touch --no-dereference --date "@$LOCK_EPOCH" {} +
