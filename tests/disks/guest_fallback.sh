# Reports of the guest at each boot, from the payload disk. Not a test: run in the guest.
program=/usr/lib/goldnode/goldnode-node
say() { printf '\nGUEST %s\n' "$*"; }
slot=$(sed -n 's/.*root=PARTLABEL=root-\([ab]\).*/\1/p' /proc/cmdline)
say "BOOT slot=$slot"
i=0
while [ $i -lt 900 ]; do
    case $(systemctl is-active goldnode-retries.service) in
    active | failed) break ;;
    esac
    sleep 1
    i=$((i + 1))
done
say "RETRIES $(systemctl show -P Result goldnode-retries.service) $(journalctl -b -u goldnode-retries.service -o cat | tr '\n' '|')"
say "STATUS $($program slot status --format json | tr -d '\n')"
say "TEXT $($program slot status | tr '\n' '|')"
say "ENTRIES $(cd /efi/loader/entries && ls | tr '\n' ' ')"
say "HISTORY $(tr '\n' ' ' </efi/goldnode/history)"
say "FAILED $(systemctl list-units --state=failed --plain --no-legend | tr '\n' '|')"
say "OPTIONS $(ls /sys/firmware/efi/efivars | grep -c '^Boot[0-9A-F]\{4\}-') $(df -BM --output=used,avail /efi | tail -1)"
say END
sync
systemctl --no-block poweroff
