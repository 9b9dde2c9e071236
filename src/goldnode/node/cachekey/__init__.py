"""Keys of compiler and engine caches: which cached code may run on which node (docs/how-to/cache-keys.md).

:mod:`caches` lists the caches and what their own keys leave out. :mod:`components` collects the values that decide,
from a capture and from what the caller declares. :mod:`key` makes the key, and :mod:`directory` the directory of it.
:mod:`command` is `goldnode-node cache`. Standard library only: a service, a job and a node make the same key.
"""
