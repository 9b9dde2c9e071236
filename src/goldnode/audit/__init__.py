"""Questions to many nodes at once: one process with many ssh sessions in flight.

`ssh_options` decides by OpenSSH's own reading of its configuration whether all that holds for a host can be honoured,
`known_hosts` finds host keys, and `sessions` asks. What cannot be honoured is a reason, and the caller asks such a
host as before. Nothing here knows Ansible.
"""
