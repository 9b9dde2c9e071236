#!/usr/bin/env bash
# efibootmgr 18 (Debian 13 and 14): the optional data of a boot entry stands right behind its path, and the file name cannot be told from it.
#
# Firmware writes entries of its own with a few bytes of data, such as 00 00 42 4f. efibootmgr 17 (Debian 12) shows the path of an entry with -v
# only, and such data as letters behind the closing bracket: File(\EFI\BOOT\BOOTX64.EFI)..BO. efibootmgr 18 shows the path always and the data as
# digits, in Debian 14 (libefivar 39, without brackets) right behind the name of the file: \EFI\BOOT\BOOTX64.EFI0000424f.
# A script that takes the rest of the line for the path gets a file that does not exist.
# Expected: a blank between path and data.
# Needs Debian's apt. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | sed -n 1p) # where this machine has Debian from
python3 - <<'PY'
import os, struct, uuid
os.mkdir("efivars")
path = struct.pack("<BBHIQQ", 4, 1, 42, 1, 2048, 1048576) + uuid.UUID(int=1).bytes_le + b"\2\2"
file = "\\EFI\\BOOT\\BOOTX64.EFI\0".encode("utf-16-le")
path += struct.pack("<BBH", 4, 4, 4 + len(file)) + file + b"\x7f\xff\4\0"
option = struct.pack("<IH", 1, len(path)) + "UEFI OS\0".encode("utf-16-le") + path + b"\0\0BO"
for name, value in (("Boot0000", option), ("BootOrder", b"\0\0"), ("BootCurrent", b"\0\0")):
    with open(f"efivars/{name}-8be4df61-93ca-11d2-aa0d-00e098032b8c", "wb") as file:
        file.write(struct.pack("<I", 7) + value)
PY
show() { # suite, version, options of efibootmgr: its line of the entry
    if [ ! -d "$1" ]; then
        mkdir -p "$1/lists/partial" "$1/cache/archives/partial" "$1/root"; : >"$1/status"
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no] $archive $1 main" >"$1/sources.list"
        cat >"$1/apt.conf" <<CONF
Dir::State "$folder/$1"; Dir::State::lists "$folder/$1/lists"; Dir::State::status "$folder/$1/status"; Dir::Cache "$folder/$1/cache";
Dir::Etc::sourcelist "$folder/$1/sources.list"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";
APT::Install-Recommends "false"; APT::Architectures "amd64";
CONF
        APT_CONFIG=$folder/$1/apt.conf apt-get -qq update
        (cd "$1/cache" && APT_CONFIG=$folder/$1/apt.conf apt-get -s install "efibootmgr=$2" | sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) .*/\1=\2/p' |
            APT_CONFIG=$folder/$1/apt.conf xargs apt-get -qq download)
        for package in "$1"/cache/*.deb; do dpkg-deb -x "$package" "$1/root"; done
    fi
    local root=$1/root libraries=$1/root/lib/x86_64-linux-gnu:$1/root/usr/lib/x86_64-linux-gnu
    EFIVARFS_PATH=$folder/efivars/ "$(find "$root" -name ld-linux-x86-64.so.2 | head -1)" --library-path "$libraries" \
        "$(find "$root" -path '*bin/efibootmgr')" ${3:-} | grep Boot0000
}
show bookworm 17-2 | tee 17; show bookworm 17-2 -v | tee 17v; show trixie 18-2 | tee 18; show forky 18-4.1 | tee 18-14
grep -q 'UEFI OS$' 17 && grep -qF 'BOOTX64.EFI)..BO' 17v && grep -qF 'BOOTX64.EFI)0000424f' 18 && grep -qF 'BOOTX64.EFI0000424f' 18-14
