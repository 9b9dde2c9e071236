"""Signature of who built an image, verified before the image is written to a slot.

The first line of the stream has the builder's signed statement (a DSSE envelope), which has the digest of the root,
its kernel, and the kernel's command line. The keys of a node are in `KEYS`: PEM, one or more public keys. With that file,
an image that none of them has signed is refused, regardless of the sender and the purpose.
"""

from __future__ import annotations

import json

from ..ground.errors import NodeError
from ..ground.host import Host
from ..ground.json_lines import as_dict
from ..state import envelopes
from ..state.envelopes import AGAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Tuple

KEYS = "/etc/goldnode/image-keys.pem"
PREDICATE = "urn:goldnode:disk-evidence:1"
SIGNED = ("name", "class", "build_id", "kernel", "options", "root")  # fields of the first line


def verified(host: Host, image: Mapping[str, Any]) -> Optional[str]:
    """Return the id of the builder's key that has signed an image; None on a node without keys.

    :param image: first line of the stream. Raises NodeError if no key of the node has signed it.
    """
    keys = trusted(host)
    if keys is None:
        return None
    name = image["name"]
    keyid, payload = _opened(as_dict(image.get("signature")), keys, name)
    try:
        statement = json.loads(payload)
        slot = {field: statement["predicate"]["slot"][field] for field in SIGNED}
        right = statement["predicateType"] == PREDICATE
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NodeError(
            f"the builder's signature of {name} covers no image of a slot. "
            "Sign it again with `goldnode disks evidence` of this version."
        ) from None
    for field in SIGNED if right else ():
        if slot[field] != image[field]:
            raise NodeError(
                f"{field} of {name} is not what the builder has signed. Find out who changed it; nothing was written."
            )
    if not right:
        raise NodeError(
            f"the builder's signature of {name} is for something else. Nothing was written."
        )
    return keyid


def trusted(host: Host) -> Optional[Mapping[str, Tuple[str, str]]]:
    """Return the keys of this node by their ids: PEM and digest; None without the file. Raises NodeError."""
    return envelopes.trusted(
        host,
        KEYS,
        f"no image is written. Correct it, or, where no image has to be signed, remove it: {AGAIN}",
    )


def _opened(
    envelope: Mapping[str, Any], keys: Mapping[str, Tuple[str, str]], name: str
) -> Tuple[str, bytes]:
    """Return the id of a key that has signed an envelope, and the payload. Raises NodeError."""
    opened = envelopes.opened(envelope, keys)
    if opened is None:
        raise NodeError(
            f"no key of {KEYS} has signed {name} (its signatures: {envelopes.signers(envelope)}). Sign it with "
            "`goldnode disks evidence`, or add the key of who built it. Nothing was written."
        )
    return opened
