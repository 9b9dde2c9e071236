# shellcheck shell=bash
# Second half of scripts/demo: how a converged node reacts to faults. Sourced, not executed.
# Expects `node`, `class`, `accept`, `program` and `node_sh` from scripts/demo.

hardware() { python -m tests.simulators.hardware "$1" --lab demo --node "$node" "${@:2}"; }
# Prints only the recap on success, everything on failure.
converge() {
    local log
    log=$(ansible-playbook "$@" -e "$accept" 2>&1) || { printf '%s\n' "$log" >&2; fail "site.yml failed"; }
    printf '%s\n' "$log" | grep -E '^[a-z0-9]+ +: ok=' || :
}
trap 'hardware clear >/dev/null 2>&1 || :' EXIT

stage "A container with the GPU runtime, from an image of this node's own files"
node_sh 'docker image inspect demo/tiny >/dev/null 2>&1 || {
    cd "$(mktemp -d)" && mkdir -p bin lib64 && cp /bin/dash bin/sh && cp /usr/bin/env bin/env
    for library in $(ldd bin/sh bin/env | grep -o "/[^ ]*" | grep "\.so" | sort -u); do mkdir -p ".${library%/*}" && cp -L "$library" ".$library"; done
    tar c . | docker import - demo/tiny >/dev/null; }
    docker run --rm --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all demo/tiny env' | sed 's/^/    /'
say "GOLDNODE_STANDIN_TOOLKIT=1 was set by the toolkit's runtime, which is a stand-in here: docker took the way that is configured."

stage "Drift on the GPUs is found by the check, and fixed by the next run"
hardware drift gpu2.power_limit=300000 gpu5.persistence_mode=0 gpu6.application_clock.0=1095
gpu_policy() { node_sh "$program" check | grep -E '^SIMULATED|^policy\.' | grep -v '^policy.host' || :; }
gpu_policy
converge -i inventories/demo site.yml
gpu_policy

stage "A value that the board does not have is refused before anything is set"
overlay=.goldnode/demo/catalog/classes
mkdir -p "$overlay" .goldnode/demo/inventory
# variant NAME SED-EXPRESSION: creates a variant of the demo's class, and an inventory with the node in it.
variant() {
    sed -e "s/^class: .*/class: $1/" -e "$2" "catalog/classes/$class.yml" >"$overlay/$1.yml"
    sed "s/^    $class:/    $1:/" inventories/demo/hosts.yml >.goldnode/demo/inventory/hosts.yml
}
variant demo_clocks 's/graphics_mhz: 1410/graphics_mhz: 1411/'
export GOLDNODE_CATALOG=$here/.goldnode/demo/catalog
said=$(ansible-playbook -i .goldnode/demo/inventory site.yml -e "$accept" 2>&1) && fail "the clock was not refused"
grep -m 1 '\[policy-clocks\]' <<<"$said" || fail "the clock was not refused: $said"
rm "$overlay/demo_clocks.yml"

stage "The gate: what a bad verdict does is the class's choice"
for mode in report drain block; do
    variant "demo_gate_$mode" "/^simulated:/a gate: $mode"
    converge -i .goldnode/demo/inventory site.yml
    node_sh ': >/var/log/demo-scheduler'
    say "-- gate: $mode. GPU 3 is lost:"
    hardware fault gpu3.all=error:lost
    node_sh "$program check --quiet; systemctl restart docker 2>&1; echo \"docker is \$(systemctl is-active docker)\"
        systemctl status docker --no-pager -n 20 2>/dev/null | grep -o 'goldnode gate: .*' | tail -n 1; cat /var/log/demo-scheduler" 2>&1 |
        sed 's/^/    /' || :
    say "-- gate: $mode. GPU 3 is back:"
    hardware clear
    node_sh "$program check --quiet; sleep 2; echo \"docker is \$(systemctl is-active docker)\"; tail -n 1 /var/log/demo-scheduler" 2>&1 | sed 's/^/    /' || :
    rm "$overlay/demo_gate_$mode.yml"
done
unset GOLDNODE_CATALOG
converge -i inventories/demo site.yml
touch .goldnode/demo/toured
