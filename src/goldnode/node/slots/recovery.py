"""`goldnode-node slot recovery`: the boot entry that starts when no slot has tries left, with network and ssh.

It starts the kernel and the initramfs of the good image that wrote it, with a second initramfs that holds what is the
node's own: an init that mounts no root, sshd with the node's host keys and root's authorized keys, the driver and the
addresses of its network interfaces, and programs for repairs. systemd-boot puts entries without tries last, so the
recovery, which has no counter and the lowest version, comes after every slot that can boot, and before all others.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import stat

from ..effective import loader
from ..ground.boot import ARMED
from ..ground.errors import NodeError
from ..ground.host import Host, Json
from ..state import bootdisk, slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Sequence, Tuple

NAME = "recovery"
ENTRY = f"goldnode-{NAME}.conf"
WORD = "goldnode.recovery"
PLACE = "goldnode"  # directory of the node's files in the initramfs
ROOT_KEYS = "/root/.ssh/authorized_keys"
SITE_KEYS = "/etc/goldnode/recovery-keys"
# Programs of the node that are copied where they exist. sshd of OpenSSH 9.8 and later starts the two helpers.
NEEDED = {
    "sshd": "openssh-server",
    "ip": "iproute2",
    "insmod": "kmod",
}  # and Debian's packages of them
PROGRAMS = (
    *NEEDED,
    *(
        "/usr/lib/openssh/sshd-session",
        "/usr/lib/openssh/sshd-auth",
        "bash",
        "mount",
        "umount",
        "findmnt",
        "lsblk",
    ),
    *(
        "blkid",
        "sfdisk",
        "e2fsck",
        "tune2fs",
        "dumpe2fs",
        "debugfs",
        "resize2fs",
        "fsck.vfat",
        "dd",
        "cat",
        "cp",
        "mv",
        "rm",
    ),
    *(
        "ls",
        "mkdir",
        "ln",
        "head",
        "tail",
        "grep",
        "sed",
        "sync",
        "sha256sum",
        "tar",
        "gzip",
        "zstd",
        "dmesg",
        "chroot",
        "ps",
    ),
)
DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
SPARE = 4 << 20  # bytes of the ESP that stay free
LEVEL = 1  # of gzip: level 6 takes three times as long, and its files are an eighth smaller
# Modules besides those of the network interfaces: packet sockets, which ipconfig asks DHCP by, and the ESP.
MODULES = ("af_packet", "vfat", "nls_cp437", "nls_ascii", "nls_iso8859_1", "nls_utf8")

INIT = """#!/bin/sh
# goldnode: recovery, started because no slot of this node has tries left (docs/how-to/disk-slots.md)
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /dev /proc /run /sys /root /tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs -o mode=0755 devtmpfs /dev
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=0755 tmpfs /run
exec </dev/console >/dev/console 2>&1
echo "goldnode: recovery: no slot of this node has tries left"
for module in /goldnode/modules/*; do
    [ ! -e "$module" ] || insmod "$module" 2>/dev/null
done
for program in /usr/lib/systemd/systemd-udevd /lib/systemd/systemd-udevd; do
    [ -x $program ] && $program --daemon --resolve-names=never && break
done
udevadm trigger --type=subsystems --action=add
udevadm trigger --type=devices --action=add
udevadm settle --timeout=60

# device MAC: the network interface with this address
device() {
    for path in /sys/class/net/*; do
        read -r own <"$path/address" && [ "$own" = "$1" ] && name=${path##*/} && return
    done
    return 1
}
waited=0
while read -r word mac _; do
    [ "$word" = link ] || continue
    until device "$mac" || [ $waited -ge 30 ]; do sleep 1; waited=$((waited + 1)); done
done </goldnode/network
while read -r word mac address <&3; do
    device "$mac" || { echo "goldnode: recovery: no interface has address $mac"; continue; }
    case $word in
    link)
        ip link set "$name" up
        if [ "$address" = dhcp ] && command -v ipconfig >/dev/null; then
            ipconfig -t 20 -c dhcp -d "$name" >/dev/null 2>&1
        fi
        ;;
    # As the node had it when it was last up; an answer of DHCP has it already, or takes precedence.
    address) ip -4 addr show dev "$name" | grep -q 'inet ' || ip addr add "$address" dev "$name" ;;
    address6) ip addr add "$address" dev "$name" nodad ;;
    default) ip route show default | grep -q . || ip route add default via "$address" dev "$name" onlink ;;
    default6) ip -6 route add default via "$address" dev "$name" onlink ;;
    esac
done 3</goldnode/network

esp=''
read -r line </proc/cmdline
for word in $line; do
    case $word in
    goldnode.disk=*) esp=/dev/disk/by-partuuid/${word#goldnode.disk=} ;;
    esac
done
[ -n "$esp" ] && [ -e "$esp" ] || esp=/dev/disk/by-partlabel/esp
echo "$esp" >/run/esp
mkdir -p /esp
{
    echo "goldnode: recovery of $(cat /goldnode/hostname): no slot of this node has tries left."
    if mount -t vfat -o ro "$esp" /esp; then
        ls /esp/loader/entries
        [ ! -e /esp/goldnode/history ] || tail -n 5 /esp/goldnode/history
        umount /esp
    else
        echo "the ESP $esp cannot be read"
    fi
    echo "Repair what is broken, then \\`goldnode-retry a\\` or \\`goldnode-retry b\\` gives a slot three tries and restarts."
} >/etc/motd 2>&1
cat /etc/motd
mkdir -p /run/sshd
ip link set lo up
if [ -s /goldnode/authorized_keys ]; then
    /usr/sbin/sshd -f /goldnode/sshd_config -E /run/sshd.log
    waited=0
    until [ -s /run/sshd.pid ] || [ $waited -ge 30 ]; do sleep 1; waited=$((waited + 1)); done
    [ -s /run/sshd.pid ] || cat /run/sshd.log
fi
ip -br addr
echo "goldnode: recovery is ready"
while :; do sleep 3600; done
"""

RETRY = """#!/bin/sh
# goldnode: give a slot three tries, and restart
case ${1:-} in
a | b) ;;
*) echo "usage: goldnode-retry a|b" >&2; exit 2 ;;
esac
mkdir -p /esp
mount -t vfat "$(cat /run/esp)" /esp || exit 1
found=''
for name in /esp/loader/entries/goldnode-*-"$1"+0*.conf; do
    [ -e "$name" ] || continue
    # A rename of vfat may leave neither name after a power cut: first a second copy, then the old name goes.
    again=${name%%+*}+3.conf
    cp "$name" "$again.new" && sync "$again.new" && mv "$again.new" "$again" && sync "$again" /esp/loader/entries &&
        rm "$name" && sync /esp/loader/entries && found=1
done
umount /esp
[ -n "$found" ] || { echo "slot $1 has no entry without tries" >&2; exit 1; }
sync
echo "slot $1 has three tries; the machine restarts"
sleep 1
echo b >/proc/sysrq-trigger
"""


def cpio(files: Mapping[str, Tuple[int, bytes]]) -> bytes:
    """Return files as an initramfs: a cpio archive of form newc, not packed. Pure; equal files give equal bytes.

    Directories are made for each file, but never one that an earlier initramfs has as a link: callers give real paths.

    :param files: path without a leading slash -> (mode, content).
    """
    out: List[bytes] = []
    size = 0

    def add(name: str, mode: int, content: bytes = b"") -> None:
        nonlocal size
        fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        for part in (
            b"070701" + b"".join(b"%08x" % value for value in fields) + name.encode() + b"\0",
            content,
        ):
            out.append(part + bytes(-(size + len(part)) % 4))
            size += len(out[-1])

    made = set()
    for path, (mode, content) in sorted(files.items()):
        folders = path.split("/")[:-1]
        for count in range(1, len(folders) + 1):
            folder = "/".join(folders[:count])
            if folder not in made:
                made.add(folder)
                add(folder, stat.S_IFDIR | 0o755)
        add(path, stat.S_IFREG | mode, content)
    add("TRAILER!!!", 0)
    return b"".join(out)


def program(host: Host, name: str) -> Optional[str]:
    """Return the path of a program of the node, or None."""
    if name.startswith("/"):
        return name if host.exists(name) else None
    return next(
        (f"{place}/{name}" for place in DIRECTORIES if host.exists(f"{place}/{name}")), None
    )


def lacking(host: Host) -> Optional[str]:
    """Return which programs the node lacks that a recovery needs, and what to do; None if it has all."""
    lost = [name for name in NEEDED if program(host, name) is None]
    if not lost:
        return None
    packages = " ".join(NEEDED[name] for name in lost)
    return (
        f"a recovery needs {' and '.join(lost)}, which this node lacks: install {packages}, "
        "then run `goldnode-node slot recovery`"
    )


def libraries(host: Host, paths: Sequence[str]) -> Dict[str, str]:
    """Return the libraries of programs: path in the initramfs -> path of the file on the node.

    Raises NodeError if they cannot be listed. The dynamic loader itself is in every initramfs.
    """
    done = host.run("ldd", *paths, timeout=60)
    rows: Dict[str, str] = {}
    base = os.path.realpath(host.located("/")).rstrip("/")
    for path in re.findall(r"=> (/\S+) \(", done.out):
        folder = os.path.dirname(os.path.realpath(host.located(path)))
        rows[f"{folder[len(base) :].lstrip('/')}/{os.path.basename(path)}"] = path
    if not rows:
        raise NodeError(f"ldd lists no library of {paths[0]}: {done.tail(1)}")
    return rows


def network(host: Host) -> Tuple[List[str], List[str], List[str]]:
    """Return the lines of the file `network`, the drivers of the interfaces, and the addresses for a report.

    Only interfaces of a device count: bonds, VLANs and bridges are not set up in a recovery. If none has an address, the
    recovery asks for one at each. Raises NodeError.
    """
    listed = host.run("ip", "-j", "addr", "show", timeout=30)
    routes = host.run("ip", "-j", "route", "show", "default", timeout=30)
    routes6 = host.run("ip", "-6", "-j", "route", "show", "default", timeout=30)
    try:
        rows = json.loads(listed.out or "[]")
        ways = [
            ("default", json.loads(routes.out or "[]")),
            ("default6", json.loads(routes6.out or "[]")),
        ]
    except ValueError:
        raise NodeError(f"ip lists no addresses: {listed.tail(1)}") from None
    lines: List[str] = []
    drivers: List[str] = []
    shown: List[str] = []
    macs: Dict[str, str] = {}
    idle: List[Tuple[str, str]] = []
    for row in rows:
        name, mac = str(row.get("ifname")), str(row.get("address"))
        if not host.exists(f"/sys/class/net/{name}/device"):
            continue
        own = [item for item in row.get("addr_info", ()) if item.get("scope") == "global"]
        driver = os.path.basename(
            os.path.realpath(host.located(f"/sys/class/net/{name}/device/driver/module"))
        )
        if not own:
            idle.append((mac, driver))
            continue
        macs[name] = mac
        drivers.append(driver)
        dynamic = any(item.get("dynamic") for item in own if item.get("family") == "inet")
        lines.append(f"link {mac} {'dhcp' if dynamic else 'static'}")
        for item in own:
            address = f"{item.get('local')}/{item.get('prefixlen')}"
            if item.get("family") == "inet":
                lines.append(f"address {mac} {address}")
            elif item.get("temporary") or item.get("dynamic"):
                continue  # a router announces it again
            else:
                lines.append(f"address6 {mac} {address}")
            shown.append(f"{name} {address}")
    if not macs:
        lines = [f"link {mac} dhcp" for mac, _ in idle]
        drivers = [driver for _, driver in idle]
    for word, ways_of in ways:
        lines += [
            f"{word} {macs[str(row['dev'])]} {row['gateway']}"
            for row in ways_of
            if row.get("dev") in macs and row.get("gateway")
        ]
    return lines, drivers, shown


def modules(host: Host, release: str, names: Sequence[str]) -> List[str]:
    """Return the files of modules and of those that they need, in the order of loading. Unknown names, which are built
    in, are left out.
    """
    base = f"/lib/modules/{release}"
    needs: Dict[str, List[str]] = {}
    paths: Dict[str, str] = {}
    for line in (host.text(f"{base}/modules.dep") or "").splitlines():
        path, _, rest = line.partition(":")
        paths[module_name(path)] = path
        needs[path] = rest.split()
    files: List[str] = []
    for name in names:
        path = paths.get(module_name(name), "")
        # modules.dep lists all that a module needs, the last to be loaded first.
        for need in (*reversed(needs.get(path, [])), *([path] if path else [])):
            if f"{base}/{need}" not in files:
                files.append(f"{base}/{need}")
    return files


def module_name(path: str) -> str:
    """Return the name of a module from the name of its file. Pure."""
    return os.path.basename(path).partition(".")[0].replace("-", "_")


def keys(host: Host) -> bytes:
    """Return the public keys that may log in: root's, and those that the site lists for recoveries."""
    texts = [host.text(name) or "" for name in (ROOT_KEYS, SITE_KEYS)]
    lines = [
        line for text in texts for line in text.splitlines() if line.strip() and line[:1] != "#"
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def configuration(host: Host, kinds: Sequence[str]) -> str:
    """Return sshd's configuration: root by key only, at the ports that the node's sshd listens on."""
    done = host.run("sshd", "-T", timeout=30)
    ports = re.findall(r"(?m)^port (\d+)$", done.out) or ["22"]
    rows = [f"Port {port}" for port in ports]
    rows += [f"HostKey /{PLACE}/ssh_host_{kind}_key" for kind in kinds]
    rows += [
        f"AuthorizedKeysFile /{PLACE}/authorized_keys",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "UsePAM no",
        "UseDNS no",
        "PrintMotd yes",
        "PidFile /run/sshd.pid",
        "Subsystem sftp internal-sftp",
    ]
    return "".join(f"{row}\n" for row in rows)


def contents(host: Host, release: str, about: Dict[str, object]) -> Dict[str, Tuple[int, bytes]]:
    """Return the files of the node's initramfs. Put what a report shows into `about`. Raises NodeError."""
    lost = lacking(host)
    if lost:
        raise NodeError(lost)
    located = {name: program(host, name) for name in PROGRAMS}
    lines, drivers, shown = network(host)
    allowed = keys(host)
    about.update(addresses=shown, keys=allowed.count(b"\n"))
    files: Dict[str, Tuple[int, bytes]] = {}

    def put(path: str, content: bytes, mode: int = 0o644) -> None:
        files[path] = (mode, content)

    paths = [path for path in located.values() if path is not None]
    for path in paths:
        inside = path if path.startswith("/usr/") else f"/usr/bin/{os.path.basename(path)}"
        with open(host.real(path), "rb") as opened:
            put(inside.lstrip("/"), opened.read(), 0o755)
    for inside, path in libraries(host, paths).items():
        with open(host.real(path), "rb") as opened:
            put(inside, opened.read(), 0o755)
    for number, path in enumerate(modules(host, release, [*drivers, *MODULES])):
        with open(host.real(path), "rb") as opened:
            put(f"{PLACE}/modules/{number:03}-{os.path.basename(path)}", opened.read())
    kinds = []
    for path in host.glob("/etc/ssh", "ssh_host_*_key"):
        kind = path.rpartition("/ssh_host_")[2][: -len("_key")]
        kinds.append(kind)
        put(f"{PLACE}/ssh_host_{kind}_key", host.data(path) or b"", 0o600)
    if not kinds:  # sshd does not start without one
        raise NodeError("this node has no ssh host key. Make one with `ssh-keygen -A`")
    put(f"{PLACE}/authorized_keys", allowed, 0o600)
    put(f"{PLACE}/sshd_config", configuration(host, kinds).encode(), 0o600)
    put(f"{PLACE}/network", "".join(f"{line}\n" for line in lines).encode())
    put(f"{PLACE}/hostname", (host.text("/etc/hostname") or "a node").encode())
    shell = "/usr/bin/bash" if located["bash"] else "/bin/sh"
    put(
        "etc/passwd",
        f"root:x:0:0:root:/root:{shell}\nsshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n".encode(),
    )
    put("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    put("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files\n")
    put("usr/sbin/goldnode-retry", RETRY.encode(), 0o755)
    put("init", INIT.encode(), 0o755)
    return files


def write(host: Host) -> Optional[str]:
    """Write the recovery entry of the good image that runs, or what has changed of it. Return a message, or None if it
    is as it should be.

    Nothing is written in a boot that tries an image, and on a node without slots. Raises NodeError.
    """
    where, slot = slots.place(host), slots.running(host)
    if where is None or slot is None or slots.tried(host, where) is not None:
        return None
    bootdisk.refuse(host)
    own = slots.of_slot(loader.entries(host, where), slot)
    release = slots.wanted_release(host, where, slot)
    if not own or not release or (own[0].left is not None and not slots.armed(own[0])):
        return None
    if own[0].unified:  # no key here signs a recovery, and the firmware would refuse it
        return None
    about: Dict[str, object] = {
        "name": slots.known(host, where, slot).get("name"),
        "kernel": release,
    }
    # Seconds of work without the lock, which others may wait for.
    archive = cpio(contents(host, release, about))
    options = slots.without_root(own[0].fields.get("options", ""), ARMED, slots.WATCHDOG)
    options = bootdisk.with_word(host, f"{options} {WORD}", where)
    about["digest"] = hashlib.sha256(archive + options.encode()).hexdigest()
    # To pack it is most of the work, and it changes seldom.
    same = slots.known(host, where, NAME) == about
    image = b"" if same else gzip.compress(archive, LEVEL, mtime=0)
    with slots.alone(host):
        held = {
            key: host.data(f"{where}/{own[0].fields.get(key, '').lstrip('/')}")
            for key in ("linux", "initrd")
        }
        kernel, initrd = held["linux"], held["initrd"]
        if not kernel or not initrd:
            raise NodeError(f"slot {slot}, which runs, has no kernel or initramfs on the ESP")
        if slots.known(host, where, NAME) == about and whole(host, where, held):
            return None
        image = image or gzip.compress(archive, LEVEL, mtime=0)
        leave_room(host, where, len(kernel) + len(initrd), len(image))
        names = slots.copy_boot_files(
            host, where, NAME, [(kernel, "vmlinuz"), (initrd, "initrd.img"), (image, "node.img")]
        )
        slots.put(
            host,
            f"{where}/{slots.FOLDER}/{NAME}/slot.json",
            (json.dumps(about, sort_keys=True) + "\n").encode(),
        )
        slots.put(host, f"{where}/loader/entries/{ENTRY}", entry(names, options).encode())
        slots.clean(host, where, NAME)
        return summary(about)


def leave_room(host: Host, where: str, pair: int, image: int) -> None:
    """Raise NodeError unless an update and a new kernel still fit on the ESP once the recovery is there.

    :param pair: bytes of kernel and initramfs.
    :param image: bytes of the node's own initramfs.
    """
    there = sum(
        len(host.data(path) or b"") for path in host.glob(f"{where}/{slots.FOLDER}/{NAME}", "*")
    )
    empty = [slot for slot in slots.SLOTS if not slots.of_slot(loader.entries(host, where), slot)]
    state = os.statvfs(host.located(where))
    # One more pair while a slot's kernel is replaced, and one for a slot that is empty. The files that are there stay until they are replaced.
    need = max(pair + image - there, 0) + pair * (1 + len(empty)) + SPARE
    room = state.f_bavail * state.f_frsize
    if room < need:
        raise NodeError(
            f"no recovery is written: the ESP at {where} has {room >> 20} MiB free, and a recovery and an update need "
            f"{need >> 20} MiB. Raise `esp_mib` in the definition of the disk, and install the node again."
        )


def whole(host: Host, where: str, held: Mapping[str, Optional[bytes]]) -> bool:
    """Return whether the entry exists with files of the right content: kernel and initramfs of the running image, and a
    third, whose name has its digest.
    """
    text = host.text(f"{where}/loader/entries/{ENTRY}")
    if text is None:
        return False
    fields = loader.fields(text)
    paths = [fields.get("linux", "-"), *fields.get("initrd", "").split()]
    files = [host.data(f"{where}/{path.lstrip('/')}") for path in paths]
    if len(files) != 3 or files[:2] != [held["linux"], held["initrd"]] or not files[2]:
        return False
    return hashlib.sha256(files[2]).hexdigest()[:12] in paths[2]


def entry(names: Sequence[str], options: str) -> str:
    """Return the text of the entry. Pure.

    :param names: paths on the ESP: kernel, and each initramfs.
    """
    linux, *images = names
    rows = [
        "title goldnode recovery",
        "sort-key goldnode",
        f"version 0~{NAME}",  # every image has a higher sequence
        f"linux {linux}",
        *(f"initrd {name}" for name in images),
        f"options {options}",
    ]
    return "".join(f"{row}\n" for row in rows)


def summary(about: Mapping[str, object]) -> str:
    """Return the recovery as a line of text. Pure."""
    addresses = about.get("addresses")
    places = ", ".join(addresses) if isinstance(addresses, list) else ""
    count = about.get("keys")
    text = f"recovery: kernel {about.get('kernel')}, as {about.get('name')}; "
    if not count:
        return f"{text}no key may log in: put one into {ROOT_KEYS} or {SITE_KEYS}, then run `goldnode-node slot recovery`"
    return f"{text}ssh for {count} keys at {places or 'addresses of DHCP, no interface of a device has one now'}"


def shown(host: Host, where: str) -> str:
    """Return the line of `slot status` about the recovery."""
    about: Json = slots.known(host, where, NAME)
    if not about or not host.exists(f"{where}/loader/entries/{ENTRY}"):
        own = slots.of_slot(loader.entries(host, where), slots.running(host) or "")
        if own and own[0].unified:
            return "no recovery: the slot that runs has a signed kernel image, and no key on the node signs another"
        lost = lacking(host)
        if lost:
            return f"no recovery: {lost}"
        return "no recovery: `goldnode-node slot recovery` writes one"
    return summary(about)
