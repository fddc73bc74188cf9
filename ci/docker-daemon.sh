#!/bin/sh
# A private docker daemon for a build, where none runs. Root on Linux.
#
#   ci/docker-daemon.sh start    starts it (or finds it running), prints: export DOCKER_HOST=…
#   ci/docker-daemon.sh stop     ends it
#   ci/docker-daemon.sh status   exits with 0 while it answers
#
# Its state is in /var/lib/headrace-docker (kept: it is the build cache), its socket in
# /run/headrace-docker; HEADRACE_DOCKER_DATA and HEADRACE_DOCKER_RUN name other folders.
# Two daemons of one machine share the bridge docker0, and one of them would take it from the other:
# so none is started while another answers on docker's default socket.
set -eu
run=${HEADRACE_DOCKER_RUN:-/run/headrace-docker}
data=${HEADRACE_DOCKER_DATA:-/var/lib/headrace-docker}
socket=unix://$run/docker.sock
log=$run/dockerd.log
seconds=60

answers() { timeout 10 docker --host "$1" version >/dev/null 2>&1; }

runs() { [ -s "$run/dockerd.pid" ] && kill -0 "$(cat "$run/dockerd.pid")" 2>/dev/null; }

start() {
    if answers "$socket"; then
        echo "export DOCKER_HOST=$socket"
        return
    fi
    if answers unix:///var/run/docker.sock; then
        echo "docker-daemon: a daemon answers on /var/run/docker.sock: use that one" >&2
        exit 1
    fi
    command -v dockerd >/dev/null || {
        echo "docker-daemon: couldn't find 'dockerd' in PATH; run ci/install-debian.sh" >&2
        exit 1
    }
    # One that does not answer yet, or is ending, still has its files and its mark.
    waited=0
    while runs; do
        if answers "$socket"; then
            echo "export DOCKER_HOST=$socket"
            return
        fi
        if [ $waited -ge $seconds ]; then
            echo "docker-daemon: no answer on $socket of process $(cat "$run/dockerd.pid"), which" \
                "$run/dockerd.pid names; run ci/docker-daemon.sh stop, then start;" \
                "the end of $log:" >&2
            tail -n 5 "$log" >&2 || true
            exit 1
        fi
        sleep 1
        waited=$((waited + 1))
    done
    mkdir -p "$run" "$data"
    # A build that starts it marks it as its own afterwards, and stops it in the end.
    rm -f "$run/started-by-a-build"
    # The containerd image store exports OCI images; the registry is a test's, on loopback.
    cat > "$run/daemon.json" <<EOF
{"features": {"containerd-snapshotter": true}, "insecure-registries": ["127.0.0.0/8"]}
EOF
    setsid dockerd --config-file "$run/daemon.json" --data-root "$data" --exec-root "$run/exec" \
        --pidfile "$run/dockerd.pid" --host "$socket" >"$log" 2>&1 </dev/null &
    waited=0
    until answers "$socket"; do
        if [ $waited -ge $seconds ] || ! kill -0 $! 2>/dev/null; then
            echo "docker-daemon: no answer on $socket; the end of $log:" >&2
            tail -n 5 "$log" >&2
            kill $! 2>/dev/null || true
            exit 1
        fi
        sleep 1
        waited=$((waited + 1))
    done
    echo "export DOCKER_HOST=$socket"
}

stop() {
    [ -s "$run/dockerd.pid" ] || return 0
    pid=$(cat "$run/dockerd.pid")
    kill "$pid" 2>/dev/null || return 0
    waited=0
    while kill -0 "$pid" 2>/dev/null; do
        if [ $waited -ge $seconds ]; then
            echo "docker-daemon: process $pid did not end within $seconds s" >&2
            exit 1
        fi
        sleep 1
        waited=$((waited + 1))
    done
}

case ${1:-} in
    start) start ;;
    stop) stop ;;
    status) answers "$socket" ;;
    *)
        sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
esac
