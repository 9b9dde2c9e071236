#!/usr/bin/env bash
# kmod 34.2-2 (Debian 13): `modprobe.blacklist=` on the kernel command line does not take a hyphen for an underscore.
#
# modprobe takes both spellings of a module's name in modprobe.d, and so do its arguments. On the command line of the kernel it does for
# options (nvidia-drm.modeset=1), and not for modprobe.blacklist: with `modprobe.blacklist=nvidia-drm`, as many pages write it, udev loads
# nvidia_drm as ever, without a message. Expected: kept out, as by `blacklist nvidia-drm` in a file. kmod 30 (Debian 12) behaves alike.
# Needs Debian's apt, cc, depmod and unshare with user namespaces. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
mkdir -p lists/partial cache/archives/partial; touch status
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive trixie main" >sources.list
cat >apt.conf <<CONF
Dir::State "$folder"; Dir::State::lists "$folder/lists"; Dir::State::status "$folder/status"; Dir::Cache "$folder/cache";
Dir::Etc::sourcelist "$folder/sources.list"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";
CONF
export APT_CONFIG=$folder/apt.conf
apt-get -qq update
apt-get -qq download kmod=34.2-2 libkmod2=34.2-2 libc6 libzstd1 liblzma5 libssl3t64 zlib1g
for archive in *.deb; do dpkg-deb -x "$archive" root; done
unset APT_CONFIG
for name in lib lib64 bin sbin; do [ -e "root/$name" ] || ln -s "usr/$name" "root/$name"; done
release=6.12.0-example
mkdir -p root/proc "root/usr/lib/modules/$release"
echo '__attribute__((section(".modinfo"))) const char a[] = "name=nvidia_drm", b[] __attribute__((section(".modinfo"))) = "alias=pci:v000010DEd*";' |
    cc -x c -c -o "root/usr/lib/modules/$release/nvidia-drm.ko" -
"$(command -v depmod || echo /usr/sbin/depmod)" -b "$folder/root" "$release" 2>/dev/null
loads() { # the command line of the kernel, a line of modprobe.d: what udev would load for the device
    echo "quiet $1" >root/proc/cmdline
    mkdir -p root/etc/modprobe.d; echo "$2" >root/etc/modprobe.d/example.conf
    unshare --map-root-user --root="$folder/root" /usr/bin/kmod --version >/dev/null
    cp -f root/usr/bin/kmod root/usr/bin/modprobe
    unshare --map-root-user --root="$folder/root" /usr/bin/modprobe -S "$release" -b -n -v pci:v000010DEd00002684
}
unshare --map-root-user --root="$folder/root" /usr/bin/kmod --version | head -1
file=$(loads "" "blacklist nvidia-drm"); under=$(loads "modprobe.blacklist=nvidia_drm" ""); hyphen=$(loads "modprobe.blacklist=nvidia-drm" "")
echo "modprobe.d, blacklist nvidia-drm:   ${file:-nothing is loaded}"
echo "modprobe.blacklist=nvidia_drm:      ${under:-nothing is loaded}"
echo "modprobe.blacklist=nvidia-drm:      ${hyphen:-nothing is loaded}"
[ -z "$file" ] && [ -z "$under" ] && [ -n "$hyphen" ]
