#!/usr/bin/env bash
# dpkg 1.21.23 (Debian 12): `dpkg --verify` compares no content of a file that a diversion moves aside.
#
# It follows the diversion when it looks for the file: a missing one is reported under the name to which it was diverted. The digest
# of the package's md5sums stays with the original name, so the content is compared with nothing and always passes. Drivers of Debian are
# installed with diversions (glx-diversions).
# Expected: the same answer as without the diversion. Needs dpkg. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
base=$root/var/lib/dpkg; mkdir -p "$base/info" "$base/updates" "$root/usr/lib"
printf 'Package: x\nStatus: install ok installed\nMaintainer: x <x@example.org>\nArchitecture: all\nVersion: 1\nDescription: x\n' >"$base/status"
printf '/.\n/usr\n/usr/lib\n/usr/lib/x.so\n' >"$base/info/x.list"
printf 'content' | md5sum | sed 's|-$|usr/lib/x.so|' >"$base/info/x.md5sums"
verify() { dpkg --root="$root" --verify x 2>/dev/null || true; }
printf 'other' >"$root/usr/lib/x.so"
plain=$(verify); echo "changed: ${plain:-nothing}"
printf '/usr/lib/x.so\n/usr/lib/x.so.diverted\nother\n' >"$base/diversions"
mv "$root/usr/lib/x.so" "$root/usr/lib/x.so.diverted"
diverted=$(verify); echo "changed, and diverted: ${diverted:-nothing}"
rm "$root/usr/lib/x.so.diverted"
missing=$(verify); echo "missing, and diverted: ${missing:-nothing}"
[[ $plain == *5*x.so && -z $diverted && $missing == *missing*x.so.diverted ]]
