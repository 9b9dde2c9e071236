#!/usr/bin/env bash
# systemd 257.13 (Debian 13): `systemctl status` leaves out lines of the current start that reached the journal before PID 1 noted the time of the start.
#
# `systemctl status` shows the journal from the time at which the unit left "inactive". PID 1 notes that time after it has forked the first process
# (here ExecCondition=). On a busy machine a short process has been logged by then: its lines are in the journal with the unit's name and invocation,
# `journalctl --unit` and `_SYSTEMD_INVOCATION_ID=` show them, and `systemctl status` does not, whatever --lines says. Idle, that is rare: on two busy cores it was 5 of 150
# starts. To show it in a few starts, PID 1 gets what two busy loops leave (SCHED_IDLE), as on a machine with a high load. A process that first waits for
# an answer of PID 1 (`systemctl show`) is always seen. systemd 252 (Debian 12) behaves alike: give `bookworm`.
# Expected: the status shows what the last start wrote. Needs root, mmdebstrap and a docker that runs systemd. Ends with 0 while the behaviour is
# this, 1 if it has changed.
set -euo pipefail
suite=${1:-trixie}
name=systemd-status-first-lines-$$
trap 'docker rm -f "$name" >/dev/null 2>&1; docker rmi "$name" >/dev/null 2>&1' EXIT
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv "$suite" - "$archive" | docker import - "$name" >/dev/null
docker run --detach --name "$name" --cpuset-cpus 0-1 --cap-add SYS_ADMIN --cap-add SYS_NICE --security-opt seccomp=unconfined --cgroupns=host \
    --volume /sys/fs/cgroup:/sys/fs/cgroup:rw --tmpfs /run --tmpfs /tmp --env container=docker "$name" /sbin/init >/dev/null
for _ in $(seq 60); do # there is no --wait without D-Bus
    docker exec "$name" systemctl is-system-running 2>/dev/null | grep -qE "running|degraded" && break
    sleep 1
done
docker exec -i "$name" sh -eu <<'SCRIPT' | tee /dev/stderr | grep -qx "at once: some not shown, all in the journal; after an answer of PID 1: all shown"
systemctl --version | head -n 1 >&2
folder=/etc/systemd/system
unit() { printf '[Unit]\nStartLimitIntervalSec=0\n[Service]\nType=oneshot\nCPUSchedulingPolicy=other\nExecCondition=/bin/sh -c '"'%s exit 1'"'\n' "$2" >"$folder/$1.service"; }
send='printf "MESSAGE=the reason\\nPRIORITY=4\\n" | logger --journald;'
unit early "$send"
unit asked "systemctl show --property Id early.service >/dev/null; $send"
systemctl daemon-reload
chrt --idle --pid 0 1
for _ in 1 2; do timeout 120 sh -c 'while :; do :; done' & done
missing() { # missing UNIT: of 20 starts, those whose line the status lacks, and those whose line the journal lacks
    status=0 lost=0
    for _ in $(seq 20); do
        systemctl start "$1.service" || true
        journalctl --sync
        systemctl status --no-pager --lines 50 "$1.service" | grep -q 'the reason' || status=$((status + 1))
        run=$(systemctl show --value --property InvocationID "$1.service")
        journalctl --no-pager --output cat "_SYSTEMD_INVOCATION_ID=$run" | grep -q 'the reason' || lost=$((lost + 1))
    done
    echo "$1: $status of 20 not in the status, $lost not in the journal" >&2
}
missing early
[ "$status" -gt 0 ] && [ "$lost" = 0 ] && printf 'at once: some not shown, all in the journal; '
missing asked
[ "$status" = 0 ] && [ "$lost" = 0 ] && echo 'after an answer of PID 1: all shown'
SCRIPT
