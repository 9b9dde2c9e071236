#!/usr/bin/env bash
# e2fsprogs 1.47.0 (Debian 12): without a terminal, mkfs.ext4 overwrites another file system without -F, asks nothing and ends with 0.
#
# With a terminal the same command names the other file system and asks "Proceed anyway?". From a script, Ansible or systemd it
# destroys the file system. mkfs.xfs(8) documents a refusal unless -f is given; mke2fs(8) mentions of -F only what is no partition, in
# use or mounted. Expected: a refusal without -F. Needs mkfs.ext4 and blkid, works on a file. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
PATH=$PATH:/usr/sbin
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
truncate -s 32M disk
mkfs.ext4 -q -L DATA disk
mkfs.ext4 -V 2>&1 | head -n 1
rc=0; mkfs.ext4 -q -L other disk </dev/null >out 2>&1 || rc=$?
echo "exit status $rc, label $(blkid -p -s LABEL -o value disk), output: $(cat out)"
[ "$rc" = 0 ] && [ "$(blkid -p -s LABEL -o value disk)" = other ]
