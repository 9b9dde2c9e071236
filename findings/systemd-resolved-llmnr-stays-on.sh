#!/usr/bin/env bash
# systemd-resolved 257.13 (Debian 13): the package turns multicast DNS off and leaves LLMNR on, so port 5355 is open to every network.
#
# The package installs /usr/lib/systemd/resolved.conf.d/00-disable-mdns.conf (MulticastDNS=no), in Debian 12 it does not. Who sees that
# file expects LLMNR, the other name service of a local link, to be off too. It is on in both, and resolved listens on port 5355 of every
# address by UDP and TCP. Debian 14 (262) is as Debian 13 by its files. Expected: both off, or both on. Needs root, mmdebstrap and a docker that runs
# systemd; `bookworm` as an argument shows Debian 12 (252). Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
suite=${1:-trixie}
name=resolved-llmnr-$$
trap 'docker rm -f "$name" >/dev/null 2>&1; docker rmi "$name" >/dev/null 2>&1' EXIT
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,systemd-resolved,dbus,iproute2 "$suite" - "$archive" | docker import - "$name" >/dev/null
docker run --detach --name "$name" --cap-add SYS_ADMIN --security-opt seccomp=unconfined --cgroupns=host \
    --volume /sys/fs/cgroup:/sys/fs/cgroup:rw --tmpfs /run --tmpfs /tmp --env container=docker "$name" /sbin/init >/dev/null
for _ in $(seq 120); do
    docker exec "$name" systemctl is-active --quiet systemd-resolved && break
    sleep 1
done
docker exec "$name" systemctl --version | head -n 1 >&2
if docker exec "$name" test -e /usr/lib/systemd/resolved.conf.d/00-disable-mdns.conf; then mdns=off; else mdns=default; fi
for _ in $(seq 30); do
    open=$(docker exec "$name" ss -Hltun | awk '$5 ~ /:5355$/ {print $1}' | sort -u | tr '\n' ' ')
    [ -n "$open" ] && break
    sleep 1
done
echo "multicast DNS by the package: $mdns; LLMNR open by: $open"
[ "$open" = "tcp udp " ] && { [ "$suite" = bookworm ] || [ "$mdns" = off ]; }
