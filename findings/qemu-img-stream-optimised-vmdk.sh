#!/usr/bin/env bash
# qemu-img 7.2 (Debian 12) and 10.0 (Debian 13): a stream-optimised VMDK has no footer, and 7-Zip 26.01 and 25.01 do not open it.
#
# VMware's "Virtual Disk Format" has the grain directory of a stream-optimised extent at the end, and a header whose `gdOffset` is all ones
# says so; qemu-img writes the directory behind the descriptor, the place in the header, and ends with the last grain. 7-Zip reports that it cannot open the
# file as a VMDK archive; it opens the sparse VMDK of the same qemu-img, and libvmdk reads both. The file also contains its own name and a random
# content ID, so that two conversions of one disk differ. Expected: all readers of VMDK open it. Needs Debian's apt and archive keys, root for chroot.
# Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
fetched() { # suite: its programs with all that they need, unpacked in a directory of its name
    mkdir -p "$1.apt/lists/partial" "$1.apt/archives/partial" "$1"; : >"$1.apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $1 main" >"$1.apt/sources.list"
    cat >"$1.apt/conf" <<CONF
Dir::State "$folder/$1.apt"; Dir::State::lists "$folder/$1.apt/lists"; Dir::State::status "$folder/$1.apt/status"; Dir::Cache "$folder/$1.apt";
Dir::Cache::archives "$folder/$1.apt/archives"; Dir::Etc::sourcelist "$folder/$1.apt/sources.list"; Dir::Etc::sourceparts "-";
APT::Sandbox::User "root"; Acquire::Languages "none"; APT::Install-Recommends "false"; Debug::NoLocking "true";
CONF
    APT_CONFIG=$folder/$1.apt/conf apt-get -qq update
    APT_CONFIG=$folder/$1.apt/conf apt-get -qq -y -d install qemu-utils 7zip libvmdk-utils coreutils bash >/dev/null
    for package in "$1.apt"/archives/*.deb; do dpkg-deb -x "$package" "$1"; done
    mkdir -p "$1/dev"; mknod "$1/dev/null" c 1 3
    for name in bin lib lib64; do [ -e "$1/$name" ] || ln -s "usr/$name" "$1/$name"; done
}
inside() { local suite=$1; shift; chroot "$suite" /usr/bin/env PATH=/usr/bin:/bin LC_ALL=C "$@"; }
status=0
for suite in bookworm trixie; do
    fetched $suite
    seven=$(cd $suite; for file in usr/bin/7zz usr/lib/7zip/7z usr/bin/7z; do [ ! -e $file ] || { echo /$file; break; }; done)
    truncate -s 64M $suite/disk.raw
    seq 200000 | dd of=$suite/disk.raw bs=64k seek=100 conv=notrunc status=none
    inside $suite qemu-img convert -f raw -O vmdk -o subformat=streamOptimized disk.raw stream.vmdk
    inside $suite qemu-img convert -f raw -O vmdk -o subformat=streamOptimized disk.raw again.vmdk
    inside $suite qemu-img convert -f raw -O vmdk disk.raw sparse.vmdk
    directory=$(od -A n -t x8 -j 56 -N 8 $suite/stream.vmdk | tr -d ' ')
    end=$(tail -c 512 $suite/stream.vmdk | tr -d '\0' | wc -c)
    result="directory at sector 0x$directory"
    for file in sparse stream; do
        for reader in 7-Zip vmdkinfo; do
            program=$reader; [ $reader = vmdkinfo ] || program="$seven l"
            inside $suite $program $file.vmdk >out 2>&1 && result+="; $reader $file: opened" || result+="; $reader $file: refused"
        done
    done
    cmp -s $suite/stream.vmdk $suite/again.vmdk && result+="; equal twice" || result+="; differs twice"
    echo "$suite: $(inside $suite qemu-img --version | head -n 1 | cut -d ' ' -f 3), $(inside $suite $seven | sed -n 's/^7-Zip[^0-9]*\([0-9.]*\).*/\1/p' | head -n 1): $result"
    case $result in
        "directory at sector 0x00000000000000"*"7-Zip sparse: opened; vmdkinfo sparse: opened; 7-Zip stream: refused; vmdkinfo stream: opened; differs twice") ;;
        *) status=1 ;;
    esac
done
exit $status
