#!/usr/bin/env bash
# systemd 257.13 (Debian 13): a timer with OnUnitInactiveSec= goes on while a condition skips its service, which has never been deactivated.
#
# systemd.timer(5) counts OnUnitInactiveSec= from when the unit "was last deactivated". A service with an unmet Condition…= is never activated,
# so that one expects the timer to end after its first elapse. Once OnActiveSec= (or OnBootSec=) has elapsed, systemd counts from the timer's own
# last elapse: the service is tried, and its skip logged, every period. With OnUnitInactiveSec= alone there is no such elapse: the timer is
# `active (elapsed)` and starts nothing, also when the condition is met later. systemd 252 (Debian 12) behaves alike: give `bookworm`.
# Expected: the manual names the second base. Needs root, mmdebstrap and a docker that runs systemd. Ends with 0 while the behaviour
# is this, 1 if it has changed.
set -euo pipefail
suite=${1:-trixie}
name=systemd-timer-skipped-$$
trap 'docker rm -f "$name" >/dev/null 2>&1; docker rmi "$name" >/dev/null 2>&1' EXIT
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv "$suite" - "$archive" | docker import - "$name" >/dev/null
docker run --detach --name "$name" --cap-add SYS_ADMIN --security-opt seccomp=unconfined --cgroupns=host \
    --volume /sys/fs/cgroup:/sys/fs/cgroup:rw --tmpfs /run --tmpfs /tmp --env container=docker "$name" /sbin/init >/dev/null
inside() { docker exec -i "$name" sh -eu; }
for _ in $(seq 60); do # there is no --wait without D-Bus
    docker exec "$name" systemctl is-system-running 2>/dev/null | grep -qE "running|degraded" && break
    sleep 1
done
inside <<'SCRIPT' | tee /dev/stderr | grep -qx "never deactivated, both again, alone elapsed, condition met: both ran, alone did not"
systemctl --version | head -n 1 >&2
folder=/etc/systemd/system
for name in both alone; do
    printf '[Unit]\nConditionPathExists=/run/wanted\n[Service]\nType=oneshot\nExecStart=/usr/bin/touch /run/%s\n' $name >$folder/$name.service
done
printf '[Timer]\nOnActiveSec=1s\nOnUnitInactiveSec=2s\nAccuracySec=100ms\n' >$folder/both.timer
printf '[Timer]\nOnUnitInactiveSec=2s\nAccuracySec=100ms\n' >$folder/alone.timer
systemctl daemon-reload
systemctl start both.timer alone.timer
property() { systemctl show --value --property "$1" "$2"; }
sleep 2.5
first=$(property ConditionTimestampMonotonic both.service)
sleep 6
[ "$first" -gt 0 ] && [ "$(property InactiveEnterTimestampMonotonic both.service)" = 0 ] && printf 'never deactivated, '
[ "$(property ConditionTimestampMonotonic both.service)" -gt "$first" ] && printf 'both again, '
printf 'alone %s, condition met: ' "$(property SubState alone.timer)"
touch /run/wanted
sleep 6
[ -e /run/both ] && printf 'both ran, '
[ -e /run/alone ] || echo 'alone did not'
SCRIPT
