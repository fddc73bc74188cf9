#!/bin/sh
# Install the Debian packages named in /mnt/SET.txt from the flat repository in /mnt.
# Usage: install-debs.sh SET   (a build step; LOCK_EPOCH is set)
set -eu
export APT_CONFIG=/mnt/apt.conf DEBIAN_FRONTEND=noninteractive
# Maintainer scripts and useradd write dates, and take them from here.
export SOURCE_DATE_EPOCH="$LOCK_EPOCH"

mkdir -p /tmp/lists/partial /tmp/cache/archives/partial
apt-get update --quiet=2
xargs --arg-file="/mnt/$1.txt" apt-get install --yes --quiet=2 --no-install-recommends
