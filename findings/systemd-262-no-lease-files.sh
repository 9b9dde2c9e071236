#!/usr/bin/env bash
# systemd 262-1 (Debian 14): systemd-networkd makes /run/systemd/netif/leases, and never writes a lease into it.
#
# Until 257 (Debian 13) it has a file for each interface with a lease there, and programs read it though it is marked as private (cloud-init, for the address
# of the server). 262 still creates the empty directory, so a path unit with PathExistsGlob= waits for ever and a reader takes the machine for one without
# DHCP. `links/INDEX` has lost its line DHCP_LEASE= as well, but is still renamed into place when the lease comes.
# The lease is in the answer of io.systemd.Network.Describe (`networkctl --json`, varlinkctl): DHCPv4Client.Lease with Hostname and all options in hexadecimal.
# Expected: a file per lease, or no directory. Needs root, mmdebstrap and a docker that runs systemd. Ends with 0 while the behaviour is this, 1 if it has
# changed. Give another suite to compare: `trixie` ends with 1.
set -euo pipefail
suite=${1:-forky}
name=systemd-no-lease-files-$$
trap 'docker rm -f "$name" >/dev/null 2>&1; docker rmi "$name" >/dev/null 2>&1' EXIT
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
groups=/sys/fs/cgroup # systemd 262 knows version 2 alone
[ "$suite" != forky ] || [ ! -d $groups/unified ] || groups=$groups/unified
mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include=systemd,systemd-sysv,mount,iproute2,dnsmasq-base \
    "$suite" - "$archive" | docker import - "$name" >/dev/null
docker run --detach --name "$name" --network none --cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt seccomp=unconfined --cgroupns=host \
    --volume $groups:/sys/fs/cgroup:rw --tmpfs /run --tmpfs /tmp --env container=docker "$name" /sbin/init >/dev/null
for _ in $(seq 60); do # there is no --wait without D-Bus
    docker exec "$name" systemctl is-system-running 2>/dev/null | grep -qE "running|degraded" && break
    sleep 1
done
docker exec -i "$name" sh -eu <<'SCRIPT' | tee /dev/stderr | grep -qx "leased: yes, directory: yes, files: 0, named in links: 0, told: node-17"
systemctl --version | head -n 1 >&2
ip netns add server
ip link add wire0 type veth peer name wire1 netns server
ip link set wire0 address 02:00:00:00:00:17
ip -n server addr add 10.9.0.1/24 dev wire1
ip -n server link set wire1 up
ip netns exec server dnsmasq --port=0 --interface=wire1 --bind-interfaces --dhcp-range=10.9.0.10,10.9.0.20 \
    --dhcp-host=02:00:00:00:00:17,node-17 --dhcp-leasefile=/run/given --user=root
printf '[Match]\nName=wire0\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\n' >/etc/systemd/network/50-wire.network
systemctl restart systemd-networkd
for _ in $(seq 40); do
    ip -4 -br address show wire0 | grep -q '10\.9\.0\.' && break
    sleep 1
done
sleep 1
netif=/run/systemd/netif
ip -4 -br address show wire0 | grep -q '10\.9\.0\.' && printf 'leased: yes, '
[ -d $netif/leases ] && printf 'directory: yes, '
printf 'files: %s, named in links: %s, ' "$(ls $netif/leases | wc -l)" "$(cat $netif/links/* | grep -c DHCP_LEASE || true)"
echo "told: $(varlinkctl call --json=short $netif/io.systemd.Network io.systemd.Network.Describe '{}' | grep -o '"Lease":{[^{}]*"Hostname":"[^"]*"' | sed 's/.*:"\(.*\)"$/\1/')"
SCRIPT
