"""Installation of a machine from the network: `goldnode-node install` in the initramfs that `goldnode disks netboot` writes.

:mod:`orders` reads who the machine shall be, :mod:`published` finds and verifies the image, :mod:`target` chooses the
disk, :mod:`write` fills it, :mod:`firmware` makes it the first one to boot.
"""
