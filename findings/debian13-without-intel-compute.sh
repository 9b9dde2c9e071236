#!/usr/bin/env bash
# Debian 13: the archive has the Level Zero loader (libze1 1.20.6) and Intel's media driver, and no driver for them to compute with.
#
# Debian 12 has intel-opencl-icd 22.43, and Debian 14 has it with libze-intel-gpu1. The release between them has neither, so that an upgrade from 12 to 13
# takes OpenCL away, and a node with libze1 lists no GPU. apt reports no error: the old package stays installed where it was, without updates.
# Expected: what 12 and 14 have, 13 has too. Needs Debian's apt. Ends with 0 while the archive is like this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
mkdir -p lists/partial cache/archives/partial; touch status
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
versions() { # a release and packages: each with its version, or "none"
    rm -rf lists/*; mkdir -p lists/partial
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $1 main" >sources.list
    cat >apt.conf <<CONF
Dir::State "$folder"; Dir::State::lists "$folder/lists"; Dir::State::status "$folder/status"; Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";
CONF
    APT_CONFIG=$folder/apt.conf apt-get -qq update
    for name in "${@:2}"; do
        found=$(APT_CONFIG=$folder/apt.conf apt-cache show --no-all-versions "$name" 2>/dev/null | sed -n 's/^Version: //p') || true
        echo "$1 $name ${found:-none}"
    done
}
packages=(libze1 intel-media-va-driver intel-opencl-icd libze-intel-gpu1)
versions bookworm "${packages[@]}" | tee bookworm
versions trixie "${packages[@]}" | tee trixie
grep -q "intel-opencl-icd 22" bookworm
grep -q "libze1 1" trixie && grep -q "intel-media-va-driver 2" trixie
grep -q "intel-opencl-icd none" trixie && grep -q "libze-intel-gpu1 none" trixie
