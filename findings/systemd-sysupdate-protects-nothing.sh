#!/usr/bin/env bash
# systemd 257.13 (Debian 13): `ProtectVersion=%A` of sysupdate.d protects nothing on a system of Debian, and the update goes on.
#
# The manual has %A in each of its examples, "to ensure it is not corrupted while booted": it is IMAGE_VERSION of /etc/os-release. A system without
# this field gets a line of warning (`ProtectVersion= string is not valid, ignoring`), and the update removes the version that runs if it is the older
# of two, as after a fallback. With a partition as the target, the mounted root is overwritten. 254 and 262 do the same.
# Expected: an error, or a refusal, since what was asked for is a protection. Needs root, mmdebstrap and python3. Ends with 0 while the behaviour is
# this, 1 if it has changed.
set -euo pipefail
suite=${1:-trixie}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | sed -n 1p) # where this machine has Debian from
mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include=systemd,systemd-container "$suite" "$folder/root" "$archive"
mkdir -p "$folder/root/etc/sysupdate.d" "$folder/root/opt/offered" "$folder/root/opt/installed"
printf '[Transfer]\nProtectVersion=%%A\n[Source]\nType=regular-file\nPath=/opt/offered\nMatchPattern=os_@v\n[Target]\nType=regular-file\nPath=/opt/installed\nMatchPattern=os_@v\nInstancesMax=2\n' \
    >"$folder/root/etc/sysupdate.d/os.transfer"
update() { # versions 1 and 2 are installed, 1 runs, and 3 comes
    rm -f "$folder/root/opt/installed/"* "$folder/root/etc/os-release"
    { sed '/^IMAGE_VERSION=/d' "$folder/root/usr/lib/os-release"; echo "$1"; } >"$folder/root/etc/os-release"
    touch "$folder/root/opt/installed/os_1" "$folder/root/opt/installed/os_2" "$folder/root/opt/offered/os_3"
    unshare --mount sh -c 'for name in proc sys dev; do mount --rbind /$name "$0/$name"; done; mount -t tmpfs run "$0/run"
        exec chroot "$0" env SYSTEMD_LOG_LEVEL=info SYSTEMD_LOG_TARGET=console /usr/lib/systemd/systemd-sysupdate update' "$folder/root" >"$folder/out" 2>&1
    grep -F "is not valid, ignoring" "$folder/out" | sed 's/.*: Protect/Protect/; s/ *$//' || true
    (cd "$folder/root/opt/installed" && echo "installed:" *)
}
{
    echo "with IMAGE_VERSION=1"
    update IMAGE_VERSION=1
    echo "without"
    update ""
} | tee /dev/stderr | diff - <(
    cat <<'EXPECTED'
with IMAGE_VERSION=1
installed: os_1 os_3
without
ProtectVersion= string is not valid, ignoring:
installed: os_2 os_3
EXPECTED
)
