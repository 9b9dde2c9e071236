# What the guest does at each boot, from the payload disk; /efi/step says where it is. Not a test: run in the guest.
program=/usr/lib/goldnode/goldnode-node
update="python3 -I -S /run/payload/update.pyz slot"
say() { printf '\nGUEST %s\n' "$*"; }
state() { /lib/systemd/systemd-bless-boot status 2>/dev/null; }
slot=$(sed -n 's/.*root=PARTLABEL=root-\([ab]\).*/\1/p' /proc/cmdline)
i=0; while [ ! -e /efi/goldnode ] && [ $i -lt 600 ]; do sleep 1; i=$((i + 1)); done
step=$(cat /efi/step 2>/dev/null || echo begin)
say "BOOT slot=$slot root=$(findmnt -no SOURCE /) step=$step state=$(state)"
[ "$(state)" != indeterminate ] || say "TRIED $(systemctl show -P RuntimeWatchdogUSec)"
# A boot that tries an image is left to what judges it.
while [ "$(state)" = indeterminate ]; do sleep 1; done
i=0; while [ "$(systemctl is-active goldnode-sanity.service)" != active ] && [ $i -lt 600 ]; do sleep 1; i=$((i + 1)); done

# Retries and recovery are written once the boot is up; they have the lock of the slots.
i=0; while [ $i -lt 900 ]; do case $(systemctl is-active goldnode-retries.service) in active | failed) break ;; esac; sleep 1; i=$((i + 1)); done

tell() {
    say "SLOTS $($program slot status --format json | tr -d '\n')"
    say "FINDINGS $(python3 -c 'import json; print(json.dumps([f for f in json.load(open("/run/goldnode/verdict.json"))["findings"] if f["outcome"] != "match"]))')"
    say "WATCHDOG $(cat /sys/class/watchdog/watchdog0/identity) $(cat /sys/class/watchdog/watchdog0/state) $(systemctl show -P RuntimeWatchdogUSec)"
    say "MOTD $(sh /etc/update-motd.d/90-goldnode | tr '\n' '|')"
}
other=b; [ "$slot" = b ] && other=a
release=$(uname -r)
part=/dev/disk/by-partlabel/root-$other
go() { echo "$1" >/efi/step.new; mv /efi/step.new /efi/step; sync; say "NEXT $1"; systemctl --no-block reboot; exit 0; }
damage() { # damage on|off CAUSE
    mkdir -p /run/other; mount $part /run/other
    case "$1 $2" in
    "on panic") mv /run/other/lib/systemd/systemd /run/other/root/init; printf '#!/bin/sh\nexit 1\n' >/run/other/lib/systemd/systemd; chmod 755 /run/other/lib/systemd/systemd ;;
    "off panic") mv /run/other/root/init /run/other/lib/systemd/systemd ;;
    "on root") mv /run/other/usr /run/other/gone ;;
    "off root") mv /run/other/gone /run/other/usr ;;
    "on module") mv /run/other/lib/modules/$release/kernel/drivers/net/dummy.ko /run/other/root/; depmod -b /run/other $release ;;
    "off module") mv /run/other/root/dummy.ko /run/other/lib/modules/$release/kernel/drivers/net/; depmod -b /run/other $release ;;
    "on unit") echo 'Nonsense yes' >/run/other/etc/ssh/sshd_config.d/bad.conf ;;
    "off unit") rm /run/other/etc/ssh/sshd_config.d/bad.conf ;;
    "on program") mv /run/other$program /run/other/root/program; echo '#!/bin/false' >/run/other$program; chmod 755 /run/other$program ;;
    "off program") mv /run/other/root/program /run/other$program ;;
    "on mount") echo 'LABEL=gone /gone ext4 x-systemd.device-timeout=2s 0 0' >>/run/other/etc/fstab ;;
    "on hang")
        # PID 1 takes a signal of a fault, says that it freezes, and does nothing more: no reboot, no panic.
        printf '[Unit]\nAfter=basic.target\n[Service]\nExecStart=/bin/kill -ABRT 1\n' >/run/other/etc/systemd/system/hang.service
        ln -s ../hang.service /run/other/etc/systemd/system/multi-user.target.wants/hang.service
        ;;
    "off hang") rm /run/other/etc/systemd/system/hang.service /run/other/etc/systemd/system/multi-user.target.wants/hang.service ;;
    "off mount") sed -i '/LABEL=gone/d' /run/other/etc/fstab ;;
    esac
    umount /run/other
}
attempt() { # damage the other slot as the first of the causes left says, and have it boot next
    causes=$(cat /efi/causes)
    set -- $causes
    [ $# -gt 0 ] || { say "THROUGH"; sync; systemctl --no-block poweroff; exit 0; }
    cause=$1; shift
    echo "$*" >/efi/causes
    damage on "$cause"
    $update back --tries "$(cat /run/payload/tries)" || say "REFUSED back"
    go "after-$cause"
}
case $step in
begin)
    say "SLOTS $($program slot status --format json | tr -d '\n')"
    cp /run/payload/causes /efi/causes
    say "IDENTITY $(cat /etc/machine-id) $(md5sum /etc/ssh/ssh_host_ed25519_key.pub | cut -c 1-32)"
    $update write --format json <"/run/payload/image" >/run/written.json 2>/run/written.err; code=$?
    say "WRITTEN $code $(tr -d '\n' </run/written.json) $(tail -1 /run/written.err)"
    [ $code = 0 ] || exit 1
    go written
    ;;
written)
    tell
    say "IDENTITY $(cat /etc/machine-id) $(md5sum /etc/ssh/ssh_host_ed25519_key.pub | cut -c 1-32)"
    say "SIZE $(df -BM --output=size / | tail -1)"
    # What the kernel's hooks do when the initramfs of this slot is made anew.
    update-initramfs -u >/run/initramfs.txt 2>&1; say "INITRAMFS $? $($program slot status --format json | tr -d '\n')"
    say "COPIES $(grep -E 'linux|initrd' /efi/loader/entries/goldnode-*-$slot[.+]* | tr '\n' '|')"
    attempt
    ;;
after-*)
    tell
    damage off "${step#after-}"
    attempt
    ;;
esac
