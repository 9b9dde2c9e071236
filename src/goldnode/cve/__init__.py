"""Locks, images, disks and nodes against the vulnerability data of distributions and vendors.

`debian`, `osv`, `csaf` and `bulletins` read data into claims, `feeds` finds and dates their files, `subjects` and
`nodes` collect what carries packages, and `match` puts both together. `record`, `prepare`, `rollouts` and `lane` are the steps until nothing
is left.
"""
