#!/bin/sh
# Remove what differs between two equal Debian roots, and what an image has no use for.
# Usage: tidy-debian.sh [ROOT]   (used for the base image and again after its packages grow)
set -eu
root=${1:-}

rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/cache/ldconfig/aux-cache
rm -f "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root"/var/lib/dpkg/lock*
rm -f "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- "$root"/etc/gshadow-
find "$root/var/log" -type f -delete
# An empty file lets each container get its own id; a missing one is no valid state.
: > "$root/etc/machine-id"
