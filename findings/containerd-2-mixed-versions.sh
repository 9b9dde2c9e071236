#!/usr/bin/env bash
# containerd 2.1.9+ds1-5 (Debian 14): a version 2 import in a version 3 config.toml loses its runtimes, and takes effect otherwise.
#
# Drop-ins of version 2 are common: they work with containerd 1 and, alone or in a version 2 config.toml, with containerd 2, which migrates
# them. In a version 3 config.toml with a table of runtimes, such a drop-in's default_runtime_name is taken and its runtime is not: the
# default runtime of all pods does not exist. `containerd config dump` ends with 0 and prints no warning.
# Expected: the runtime too, or an error. Needs Debian's apt. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
mkdir -p lists/partial cache/archives/partial; touch status
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive forky main" >sources.list
cat >apt.conf <<CONF
Dir::State "$folder"; Dir::State::lists "$folder/lists"; Dir::State::status "$folder/status"; Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";
CONF
APT_CONFIG=$folder/apt.conf apt-get -qq update
APT_CONFIG=$folder/apt.conf apt-get -qq download containerd=2.1.9+ds1-5
dpkg-deb -x containerd_*.deb root
cat >config.toml <<CONF
version = 3
imports = ["$folder/gpu.toml"]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = true
CONF
cat >gpu.toml <<'CONF'
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
CONF
root/usr/bin/containerd --version
root/usr/bin/containerd -c config.toml config dump >dump.toml 2>warnings
default=$(grep -m1 default_runtime_name dump.toml | tr -d " '\"")
runtimes=$(grep -oE "containerd\.runtimes\.[a-z]+\]" dump.toml | sort -u | tr '\n' ' ')
echo "status 0, $(wc -l <warnings) warnings; $default; runtimes: $runtimes"
[ "$default" = "default_runtime_name=nvidia" ] && ! grep -q "runtimes.nvidia" dump.toml && [ ! -s warnings ]
