#!/usr/bin/env bash
# systemd 262-1 (Debian 14): a root made without recommended packages has no mount, and boots with / read-only.
#
# In Debian 13 systemd (257.13-1~deb13u1) depends on mount. In Debian 14 it only recommends mount and login, and also the libraries for seccomp, PAM, kmod and TLS
# that it now loads by name. Small roots (disk images, containers with an init) are usually made without recommended packages. systemd runs
# /usr/bin/mount for each mount unit and to mount / again for writing. Without it, a machine boots to its console with / read-only:
# seen in QEMU on 2026-12-01, where some twenty units failed, systemd-remount-fs and ssh among them.
# Expected: a dependency on the program that PID 1 runs for every mount unit.
# Needs Debian's apt. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | sed -n 1p) # where this machine has Debian from
of() { # suite, version of systemd: the packages of a smallest root that boots
    mkdir -p "$1/lists/partial" "$1/cache/archives/partial"; : >"$1/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no] $archive $1 main" >"$1/sources.list"
    cat >"$1/apt.conf" <<CONF
Dir::State "$folder/$1"; Dir::State::lists "$folder/$1/lists"; Dir::State::status "$folder/$1/status"; Dir::Cache "$folder/$1/cache";
Dir::Etc::sourcelist "$folder/$1/sources.list"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";
APT::Install-Recommends "false"; APT::Architectures "amd64";
CONF
    APT_CONFIG=$folder/$1/apt.conf apt-get -qq update
    APT_CONFIG=$folder/$1/apt.conf apt-get -s install '?essential' apt udev "systemd-sysv=$2" "systemd=$2" | sed -n 's/^Inst \([^ ]*\) .*/\1/p' | sort >"$1/packages"
    echo "$1: $(wc -l <"$1/packages") packages, $(grep -cx mount "$1/packages" || true) of them mount"
}
of trixie 257.13-1~deb13u1
of forky 262-1
grep -qx mount trixie/packages
if grep -qx mount forky/packages; then exit 1; fi
APT_CONFIG=$folder/forky/apt.conf apt-get -qq download libsystemd-shared=262-1 systemd=262-1
for file in *.deb; do dpkg-deb -x "$file" root; done
grep -rqa /usr/bin/mount root/usr/lib
echo "forky: systemd runs /usr/bin/mount"
