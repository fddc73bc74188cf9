#!/bin/sh
# Install what `make build` and `make test` need on a bare Debian 12. Root; run again at will.
#
#   ci/install-debian.sh          says what it installs, then installs it
#   ci/install-debian.sh --check  only says what is missing; exits with 1 if anything is
#   ci/install-debian.sh --make   goes on where it can install nothing (another system, no root):
#                                 the stage that lacks a tool names it
#
# docker-buildx is not in Debian 12. Where no working docker with buildx is found, those three
# packages come from Debian 13, pinned so that nothing else of it does; they need no newer library.
set -eu
newer=trixie
etc=${HEADRACE_ETC:-/etc}
plain="python3 python3-dev python3-venv g++ git make xz-utils ccache clang-14 libclang-rt-14-dev \
llvm-14 iptables mmdebstrap skopeo docker-registry ca-certificates"
pinned="docker.io docker-cli docker-buildx"

say() { echo "install-debian: $*"; }
mode=${1:-}
refuse() {
    say "$*" >&2
    [ "$mode" != --make ] || exit 0
    exit 1
}
installed() { dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }
# A docker of another origin is left alone as long as its daemon and its buildx are there.
docker_works() {
    command -v dockerd >/dev/null && docker --version >/dev/null 2>&1 &&
        docker buildx version >/dev/null 2>&1
}

# The first Debian archive among this host's sources, as "uri[ signed-by]".
archive() {
    for file in "$etc"/apt/sources.list.d/*.sources; do
        [ -f "$file" ] || continue
        awk -v RS= '/(^|\n)Suites:[^\n]*bookworm([ \n]|$)/ {
            n = split($0, lines, "\n"); uri = ""; key = ""
            for (i = 1; i <= n; i++) {
                if (lines[i] ~ /^URIs:/) { split(lines[i], w, /[ \t]+/); uri = w[2] }
                if (lines[i] ~ /^Signed-By: *\//) { split(lines[i], w, /[ \t]+/); key = w[2] }
            }
            if (uri != "") { print uri, key; exit }
        }' "$file"
    done
    cat "$etc"/apt/sources.list "$etc"/apt/sources.list.d/*.list 2>/dev/null |
        sed -n 's/^deb *\(\[[^]]*\] *\)\{0,1\}\([a-z+]*:[^ ]*\) *bookworm .*/\2/p'
}

VERSION_CODENAME= PRETTY_NAME=
[ ! -r "$etc/os-release" ] || . "$etc/os-release"
[ "$VERSION_CODENAME" = bookworm ] ||
    refuse "expected Debian 12 (bookworm), found ${PRETTY_NAME:-another system}; install by hand: $plain, docker with buildx"

missing=
for package in $plain; do
    installed "$package" || missing="$missing $package"
done
from_newer=
if ! docker_works; then
    from_newer=$pinned
    missing="$missing $pinned"
fi
if [ -z "$missing" ]; then
    [ "$mode" = --make ] || say "nothing is missing"
    exit 0
fi
say "this host lacks, and this script installs:$missing"
if [ -n "$from_newer" ]; then
    say "of these from Debian 13 ($newer): $from_newer"
    say "for that it writes $etc/apt/sources.list.d/headrace-$newer.list and $etc/apt/preferences.d/headrace-$newer"
    [ -e "$etc/docker/daemon.json" ] || say "and $etc/docker/daemon.json, for an image store that exports OCI images"
fi
[ "$mode" != --check ] || exit 1
[ "$(id -u)" = 0 ] || refuse "expected root, found $(id -un); run it with sudo"

if [ -n "$from_newer" ]; then
    set -- $(archive | head -n 1)
    [ -n "${1:-}" ] || refuse "$etc/apt: expected a source with the suite bookworm, found none"
    echo "deb${2:+ [signed-by=$2]} $1 $newer main" > "$etc/apt/sources.list.d/headrace-$newer.list"
    cat > "$etc/apt/preferences.d/headrace-$newer" <<EOF
Package: *
Pin: release n=$newer
Pin-Priority: 50

Package: $from_newer
Pin: release n=$newer
Pin-Priority: 600
EOF
    # Before the installation, which may start a daemon that reads it.
    if [ ! -e "$etc/docker/daemon.json" ]; then
        mkdir -p "$etc/docker"
        echo '{"features": {"containerd-snapshotter": true}}' > "$etc/docker/daemon.json"
    fi
fi
export DEBIAN_FRONTEND=noninteractive
# Another build on this machine may be installing the same things.
apt="apt-get -o DPkg::Lock::Timeout=600 --quiet=2"
# shellcheck disable=SC2086 # a command and its options
$apt update
# shellcheck disable=SC2086 # a list of package names
$apt install --yes --no-install-recommends $missing
say "done"
