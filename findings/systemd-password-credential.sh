#!/usr/bin/env bash
# systemd 252, 257 and 262 (Debian 12 to 14): the credential passwd.hashed-password.root sets no password on any Debian root, without a message.
#
# systemd.system-credentials(7): it is "only honoured if no root password has been configured before". Debian's base-passwd gives root the
# password `*`, with which nobody logs in, in every root that debootstrap, mmdebstrap or the installer makes. systemd-sysusers takes a user that is
# there as it is, and systemd-firstboot counts `*` as a password. Both end with 0. Since 257 (not in 252) systemd-firstboot replaces the word
# `!unprovisioned`, which is shown here too, and no package of Debian writes it. Expected: a password, or a message.
# Needs root and mmdebstrap; an argument (bookworm, trixie, forky) shows one release. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
password='$6$salt$hash'
row() { sed -n 's/^root:\([^:]*\):.*/\1/p' "$root/etc/shadow"; }
first_boot() { # both programs that read it, with the credential as their services pass it
    for program in systemd-sysusers systemd-firstboot; do
        unshare --mount --pid --fork sh -c 'mount -t proc proc "$1/proc"; mount --bind /dev "$1/dev"
            exec chroot "$1" env -i PATH=/usr/bin:/usr/sbin CREDENTIALS_DIRECTORY=/given "$2"' sh "$root" "$program" >>"$folder/messages" 2>&1
    done
}
for suite in ${1:-bookworm trixie forky}; do
    root=$folder/$suite
    mmdebstrap --quiet --variant=essential --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Install-Recommends "false"' \
        --include=passwd,systemd "$suite" "$root" "deb $archive $suite main"
    mkdir -m 700 "$root/given"
    printf %s "$password" >"$root/given/passwd.hashed-password.root"
    before=$(row)
    : >"$folder/messages"
    first_boot
    after=$(row)
    said=$(grep -ci passw "$folder/messages" || true)
    sed -i 's/^root:[^:]*:/root:!unprovisioned:/' "$root/etc/shadow"
    first_boot
    echo "$(chroot "$root" dpkg-query -W systemd | tr '\t' ' '): before: $before, after: $after, messages: $said; from !unprovisioned: $(row)"
    [ "$before" = '*' ] && [ "$after" = '*' ] && [ "$said" = 0 ]
    if [ "$suite" = bookworm ]; then [ "$(row)" = '!unprovisioned' ]; else [ "$(row)" = "$password" ]; fi
    rm -rf "$root"
done
