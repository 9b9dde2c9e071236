#!/bin/sh
# Slurm 22.05.8 (Debian 12): `scontrol reboot` changes the reason of a node that is drained.
#
# 1. The reason of the drain gets ` : reboot issued` at its end; the program or person that set it finds another text.
# 2. The node is in DOWN+DRAIN+REBOOT_ISSUED then, so the drain is still in force.
#
# A program that recognises its drain by the whole text of its reason loses the node with the order to boot. Seen 2026-11-28.
# Needs root, mmdebstrap and Debian's archive; takes minutes. Exit status: 0 as described, 1 something else, 2 not set up.
set -eu
want=22.05.8
work=$(mktemp -d)
root=$work/root
end() {
    for name in slurmd slurmctld munged; do
        [ ! -s "$root/run/$name.pid" ] || kill "$(cat "$root/run/$name.pid")" 2>/dev/null || :
    done
    sleep 1
    for place in proc dev sys; do umount -l "$root/$place" 2>/dev/null || :; done
    rm -rf --one-file-system "$work"
}
trap end EXIT
mmdebstrap --quiet --variant=apt --include=slurmctld,slurmd,slurm-client,munge bookworm "$root" ${MIRROR:-} || exit 2
mount -t proc proc "$root/proc" && mount --bind /dev "$root/dev" && mount --rbind /sys "$root/sys" && mount --make-rslave "$root/sys" || exit 2

mkdir -p "$root/etc/slurm" "$root/run/state" "$root/run/spool"
cat >"$root/etc/slurm/slurm.conf" <<END
ClusterName=finding
SlurmctldHost=$(uname -n)(127.0.0.1)
SlurmctldPort=26827
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=/run/munge.socket
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
RebootProgram=/bin/true
NodeName=n1 NodeHostname=$(uname -n | cut -d. -f1) NodeAddr=127.0.0.1 Port=26828 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
END
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
update State=DRAIN "Reason=fan of slot 3" >/dev/null
until_state 'IDLE+DRAIN*'
inside scontrol reboot ASAP nextstate=DOWN n1
until_state '*REBOOT_ISSUED*'
expect "reason after the order to boot" "$(reason)" "fan of slot 3 : reboot issued"
expect "drained" "$(row | grep -c DRAIN)" 1
exit $failed
