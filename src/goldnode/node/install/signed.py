"""A signed document of an installation: a DSSE envelope that one of the installer's keys has signed."""

from __future__ import annotations

import json

from ..ground.errors import NodeError
from ..ground.json_lines import as_dict
from ..state import envelopes
from ..state.envelopes import AGAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..ground.host import Host


def statement(
    host: Host, data: bytes, keys: str, *, without: str, refusal: str, remedy: str
) -> Any:
    """Return the statement in the envelope `data`; an empty one if its payload is no JSON.

    Raises NodeError unless a key of the file `keys` has signed it: `without` is what does not happen without that
    file, `refusal` says what no key has signed, and `remedy` is the way out.
    """
    trusted = envelopes.trusted(host, keys, f"{without}. Correct it: {AGAIN}")
    if trusted is None:
        raise NodeError(
            f"{keys} is missing: make the installer again with `goldnode disks netboot`."
        )
    try:
        envelope = as_dict(json.loads(data))
    except (ValueError, RecursionError):
        envelope = {}
    opened = envelopes.opened(envelope, trusted) if envelope else None
    if opened is None:
        raise NodeError(f"{refusal} (its signatures: {envelopes.signers(envelope)}). {remedy}")
    try:
        return json.loads(opened[1])
    except (ValueError, RecursionError):
        return {}
