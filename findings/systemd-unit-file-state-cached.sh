#!/usr/bin/env bash
# systemd 257.13 (Debian 13): `systemctl show -P UnitFileState` of a running unit stays as first asked for until the next daemon-reload.
#
# A unit gets its link in multi-user.target.wants by hand or by a tool that copies files. `systemctl is-enabled` and `list-unit-files` read the
# directories and report `enabled` at once. The property comes from the manager, which caches it at the first question: it still is `disabled`,
# while NeedDaemonReload is `no`. Two programs that ask in different ways disagree about the same unit. systemd 252 (Debian 12) behaves alike.
# Expected: the same answer, or NeedDaemonReload. Needs root, mmdebstrap and a docker that runs systemd. Ends with 0 while the behaviour
# is this, 1 if it has changed.
set -euo pipefail
suite=${1:-trixie}
name=systemd-unit-file-state-$$
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
inside <<'SCRIPT' | tee /dev/stderr | grep -qx "property disabled, is-enabled enabled, list-unit-files enabled, NeedDaemonReload no, after a reload enabled"
systemctl --version | head -n 1 >&2
folder=/etc/systemd/system
printf '[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n' >$folder/example.service
systemctl daemon-reload
systemctl start example.service # a unit that nothing needs is forgotten, with what was cached
property() { systemctl show --value --property "$1" example.service; }
property UnitFileState >/dev/null # the first question
mkdir -p $folder/multi-user.target.wants
ln -s ../example.service $folder/multi-user.target.wants/example.service
listed=$(systemctl list-unit-files --no-legend example.service | awk '{print $2}')
printf 'property %s, is-enabled %s, list-unit-files %s, NeedDaemonReload %s, ' "$(property UnitFileState)" "$(systemctl is-enabled example.service)" \
    "$listed" "$(property NeedDaemonReload)"
systemctl daemon-reload
echo "after a reload $(property UnitFileState)"
SCRIPT
