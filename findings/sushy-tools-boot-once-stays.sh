#!/usr/bin/env bash
# sushy-tools 2.2.0 (PyPI), fake driver of its Redfish emulator: an order to boot once from the network stays for every later boot.
#
# PATCH of Boot with BootSourceOverrideEnabled `Once` is answered with 204. The document of the system then has the constant `Continuous`, and the
# target `Pxe` is the same after the system was switched off and on: the schema ComputerSystem of DMTF says that `Once` is one boot, after which the
# target is `None`. A client that re-installs machines by `Once` and tests that here sees a machine that installs itself again at each boot, and one that
# reads the order back never finds `Once`. Needs Python 3 with venv. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'kill "$emulator" 2>/dev/null || :; rm -rf "$folder"' EXIT; cd "$folder"; emulator=
python3 -m venv venv && venv/bin/pip -q install sushy-tools==2.2.0
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
TMPDIR=$folder venv/bin/sushy-emulator --fake -i 127.0.0.1 -p "$port" >log 2>&1 & emulator=$!
system=http://127.0.0.1:$port/redfish/v1/Systems/27946b59-9e44-4fa7-8e91-f3527a1ef094
field() { curl -s "$system" | python3 -c "import json, sys; d = json.load(sys.stdin); print({**d, **d['Boot']}['$1'])"; }
order() { curl -s -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' "$@"; }
reset() { order -d "{\"ResetType\": \"$1\"}" "$system/Actions/ComputerSystem.Reset" >/dev/null; for _ in $(seq 40); do [ "$(field PowerState)" = "$2" ] && break; sleep 1; done; }
for _ in $(seq 100); do field PowerState >/dev/null 2>&1 && break; sleep 0.2; done
reset ForceOff Off
once=$(order -X PATCH -d '{"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}}' "$system")
read=$(field BootSourceOverrideEnabled); target=$(field BootSourceOverrideTarget)
reset On On; reset ForceOff Off; reset On On
after=$(field BootSourceOverrideTarget)
echo "order of one boot: $once; read back: $read, $target; after two boots: $after"
[ "$once/$read/$target/$after" = "204/Continuous/Pxe/Pxe" ]
