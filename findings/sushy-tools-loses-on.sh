#!/usr/bin/env bash
# sushy-tools 2.2.0 (PyPI), fake driver of its Redfish emulator: `On` while a `ForceOff` waits is answered with 204 and lost.
#
# An order has its effect after 1 to 11 seconds. The driver compares the wanted state with the present one, not with the one that waits: a system that
# is still on takes `On` for done, and the earlier `ForceOff` then switches it off for good. A client that trusts the status leaves the machine off.
# (Its state is in TMPDIR, shared by all emulators of a machine.) Expected: the last order wins, or an error. Needs Python 3 with venv. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'kill "$emulator" 2>/dev/null || :; rm -rf "$folder"' EXIT; cd "$folder"; emulator=
python3 -m venv venv && venv/bin/pip -q install sushy-tools==2.2.0
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
TMPDIR=$folder venv/bin/sushy-emulator --fake -i 127.0.0.1 -p "$port" >log 2>&1 & emulator=$!
system=http://127.0.0.1:$port/redfish/v1/Systems/27946b59-9e44-4fa7-8e91-f3527a1ef094
state() { curl -s "$system" | grep -oE '"PowerState": *"[A-Za-z]*"' | grep -oE '(On|Off)"' | tr -d '"'; }
order() { curl -s -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' -d "{\"ResetType\": \"$1\"}" "$system/Actions/ComputerSystem.Reset"; }
for _ in $(seq 100); do state >/dev/null 2>&1 && break; sleep 0.2; done
order On >/dev/null; for _ in $(seq 30); do [ "$(state)" = On ] && break; sleep 1; done
# A `ForceOff` that takes effect at once leaves nothing to lose: try again.
for _ in 1 2 3 4 5; do
    off=$(order ForceOff); before=$(state); on=$(order On); sleep 13; after=$(state)
    echo "ForceOff: $off; state: $before; On: $on; state after 13 s: $after"
    [ "$before" = On ] && break
    order On >/dev/null; sleep 13
done
[ "$off/$before/$on/$after" = "204/On/204/Off" ]
