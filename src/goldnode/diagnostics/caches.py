"""Keys and directories of caches for the calling process, by the files of the node's last check.

Call them before the framework is imported: it reads its variables then.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from goldnode.node.cachekey import arguments, components, directory, key, node
from goldnode.node.cachekey.caches import CACHES, EXACT
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.verdict import current

IMAGE_JSON = "/usr/lib/goldnode/image.json"


class CacheKeyError(RuntimeError):
    """There is no key: a value is unknown. Do not share a cache then."""


@dataclass(frozen=True)
class CacheOptions:
    """Values that only the process itself knows.

    `image` is the digest of its container image. Without it, the description of an image of goldnode counts.
    `options` are the options of the builder, `source` are files of the compiled program. `gpu` is an index, a PCI
    address or a UUID, where the GPUs differ, and `mig` a profile.
    """

    image: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    source: Sequence[str] = ()
    gpu: str | None = None
    mig: str | None = None


def cache_key(
    cache: str, strength: str = EXACT, options: CacheOptions | None = None, root: str = "/"
) -> dict[str, Any]:
    """Return the key of a cache for this process (schema goldnode.cache-key/1).

    Its `key` names a directory. Python distributions of `sys.path` are part of it, with the digests of their file
    lists. Nothing is imported and no driver is asked. Raises CacheKeyError if a value is unknown, also if the
    node's verdict is too old.

    :param cache: cuda, triton, inductor, xla or tensorrt.
    :param root: directory that contains /run/goldnode and /etc/goldnode; in a container, mount both.
    """
    try:
        return _document(cache, strength, options or CacheOptions(), Host(root))
    except (NodeError, OSError, ValueError, KeyError) as problem:
        raise CacheKeyError(f"no key for cache {cache!r}: {problem}") from None


def cache_environment(
    caches: Sequence[str], place: str, options: CacheOptions | None = None, root: str = "/"
) -> dict[str, str]:
    """Make the directories of caches below `place`, and return the variables that point the tools to them.

    os.environ.update(cache_environment(["triton", "inductor"], "/var/cache/gpu"))

    Raises CacheKeyError, also if a directory was changed, or if others may write to it.
    """
    environment = {}
    for cache in caches:
        document = cache_key(cache, options=options, root=root)
        try:
            made = directory.prepare(place, document)
        except NodeError as problem:
            raise CacheKeyError(str(problem)) from None
        variable = CACHES[cache].variable
        if variable is not None:
            environment[variable] = f"{made}/{directory.DATA}"
    return environment


def _document(cache: str, strength: str, options: CacheOptions, host: Host) -> dict[str, Any]:
    if cache not in CACHES:
        raise NodeError(f"the caches are {', '.join(CACHES)}.")
    _, fault = current.load(host.root)
    capture = node.public(host) if fault is None else None
    if capture is None:
        raise NodeError(f"{fault or 'the capture of the last check cannot be read'}.")
    libraries, recipe = _libraries(host)
    request = components.KeyRequest(
        document=node.class_of(host, None),
        gpu=options.gpu,
        mig=options.mig,
        image=components.image(options.image) if options.image else recipe,
        libraries=libraries,
        glibc=arguments.c_library(),
        python_abi=sysconfig.get_config_var("SOABI"),
        options=dict(options.options),
        environment={
            name: os.environ[name] for name in CACHES[cache].environment if name in os.environ
        },
        source=components.source(options.source),
    )
    return dict(key.document(cache, strength, components.components(capture, request)))


def _libraries(host: Host) -> tuple[dict[str, Any], str | None]:
    """Return the distributions of `sys.path`, the first of each name, and the recipe of the image."""
    libraries: dict[str, Any] = {}
    recipe = None
    data = host.data(IMAGE_JSON)
    if data is not None:
        described = components.described(data, IMAGE_JSON)
        libraries, recipe = described["libraries"], described["recipe"]
    own: dict[str, Any] = {}
    for place in sys.path:
        if os.path.isdir(place):  # noqa: PTH112 - sys.path has names
            for name, row in components.installed(place).items():
                own.setdefault(name, row)
    if "TRITON_PTXAS_PATH" in os.environ:
        own["ptxas"] = {
            "version": None,
            "sha256": components.content(os.environ["TRITON_PTXAS_PATH"]),
        }
    return {**libraries, **own}, recipe
