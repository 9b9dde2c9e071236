"""What is in effect: the result of many files by the rules of the program that reads them.

A module for each owner: modprobe, the boot loader, the initramfs, CDI. Each computes what its owner will do
from files alone, so that it also answers for a disk image and for an ordinary user, and says which file and
line decides. Tests compare it with the real program. Nothing here judges or changes anything.
"""
