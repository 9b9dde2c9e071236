#!/usr/bin/env bash
# containerd 2.1.9+ds1-5 (Debian 14): the kubelet is told the cgroup driver of the default runtime, and nothing of a runtime that has the other one.
#
# Since Kubernetes 1.34 the kubelet asks for the driver (RuntimeConfig of the container runtime interface) and ignores its own setting. SystemdCgroup
# is an option of each runtime, so a drop-in that adds a GPU runtime without it, beside a runc that has it, gives two drivers. containerd answers
# "systemd" (0), the kubelet makes slices for all pods, and runc is started without --systemd-cgroup for those with GPUs. Nothing warns.
# The other way round, where only the default runtime `nvidia` has it, all other pods are the ones left out.
# Expected: a warning, or the answer of an error. Needs Debian's apt and root. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); started=; trap '[ -z "$started" ] || kill "$started"; wait; rm -rf "$folder"' EXIT; cd "$folder"
mkdir -p lists/partial cache/archives/partial; touch status
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | sed -n 1p) # where this machine has Debian from
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no] $archive forky main" >sources.list
cat >apt.conf <<CONF
Dir::State "$folder"; Dir::State::lists "$folder/lists"; Dir::State::status "$folder/status"; Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";
CONF
APT_CONFIG=$folder/apt.conf apt-get -qq update
APT_CONFIG=$folder/apt.conf apt-get -qq download containerd=2.1.9+ds1-5
dpkg-deb -x containerd_*.deb root
python3 -m venv venv && venv/bin/pip -q install grpcio==1.84.0
cat >ask.py <<'PY'
import sys, grpc
call = grpc.insecure_channel("unix:" + sys.argv[1]).unary_unary("/runtime.v1.RuntimeService/RuntimeConfig", None, None)
answer = call(b"", timeout=20, wait_for_ready=True)  # field 1, a message: its field 1 is the driver, and 0 is not written
print({b"\n\x00": "systemd", b"\n\x02\x08\x01": "cgroupfs"}[answer])
PY
table='plugins."io.containerd.cri.v1.runtime".containerd'
told() { # default runtime, SystemdCgroup of runc, of nvidia: the driver that the kubelet is told
    rm -rf run; mkdir run
    cat >config.toml <<CONF
version = 3
root = "$folder/run/root"
state = "$folder/run/state"
[grpc]
address = "$folder/run/socket"
[$table]
default_runtime_name = "$1"
[$table.runtimes.runc.options]
SystemdCgroup = $2
[$table.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[$table.runtimes.nvidia.options]
SystemdCgroup = $3
CONF
    root/usr/bin/containerd --config config.toml >log 2>&1 & started=$!
    driver=$(venv/bin/python ask.py "$folder/run/socket")
    kill "$started"; wait "$started" || true; started=
    echo "default $1, SystemdCgroup of runc $2, of nvidia $3: the kubelet is told $driver; warnings about it: $(grep -E "level=(warn|error)" log | grep -ci cgroup || true)"
}
root/usr/bin/containerd --version
{ told runc true false; told nvidia false true; told runc false true; } | tee result
grep -q "default runc, SystemdCgroup of runc true, of nvidia false: the kubelet is told systemd" result
grep -q "default nvidia, SystemdCgroup of runc false, of nvidia true: the kubelet is told systemd" result
grep -q "default runc, SystemdCgroup of runc false, of nvidia true: the kubelet is told cgroupfs" result
