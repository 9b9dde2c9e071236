#!/usr/bin/env bash
# Debian 12, 13 and sid, arm64: the kernel is built without CONFIG_ARM_SMMU_V3_SVA, without which no CUDA program starts on a GB10.
#
# The driver loads, nvidia-smi lists the GPU, and cuInit returns 3; nothing is in the kernel's log (Start9Labs/start-technologies#3693 on Debian's kernel,
# siderolabs/talos#14087 and NixOS/nixpkgs#527847 on others; not run here, for want of a GB10). The SMMU's driver itself is on.
# Expected: the option is on, as its driver is. Needs Debian's apt. Ends with 0 while the kernels are like this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | sed -n 1p) # where this machine has Debian from
cat >apt.conf <<CONF
Dir::State "$folder"; Dir::State::lists "$folder/lists"; Dir::State::status "$folder/status"; Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";
APT::Architecture "arm64"; APT::Architectures "arm64";
CONF
export APT_CONFIG=$folder/apt.conf
option() { # a release: the newest headers of its arm64 kernel, and the two options
    rm -rf lists cache ./*.deb; mkdir -p lists/partial cache/archives/partial; touch status
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $1 main" >sources.list
    apt-get -qq update
    package=$(apt-cache depends linux-headers-arm64 | sed -n 's/^ *Depends: \(linux-headers-.*\)/\1/p')
    apt-get -qq download "$package"
    dpkg-deb --fsys-tarfile ./*.deb | tar -xO --wildcards '*/.config' >config
    echo "$1 $package: $(grep -E 'CONFIG_ARM_SMMU_V3(=| )' config), $(grep CONFIG_ARM_SMMU_V3_SVA config)"
    grep -q '^CONFIG_ARM_SMMU_V3=y' config && grep -q '^# CONFIG_ARM_SMMU_V3_SVA is not set' config
}
for release in bookworm trixie sid; do option "$release"; done
