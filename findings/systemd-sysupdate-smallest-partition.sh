#!/usr/bin/env bash
# systemd 257.13 (Debian 13): systemd-sysupdate takes the smallest empty partition, and fails where a larger one has room.
#
# A root of 16 MiB is offered to a disk with two empty partitions, of 16 and 15 MiB. Which one is taken is decided before the download, when its size
# is unknown: the smallest. The download then ends with `File overly large, refusing`, and so does each further run. With the size in the name of the
# file (`@s` in MatchPattern) the larger one is taken. The example of the manual has no @s. 254 and 262 do the same.
# Expected: the largest, or the first, if the size is unknown. Needs root, mmdebstrap and a loop device. Ends with 0 while the behaviour is this, 1 if it
# has changed.
set -euo pipefail
suite=${1:-trixie}
folder=$(mktemp -d)
trap 'losetup --detach "$loop" 2>/dev/null; rm -rf "$folder"' EXIT
loop=
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | sed -n 1p) # where this machine has Debian from
mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include=systemd,systemd-container,udev,libfdisk1 \
    "$suite" "$folder/root" "$archive"
truncate -s 33M "$folder/disk"
kind=4f68bce3-e8cd-4db1-96e7-fbcaf984b709
printf 'label: gpt\nstart=1MiB, size=16MiB, type=%s, name=_empty\nstart=17MiB, size=15MiB, type=%s, name=_empty\n' $kind $kind |
    sfdisk --quiet "$folder/disk"
loop=$(losetup --find --show "$folder/disk")
mkdir -p "$folder/root/etc/sysupdate.d" "$folder/root/opt/offered"
update() { # the pattern of the source, and the name of the file that is offered
    rm -f "$folder/root/opt/offered/"*
    head -c 16M /dev/urandom >"$folder/root/opt/offered/$2"
    printf '[Source]\nType=regular-file\nPath=/opt/offered\nMatchPattern=%s\n[Target]\nType=partition\nPath=%s\nMatchPattern=os_@v\nMatchPartitionType=%s\n' \
        "$1" "$loop" $kind >"$folder/root/etc/sysupdate.d/os.transfer"
    local status=0
    unshare --mount sh -c 'for name in proc sys dev; do mount --rbind /$name "$0/$name"; done; mount -t tmpfs run "$0/run"
        exec chroot "$0" env SYSTEMD_LOG_LEVEL=info SYSTEMD_LOG_TARGET=console /usr/lib/systemd/systemd-sysupdate update' "$folder/root" \
        >"$folder/out" 2>&1 || status=$?
    echo "update: $status, $(sfdisk --dump "$loop" | sed -n 's/.*name=//p' | tr -d '"' | tr '\n' ' ')"
}
{
    update os_@v.raw os_1.raw
    update os_@v_@s.raw os_1_16777216.raw
} | tee /dev/stderr | diff - <(
    cat <<'EXPECTED'
update: 1, _empty _empty 
update: 0, os_1 _empty 
EXPECTED
)
