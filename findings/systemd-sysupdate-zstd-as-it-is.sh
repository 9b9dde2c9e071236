#!/usr/bin/env bash
# systemd 257.13 (Debian 13): systemd-sysupdate installs a file in zstd as it is, compressed, and reports success.
#
# The manual has that files are "downloaded, decompressed and written". xz, gzip and bzip2 are; zstd, which is in the same build of systemd for other
# purposes (`+ZSTD`), is not, and no message tells. A root in a partition is then a stream of zstd that no kernel mounts, with a boot entry beside it.
# 254 (bookworm-backports) does the same; 262 unpacks it.
# Expected: an error for a compression that is not read. Needs root, mmdebstrap, zstd and gzip. Ends with 0 while the behaviour is this, 1 if it has
# changed.
set -euo pipefail
suite=${1:-trixie}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | sed -n 1p) # where this machine has Debian from
mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include=systemd,systemd-container "$suite" "$folder/root" "$archive"
mkdir -p "$folder/root/etc/sysupdate.d" "$folder/root/opt/offered" "$folder/root/opt/installed"
head -c 1M /dev/zero >"$folder/content"
gzip -c "$folder/content" >"$folder/root/opt/offered/os_1.gz"
zstd -q "$folder/content" -o "$folder/root/opt/offered/os_1.zst"
update() { # the suffix of the file that is offered
    rm -f "$folder/root/opt/installed/"*
    printf '[Source]\nType=regular-file\nPath=/opt/offered\nMatchPattern=os_@v.%s\n[Target]\nType=regular-file\nPath=/opt/installed\nMatchPattern=os_@v\n' \
        "$1" >"$folder/root/etc/sysupdate.d/os.transfer"
    local status=0 what=other
    unshare --mount sh -c 'for name in proc sys dev; do mount --rbind /$name "$0/$name"; done; mount -t tmpfs run "$0/run"
        exec chroot "$0" env SYSTEMD_LOG_LEVEL=info SYSTEMD_LOG_TARGET=console /usr/lib/systemd/systemd-sysupdate update' "$folder/root" \
        >"$folder/out" 2>&1 || status=$?
    cmp -s "$folder/root/opt/installed/os_1" "$folder/content" && what=unpacked
    cmp -s "$folder/root/opt/installed/os_1" "$folder/root/opt/offered/os_1.$1" && what="as it was"
    echo "$1: status $status, $what"
}
{
    update gz
    update zst
} | tee /dev/stderr | diff - <(
    cat <<'EXPECTED'
gz: status 0, unpacked
zst: status 0, as it was
EXPECTED
)
