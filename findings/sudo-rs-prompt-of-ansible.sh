#!/usr/bin/env bash
# sudo-rs 0.2.5 with ansible-core 2.19.11, both as Debian 13 packages them: become with a password ends as UNREACHABLE, after a time limit.
#
# Ansible gives sudo a prompt (`-p`) and waits for a line that begins with it. sudo prints the prompt as it is; sudo-rs prints
# `[sudo: PROMPT] Password: `. Ansible then waits for the whole time limit of the connection, and reports a host to which it is
# connected as unreachable (over ssh "Timeout (12s) waiting for privilege escalation prompt"). sudo-rs 0.2.15 prints the same. ansible-core
# 2.21.5 behaves alike; 2.22.0rc1 knows that form. Without a password (NOPASSWD) all of them work with sudo-rs.
# Expected: the prompt of -p as it is, or a failure that names the prompt. Needs root and mmdebstrap. Ends with 0 while the behaviour is
# this, 1 if it has changed.
set -euo pipefail
[ "${1:-}" = inside ] || exec unshare --mount bash "$0" inside # mounts go with the process
folder=$(mktemp -d); root=$folder/root
trap 'umount "$root/dev/shm" "$root/dev/pts" "$root/proc"; rm -rf --one-file-system "$folder"' EXIT
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | head -n 1) # where this machine has Debian from
mmdebstrap --quiet --variant=apt --include=ansible-core,sudo,sudo-rs trixie "$root" "$archive"
mount -t proc proc "$root/proc"
mkdir -p "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -sf pts/ptmx "$root/dev/ptmx"
echo "127.0.0.1 localhost $(hostname)" >"$root/etc/hosts"
chroot "$root" sh -eu <<'SCRIPT'
useradd --create-home ops
echo ops:a-password | chpasswd
echo 'ops ALL=(ALL:ALL) ALL' >/etc/sudoers.d/ops
chmod 440 /etc/sudoers.d/ops
dpkg-query --show ansible-core sudo sudo-rs
prompt() { echo a-password | su ops -c "$1 -k -S -p 'the prompt:' true" 2>&1 | tr -d '\n'; }
of_sudo=$(prompt sudo) of_rs=$(prompt sudo-rs)
echo "sudo prints ($of_sudo), sudo-rs ($of_rs)"
become() {
    su ops -c "ansible localhost -m ansible.builtin.raw -a true -b -T 5 -e ansible_become_password=a-password -e ansible_become_exe=$1" 2>/dev/null |
        grep -oE "CHANGED|UNREACHABLE"
}
with_sudo=$(become sudo) with_rs=$(become sudo-rs)
echo "Ansible with sudo: $with_sudo; with sudo-rs: $with_rs"
[ "$of_sudo $of_rs" = "the prompt: [sudo: the prompt:] Password: " ]
[ "$with_sudo, $with_rs" = "CHANGED, UNREACHABLE" ]
SCRIPT
