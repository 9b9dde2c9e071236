#!/usr/bin/env bash
# systemd 262 (Debian 14): after a download that failed once, systemd-sysupdate updates no more, and recommends a reboot.
#
# A version of two files is offered. The web server has the second one a moment later. The first `update` fails, as it should. Each further one ends
# with 1 and `already acquired and partially installed. Vacuum it to try installing again`, although both files are there. So does the service of
# the timer; only a newer version, or `vacuum` by hand, ends that. Meanwhile `pending` ends with 0 (a newer version is installed: reboot), so that
# systemd-sysupdate-reboot.timer restarts the machine every night. systemd 257 (Debian 13) updates in the second run.
# Expected: the next run completes the update, and what is not complete is not pending. Needs root, mmdebstrap and python3. Ends with 0 while the
# behaviour is this, 1 if it has changed.
set -euo pipefail
suite=${1:-sid}
folder=$(mktemp -d)
trap 'kill $(cat "$folder/server") 2>/dev/null; rm -rf "$folder"' EXIT
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | sed -n 1p) # where this machine has Debian from
mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
    --include=systemd,systemd-container,libcurl4t64,zlib1g "$suite" "$folder/root" "$archive"
mkdir -p "$folder/web" "$folder/root/etc/sysupdate.d" "$folder/root/opt"
rm -f "$folder/root/etc/os-release"
sed '/^IMAGE_VERSION=/d' "$folder/root/usr/lib/os-release" >"$folder/root/etc/os-release"
echo IMAGE_VERSION=1 >>"$folder/root/etc/os-release"
cd "$folder/web"
touch a_1 b_1 a_2 b_2
sha256sum -- * >SHA256SUMS
mv b_2 ../late
python3 - "$folder" <<'SERVER' &
import http.server, os, sys
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
with open(f"{sys.argv[1]}/server.new", "w") as file:
    file.write(f"{os.getpid()}\n{server.server_address[1]}\n")
os.rename(f"{sys.argv[1]}/server.new", f"{sys.argv[1]}/server")
sys.stderr = open(os.devnull, "w")
server.serve_forever()
SERVER
while [ ! -e "$folder/server" ]; do sleep 0.1; done
port=$(sed -n 2p "$folder/server")
sed -i 2d "$folder/server"
for name in a b; do
    touch "$folder/root/opt/${name}_1"
    printf '[Source]\nType=url-file\nPath=http://127.0.0.1:%s\nMatchPattern=%s_@v\n[Target]\nType=regular-file\nPath=/opt\nMatchPattern=%s_@v\n' \
        "$port" $name $name >"$folder/root/etc/sysupdate.d/$name.transfer"
done
run() { # a verb: its exit status, and the last line that it prints
    local status=0
    unshare --mount sh -c 'for name in proc sys dev; do mount --rbind /$name "$0/$name"; done; mount -t tmpfs run "$0/run"
        exec chroot "$0" env SYSTEMD_LOG_LEVEL=info SYSTEMD_LOG_TARGET=console /usr/lib/systemd/systemd-sysupdate --verify=no "$1"' \
        "$folder/root" "$1" >"$folder/out" 2>&1 || status=$?
    echo "$1: $status, $(tail -n 1 "$folder/out")"
}
{
    run update # the second file is missing
    mv ../late b_2
    run update
    run pending
    run vacuum
    run pending
    run update
} | tee /dev/stderr | diff - <(
    cat <<'EXPECTED'
update: 1, (sd-pull-raw) failed with exit status 1: No medium found
update: 1, Selected update '2' is already acquired and partially installed. Vacuum it to try installing again.
pending: 0, Newest installed version '2' is newer than booted version '1'. Reboot recommended.
vacuum: 0, Removed 1 instances.
pending: 1, Newest installed version '1' matches booted version '1'.
update: 0, ✨ Successfully installed update '2'.
EXPECTED
)
