#!/bin/sh
# Slurm 24.11.5 (Debian 13): after these updates neither scontrol's exit status nor the reason shows what became of a node.
#
# 1. `update State=RESUME` keeps the reason of the drain. 22.05.8 (Debian 12) and 26.05.5 (sid) clear it.
# 2. `update Reason=` ends with 0 and clears nothing.
# 3. `update State=RESUME` of a node in UNKNOWN+DRAIN, as after a start of slurmctld, ends with 1, and the drain is gone.
#    22.05.8 does the same; 26.05.5 ends with 0.
#
# A program that finds its own reason on a node in service, or a failed resume, has to read the node's state. Seen 2026-11-27.
# Needs root, mmdebstrap and Debian's archive; takes minutes. Exit status: 0 as described, 1 something else, 2 not set up.
set -eu
want=24.11.5
work=$(mktemp -d)
root=$work/root
end() {
    for name in slurmd slurmctld munged; do
        [ ! -s "$root/run/$name.pid" ] || kill "$(cat "$root/run/$name.pid")" 2>/dev/null || :
    done
    sleep 1
    for place in proc dev; do umount "$root/$place" 2>/dev/null || :; done
    rm -rf --one-file-system "$work"
}
trap end EXIT
mmdebstrap --quiet --variant=apt --include=slurmctld,slurmd,slurm-client,munge trixie "$root" ${MIRROR:-} || exit 2
mount -t proc proc "$root/proc" && mount --bind /dev "$root/dev" || exit 2

mkdir -p "$root/etc/slurm" "$root/run/state" "$root/run/spool"
cat >"$root/etc/slurm/slurm.conf" <<END
ClusterName=finding
SlurmctldHost=$(uname -n)(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=/run/munge.socket
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeName=n1 NodeHostname=$(uname -n | cut -d. -f1) NodeAddr=127.0.0.1 Port=26818 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
END
echo CgroupPlugin=disabled >"$root/etc/slurm/cgroup.conf"
head -c 128 /dev/urandom >"$root/run/munge.key"
chmod 600 "$root/run/munge.key"

inside() { chroot "$root" /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
row() { inside scontrol show node n1 --oneliner 2>/dev/null | sed -n 's/.* State=\([^ ]*\).*/\1/p'; }
reason() { inside scontrol show node n1 --oneliner | sed -n 's/.* Reason=\(.*\) \[.*/\1/p'; }
update() { inside scontrol update NodeName=n1 "$@" >/dev/null 2>&1 && echo 0 || echo $?; }
until_state() { # at most 60 seconds
    for _ in $(seq 120); do
        case $(row) in $1) return 0 ;; esac
        sleep 0.5
    done
    echo "the node is $(row), not $1" >&2
    exit 2
}
failed=0
expect() {
    if [ "$2" = "$3" ]; then echo "as described: $1: $2"; else
        echo "CHANGED: $1: $2, was $3"
        failed=1
    fi
}

inside munged --force --socket=/run/munge.socket --key-file=/run/munge.key --pid-file=/run/munged.pid \
    --log-file=/run/munged.log --seed-file=/run/munged.seed
expect version "$(inside scontrol --version | cut -d' ' -f2)" "$want"
inside slurmctld
inside slurmd -N n1
until_state IDLE
update State=DRAIN Reason=fan >/dev/null
expect "exit status of the resume" "$(update State=RESUME)" 0
until_state IDLE
expect "reason after the resume" "$(reason)" fan
expect "exit status of Reason=" "$(update Reason=)" 0
expect "reason after Reason=" "$(reason)" fan

update State=DRAIN Reason=fan >/dev/null
for name in slurmd slurmctld; do kill "$(cat "$root/run/$name.pid")"; done
sleep 4
inside slurmctld
until_state 'UNKNOWN+DRAIN*'
expect "exit status of the resume of UNKNOWN+DRAIN" "$(update State=RESUME)" 1
expect "state after it" "$(row | sed 's/\*//; s/+NOT_RESPONDING//')" UNKNOWN
exit $failed
