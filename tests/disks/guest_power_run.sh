# What the guest does in a run whose writes are logged, and in a boot of a disk that a power cut can leave. Not a test: run in the guest.
# Marks go to a sector that no partition has (as in powercut.py): the log then shows which writes are of which step.
program=/usr/lib/goldnode/goldnode-node
update="python3 -I -S /run/payload/update.pyz slot"
mode=$(cat /run/payload/mode)
say() { printf '\nGUEST %s\n' "$*"; }
slot=$(sed -n 's/.*root=PARTLABEL=root-\([ab]\).*/\1/p' /proc/cmdline)
disk=$(sed -n 's/^disk=//p' /run/goldnode/disk)
trial() { /lib/systemd/systemd-bless-boot status 2>/dev/null; }
settled() { # everything that is dirty is written, and the disk's cache is flushed
    sync
    sync -f /
    sync -f /efi
    sync "/dev/$disk"
}
mark() {
    printf '%-512s' "$*" >/run/mark
    dd if=/run/mark of="/dev/$disk" bs=512 seek=1000 count=1 oflag=direct conv=notrunc status=none
    say "MARK $*"
}
step() { # step NAME COMMAND...
    name=$1
    shift
    settled
    mark "begin $name"
    "$@" >/run/step.txt 2>&1
    code=$?
    mark "end $name"
    say "STEP $name $code $(tail -n 3 /run/step.txt | tr '\n' ' ')"
}

i=0
while [ ! -e /efi/goldnode ] && [ $i -lt 900 ]; do
    sleep 1
    i=$((i + 1))
done
say "BOOT $slot $(uname -r) $(trial) esp=$(findmnt -no SOURCE /efi) root=$(findmnt -no SOURCE /)"
while [ "$(trial)" = indeterminate ]; do sleep 1; done
i=0
while [ -e /run/goldnode/identify ] && [ "$(systemctl is-active goldnode-identity.service)" != active ] && [ $i -lt 900 ]; do
    sleep 1
    i=$((i + 1))
done

# Retries and recovery are written once the boot is up; they have the lock of the slots.
i=0; while [ $i -lt 900 ]; do case $(systemctl is-active goldnode-retries.service) in active | failed) break ;; esac; sleep 1; i=$((i + 1)); done

if [ "$mode" = observe ]; then
    say "STATUS $($program slot status --format json | tr -d '\n')"
    say "MODULES $(modprobe -n -v dummy 2>&1 | head -1)"
    say "OBSERVED $slot"
    sync
    exit 0
fi
if [ "$slot" = a ] && [ ! -e /efi/goldnode/b/slot.json ]; then
    mark "end identity"
    step write sh -c "$update write <\"/run/payload/image\""
    mark "begin trial"
    systemctl --no-block reboot
elif [ "$slot" = b ]; then
    mark "end trial"
    step initramfs update-initramfs -u
    # One after the other, as site.yml does: nothing flushes the root in between.
    step kernel sh -c "dpkg -i /run/payload/kernel.deb && $program slot sync --release $(cat /run/payload/release)"
    step back $program slot back
    say "STATUS $($program slot status --format json | tr -d '\n')"
    mark "begin return"
    systemctl --no-block reboot
else
    mark "end return"
    say "STATUS $($program slot status --format json | tr -d '\n')"
    settled
    say "THROUGH"
    systemctl --no-block poweroff
fi
