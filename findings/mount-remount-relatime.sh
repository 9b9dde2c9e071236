#!/usr/bin/env bash
# util-linux 2.38.1 (Debian 12): `mount -o remount,relatime DIR` ends with 0 and leaves noatime in effect. 2.41.5 (Debian 13) replaces it.
#
# With the source named as well (`mount -o remount,relatime SOURCE DIR`), 2.38.1 replaces it too. With the directory alone it merges the
# options in effect with the given ones, and hands noatime and relatime to the kernel together, which takes noatime. `remount,strictatime`
# works in both forms. mount(8) states that the form with the directory alone merges with fstab and mtab, and that later options win.
# So a repair of a mount point by its directory reports success and repairs nothing. Needs root, curl and an apt of Debian; fetches Debian 13's mount.
# Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' | grep -v security | head -n 1)  # as apt on this machine uses it
if [ -z "${INSIDE:-}" ]; then exec env INSIDE=1 unshare --mount bash "$(cd "$OLDPWD" && realpath "$0")"; fi
curl -fsS "${mirror%/}/dists/trixie/main/binary-amd64/Packages.xz" | xz -dc >packages
for name in mount libmount1 libblkid1 libselinux1 libpcre2-8-0 libc6; do
    path=$(awk -v name="$name" '$1 == "Package:" { hit = $2 == name } hit && $1 == "Filename:" { print $2; exit }' packages)
    curl -fsS -o one.deb "${mirror%/}/$path"
    dpkg-deb -x one.deb trixie
done
libraries=$folder/trixie/usr/lib/x86_64-linux-gnu
newer() { "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$folder/trixie/usr/bin/mount" "$@"; }
options() { findmnt -n -o OPTIONS "$folder/place"; }
mkdir place
try() {
    mount -t tmpfs -o noatime none place
    "$@" && status=0 || status=$?
    echo "exit status $status, $(options): $*"
    result="$status $(options)"
    umount place
}
mount --version; newer --version
try mount -o remount,relatime "$folder/place"; [ "$result" = "0 rw,noatime" ]
try mount -o remount,relatime none "$folder/place"; [ "$result" = "0 rw,relatime" ]
try newer -o remount,relatime "$folder/place"; [ "$result" = "0 rw,relatime" ]
