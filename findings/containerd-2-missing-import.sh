#!/usr/bin/env bash
# containerd 2.1.9+ds1-5 (Debian 14): an import that does not exist ends the reading of all imports after it, without a word.
#
# containerd 1.6 and 1.7 do not start with such a file (`config dump` ends with 1 and names it). containerd 2 treats the error as that of a
# missing config.toml, which it ignores: it starts with config.toml and the imports before the missing one. A drop-in with the GPU runtime
# that comes after a file somebody removed has no effect, and `containerd config dump` ends with 0 and prints no warning.
# Expected: an error, or the other imports. Needs Debian's apt. Ends with 0 while the behaviour is this, 1 if it has changed.
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
imports = ["$folder/removed.toml", "$folder/gpu.toml"]
CONF
cat >gpu.toml <<'CONF'
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "nvidia"
CONF
root/usr/bin/containerd --version
shown() { root/usr/bin/containerd -c config.toml config dump 2>warnings | grep -m1 default_runtime_name | tr -d " '\""; }
without=$(shown); echo "with a missing import before it: $without, $(wc -l <warnings) warnings"
touch removed.toml
with=$(shown); echo "with that file, empty: $with"
[ "$without" = "default_runtime_name=runc" ] && [ "$with" = "default_runtime_name=nvidia" ] && [ ! -s warnings ]
