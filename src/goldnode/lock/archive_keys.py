"""Keys of archives that the apt of some OS release refuses: weak hashes of their self-signatures, old algorithms.

The apt of this machine judges a key when it reads an archive. The nodes may have another apt:
Debian 12's accepts keys that Debian 13's refuses. So the key is also judged by what was measured of
the release that it is for (`archive_keys` in facts/distros.yml). Sequoia's rule: primary key and
signing key must have an accepted algorithm, and each needs at least one signature by the primary
key with an accepted hash.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from goldnode.core import keys
from goldnode.core.errors import SigningKeyError
from goldnode.facts import host as facts
from goldnode.lock.archives import ArchivePlaces
from goldnode.node.ground.text import phrase

_AHEAD = dt.timedelta(days=365)  # how long before a day the end of a key is announced
_HASHES = {"md5": "MD5", "sha1": "SHA-1", "sha224": "SHA-224", "ripemd160": "RIPEMD-160"}


def judge_keys(
    names: Iterable[str], places: ArchivePlaces, day: dt.date, *, direct: bool = True
) -> list[str]:
    """Return warnings about the keys of archives: apt of another release refuses them, or will from a day on.

    Raises SigningKeyError for an archive whose keys are all refused by apt of the release of
    `places`, if its machines read the archive themselves (`direct`). If they read a mirror, that is
    a warning too. A key that comes with the OS is not judged.
    """
    notes: list[str] = []
    for name in names:
        data, _ = places.key(name)
        if data is None:
            continue
        states = keys.states(data)
        for row in facts.load("distros.yml")["distributions"]:
            rules = row.get("archive_keys")
            own = row["id"] == places.os.release
            if rules is None:
                continue
            if why := all_refused(states, rules, day):
                what = f'apt of {row["name"]} refuses the key of archive "{name}" ({_by(rules)}): {why}'
                if own and direct:
                    raise SigningKeyError(
                        what,
                        file=places.catalog.archives[name].file,
                        remedy=_remedy(states, rules, day),
                    )
                served = (
                    "; nodes do not need it, because the mirror signs its own index" if own else ""
                )
                notes.append(f"{what}{served}")
            elif own and (why := all_refused(states, rules, day + _AHEAD)):
                notes.append(
                    f'apt of {row["name"]} will refuse the key of archive "{name}" within a year: {why}'
                )
    return notes


def all_refused(states: Sequence[keys.KeyState], rules: Mapping[str, Any], day: dt.date) -> str:
    """Return why none of the keys is accepted on a day; empty if one is."""
    faults = [_fault(state, rules, day) for state in states]
    return "; ".join(faults) if all(faults) else ""


def _by(rules: Mapping[str, Any]) -> str:
    return f"apt {rules['apt']} with {rules['verifier']}"


def _fault(state: keys.KeyState, rules: Mapping[str, Any], day: dt.date) -> str:
    """Return why a key is refused on a day; empty if it is accepted."""
    refused = [
        row
        for row in rules["refused"]
        if row.get("since") is None or dt.date.fromisoformat(row["since"]) <= day
    ]
    faults = [_part(part, refused) for part in state.parts]
    # The primary key must be good, and a key that signs.
    if not state.parts or faults[0]:
        why = faults[0] if faults else "it has no key"
    elif any(part.signs and not fault for part, fault in zip(state.parts, faults, strict=True)):
        return ""
    else:
        why = next(
            (f"its signing subkey: {fault}" for fault in faults if fault),
            "none of its keys may sign",
        )
    return f"{state.fingerprint}: {why}"


def _part(part: keys.KeyPart, refused: Sequence[Mapping[str, Any]]) -> str:
    """Return why one key is refused; empty if it is accepted."""
    for row in refused:
        if part.algorithm == row.get("algorithm") and (
            row.get("below") is None or part.bits < row["below"]
        ):
            size = phrase(" of {} bits", part.bits)
            return f"{part.algorithm}{size}{_since(row)}"
    weak = {row["hash"]: row for row in refused if row.get("hash") is not None}
    if part.hashes and all(name in weak for name in part.hashes):
        named = ", ".join(f"{_HASHES.get(name, name)}{_since(weak[name])}" for name in part.hashes)
        return f"no signature over it but with {named}"
    return ""


def _since(row: Mapping[str, Any]) -> str:
    return f" (refused from {row['since']} on)" if row.get("since") else ""


def _remedy(states: Sequence[keys.KeyState], rules: Mapping[str, Any], day: dt.date) -> str:
    mirror = "or serve the packages with `goldnode mirror`, which signs its own index"
    if all("no signature over it" in _fault(state, rules, day) for state in states):
        return (
            "ask its owner to sign the key again, whose fingerprint stays: `gpg --cert-digest-algo SHA256 "
            f"--quick-set-expire {states[0].fingerprint} 5y`; {mirror}"
        )
    return f"ask its owner for a key that this apt accepts (Ed25519, or RSA of 3072 bits); {mirror}"
