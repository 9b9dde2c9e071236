"""One initramfs made twice on a node: by Debian's mkinitramfs alone, and with the functions that copy in batches."""

from __future__ import annotations

import json
import re
from pathlib import Path

from goldnode.node.state import initramfs_batch
from goldnode.testing.lab.nodes import LabNode

READER = Path(__file__).with_name("initramfs_entries.py")
# Drawn or written anew by the hooks of Debian: the directory of dropbear's root, and what contains its name or a time.
DRAWN = re.compile(r"root-\w+(/.*)?|etc/passwd|etc/mdadm/mdadm\.conf\.tmp")

# A hook of a site that calls each function in the usual and in odd ways, with the shell's strict options.
HOOK = r"""#!/bin/sh
set -eu
[ "${1:-}" != prereqs ] || exit 0
. /usr/share/initramfs-tools/hook-functions
files=/opt/site/real
mkdir -p $files
printf one >$files/one
printf two >"$files/with space"
ln -sfn real /opt/site/folder
ln -sfn ../site/real/one /opt/site/link
status() { echo "$*" >>"$DESTDIR/probe"; }
for call in "$files/one" "$files/one" "/opt/site/folder/one" "/opt/site/link /etc/" "$files/one /opt/renamed" \
	"//opt/site/./real/../real/one /x//y/../z" "/nowhere" "/opt/site /etc"; do
	r=0; copy_file data $call || r=$?; status "$call" $r
done
r=0; copy_file data "$files/with space" || r=$?; status spaces $r
for call in "/bin/ls /bin" "/usr/bin/ldd" "/bin/bash /usr/local/bin/shell" "/nowhere"; do
	r=0; copy_exec $call || r=$?; status "$call" $r
done
manual_add_modules no_such_module nouveau brcmfmac site_linked
manual_add_modules pci:v000014E4d0000164Esv00001028sd00000286bc02sc00i00
force_load dummy numdummies=3
copy_modules_dir kernel/sound/usb snd-usb-audio.ko
r=0; add_firmware nothing/of/this.fw || r=$?; status firmware $r
"""
# A module that is a link (as weak modules are), one with an install command, and one with soft dependencies.
PREPARE = """set -e
m=/lib/modules/{release}
mkdir -p $m/updates /opt/modules
cp $(find $m/kernel/drivers/net -name 'dummy.ko*') /opt/modules/
ln -sf /opt/modules/dummy.ko* $m/updates/$(cd /opt/modules && echo dummy.ko* | sed s/dummy/site_linked/)
printf 'install snd-usb-audio /bin/true\nsoftdep dummy pre: zram post: veth\n' >/opt/modules/site.conf
ln -sf /opt/modules/site.conf /etc/modprobe.d/site-linked.conf
depmod {release}
rm -rf /root/site && cp -a /etc/initramfs-tools /root/site
"""
UNDO = "rm -rf /opt/site /opt/modules /root/site /root/*.img /etc/modprobe.d/site-linked.conf /lib/modules/{release}/updates/site_linked.ko*; depmod {release}"


def both(
    node: LabNode, release: str, settings: str, modules: str = ""
) -> tuple[list[list[object]], list[list[object]], str]:
    """Make the image of a release with more settings: the entries of Debian's tool and of ours, sorted, and what ours printed."""
    node.shell(PREPARE.replace("{release}", release))
    node.put(
        {
            "/root/site/conf.d/zz-site": settings.encode(),
            "/root/site/modules": modules.replace(" ", "\n").encode(),
            "/root/site/hooks/zz-site": HOOK.encode(),
            "/root/entries.py": READER.read_bytes(),
            f"{initramfs_batch.TOOLS}/batch": initramfs_batch.FUNCTIONS.encode(),
            f"{initramfs_batch.TOOLS}/mkinitramfs": initramfs_batch.WRAPPER.encode(),
        }
    )
    node.shell(f"chmod 755 /root/site/hooks/zz-site {initramfs_batch.TOOLS}/mkinitramfs")
    made = []
    printed = ""
    for program in (initramfs_batch.MAKER, f"{initramfs_batch.TOOLS}/mkinitramfs"):
        printed = node.run(program, "-d", "/root/site", "-o", "/root/x.img", release).output
        rows = json.loads(node.run("python3", "/root/entries.py", "/root/x.img").output)
        made.append(sorted(row for row in rows if not DRAWN.fullmatch(row[0])))
    left = node.run("ls", initramfs_batch.TOOLS).output.split()
    assert left == ["batch", "mkinitramfs"], "the file of all functions is left behind"
    node.shell(UNDO.replace("{release}", release) + f"; rm -r {initramfs_batch.TOOLS}")
    return made[0], made[1], printed
