"""Trust: which keys may sign the images of which repositories.

A policy is a list of public keys for every repository, or a file in the format of containers-policy.json(5),
which podman, skopeo and buildah read too. A requirement of such a file that goldnode cannot check refuses the
image: nothing unverified passes.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode import evidence
from goldnode.core.errors import ImageError, SigningKeyError
from goldnode.evidence import cosign, verify
from goldnode.evidence.signatures import load_public, read_public
from goldnode.evidence.verify import AttachedDocument
from goldnode.node.ground.json_lines import as_dict

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

_UNSUPPORTED = (
    "fulcio",
    "pki",
    "rekorPublicKeyPath",
    "rekorPublicKeyPaths",
    "rekorPublicKeyData",
    "rekorPublicKeyDatas",
)


@dataclass(frozen=True)
class TrustRule:
    """One requirement of a policy: a signature by one of `keys`.

    `problem` states why a requirement is never met: it rejects everything, or goldnode cannot check it.
    `identity` is the `signedIdentity`: which repository a signature of cosign must name.
    """

    keys: tuple[SSlibKey, ...] = ()
    problem: str = ""
    identity: Mapping[str, str] = field(default_factory=lambda: {"type": "matchRepository"})


class TrustPolicy:
    """The requirements of images by scope: a registry, a path in it, a repository, or a tag or digest.

    The key "" has the requirements of all other images. Every requirement of the most specific scope must be
    met. An empty list of requirements accepts everything.
    """

    def __init__(self, scopes: Mapping[str, Sequence[TrustRule]], file: Path | None = None) -> None:
        self.scopes, self.file = dict(scopes), file

    @classmethod
    def of_keys(cls, keys: Iterable[SSlibKey]) -> TrustPolicy:
        """Return the policy that every image is signed by one of these keys."""
        return cls({"": [TrustRule(tuple(keys))]})

    def rules(self, repository: str, reference: str = "") -> tuple[str, Sequence[TrustRule]]:
        """Return the scope of an image, and its requirements."""
        for scope in _scopes(repository, reference):
            if scope in self.scopes:
                return scope, self.scopes[scope]
        return "", self.scopes[""]

    def keys(self, repository: str) -> list[SSlibKey]:
        """Return all keys that may sign something in a repository."""
        return [key for rule in self.rules(repository)[1] for key in rule.keys]

    def check(
        self,
        repository: str,
        reference: str,
        digest: str,
        attached: Sequence[AttachedDocument],
        simple: Sequence[tuple[bytes, str]] = (),
    ) -> tuple[str, ...]:
        """Return the ids of the keys that signed an image and its documents, shortened.

        `repository` includes the registry. `simple` are further signatures in the form of cosign. An image with
        a signature of goldnode is judged by it and its documents, any other one by those of cosign. The result
        is empty if the policy asks for no signature. Raises ImageError if a requirement is not met.
        """
        simple = [
            *simple,
            *((row.data, row.signature) for row in attached if row.type == cosign.SIGNATURE),
        ]
        scope, rules = self.rules(repository, reference)
        named = f"{repository}{':' if ':' not in reference else '@'}{reference}"
        # All requirements of a scope must be met, as in containers-policy.json(5).
        signers: list[str] = []
        for rule in rules:
            if rule.problem:
                raise ImageError(
                    f"{named} is not trusted: {rule.problem}",
                    file=self.file,
                    remedy=f'change the requirement of the scope "{scope or "default"}"',
                )
            # A signature of ours covers the attached documents too, so it decides where there is one.
            if simple and not any(row.type == evidence.SIGNATURE for row in attached):
                signers.append(_simple(named, digest, simple, rule))
            else:
                signers.append(_signed(named, digest, attached, rule))
        return tuple(dict.fromkeys(signers))


def _signed(named: str, digest: str, attached: Sequence[AttachedDocument], rule: TrustRule) -> str:
    """Return the id of the key that signed an image and its documents. Raises ImageError if none of the rule
    did.
    """
    rows = verify.signed(attached, digest, rule.keys)
    good = next((row for row in rows if row.what == "signature" and row.state == "ok"), None)
    bad = next((row for row in rows if row.what != "signature" and row.state == "refused"), None)
    if good is None or bad is not None:
        why = (
            f"{bad.what}: {bad.detail}" if good is not None and bad is not None else rows[0].detail
        )
        raise _distrusted(named, why)
    return good.detail.removeprefix("by key ")


def _simple(named: str, digest: str, simple: Sequence[tuple[bytes, str]], rule: TrustRule) -> str:
    """Return the id of the key that signed an image in the form of cosign. Raises ImageError if none did."""
    why = "no signature of cosign is valid and made by a trusted key"
    for payload, value in simple:
        key = cosign.signed_by(payload, value, rule.keys)
        if key is None:
            continue
        # The signature is valid. Now whether it is for this image: it may be copied from another one.
        said, repository = cosign.stated(payload)
        if said != digest:
            why = f"it is signed as {said}"
        elif not identity_matches(named, repository, rule.identity):
            why = f"its signature is for {repository}"
        else:
            return key[:12]
    raise _distrusted(named, why)


def _distrusted(named: str, why: str) -> ImageError:
    return ImageError(
        f"{named} is not trusted: {why}",
        remedy="find out who published it; a key or policy that permits it is named with --trust",
    )


def identity_matches(named: str, signed: str, identity: Mapping[str, str]) -> bool:
    """Return whether a signature for `signed` is one for `named`, as containers-policy.json(5) defines it."""
    kind = identity.get("type", "matchRepoDigestOrExact")
    by_digest = "@" in named
    wanted = named.partition("@")[0]
    repository = wanted if by_digest else wanted.rpartition(":")[0]
    # A tag follows the last slash; a port does not.
    bare = signed.rpartition(":")[0] if ":" in signed.rpartition("/")[2] else signed
    if kind == "exactRepository":
        return bare == identity.get("dockerRepository")
    if kind == "exactReference":
        return signed == identity.get("dockerReference")
    if kind == "remapIdentity":
        prefix, other = identity.get("prefix", ""), identity.get("signedPrefix", "")
        if f"{repository}/".startswith(f"{prefix}/"):
            repository = other + repository.removeprefix(prefix)
            wanted = other + wanted.removeprefix(prefix)
    if kind == "matchRepository" or (
        by_digest and kind in ("matchRepoDigestOrExact", "remapIdentity")
    ):
        return bare == repository
    return kind in ("matchExact", "matchRepoDigestOrExact", "remapIdentity") and signed == wanted


def load_trust(files: Sequence[Path]) -> TrustPolicy:
    """Read a policy file, or one or more files of public keys. Raises ImageError and SigningKeyError."""
    # JSON or PEM: --trust takes both.
    policies = [file for file in files if _is_policy(file)]
    if not policies:
        return TrustPolicy.of_keys(key for file in files for key in load_public(file))
    if len(files) > 1:
        raise ImageError(
            f"a trust policy stands alone, and {len(files)} files are named",
            file=policies[0],
            remedy="name the keys in the policy",
        )
    return load_policy(policies[0])


def _is_policy(file: Path) -> bool:
    try:
        return file.read_bytes().lstrip().startswith(b"{")
    except OSError:
        return False  # the reader of keys reports it


def load_policy(file: Path) -> TrustPolicy:
    """Read a file in the format of containers-policy.json(5). Raises ImageError and SigningKeyError."""
    try:
        document = json.loads(file.read_bytes())
    except ValueError as problem:
        raise ImageError(
            f"the trust policy is no JSON: {problem}",
            file=file,
            line=getattr(problem, "lineno", None),
        ) from None
    if not isinstance(document, dict) or "default" not in document:
        raise ImageError(
            'the trust policy has no "default"',
            file=file,
            remedy='add "default": [{"type": "reject"}]',
        )
    transports = document.get("transports") or {}
    # The transport of registries. The others (docker-archive, dir …) are not used here.
    docker = as_dict(transports).get("docker")
    scopes = {"": document["default"], **as_dict(docker)}
    return TrustPolicy({scope: _rules(rows, scope, file) for scope, rows in scopes.items()}, file)


def _rules(rows: Any, scope: str, file: Path) -> list[TrustRule]:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ImageError(
            f'the scope "{scope or "default"}" of the trust policy has no list of requirements',
            file=file,
            remedy='write it as [{"type": "sigstoreSigned", "keyPath": "/etc/goldnode/signing.pub"}]',
        )
    rules = (_rule(row, file) for row in rows)
    return [rule for rule in rules if rule is not None]


def _rule(row: Mapping[str, Any], file: Path) -> TrustRule | None:
    """Return one requirement; None for one that accepts everything."""
    kind = str(row.get("type"))
    if kind == "insecureAcceptAnything":
        return None
    if kind == "reject":
        return TrustRule(problem="the policy rejects images of this scope")
    unsupported = [name for name in _UNSUPPORTED if name in row]
    if kind != "sigstoreSigned" or unsupported:
        return TrustRule(
            problem=f"goldnode cannot check the requirement {', '.join([kind, *unsupported])}, so the image is not verified"
        )
    # An identity of another form matches no signature.
    identity = row.get("signedIdentity", {})
    return TrustRule(
        tuple(_keys(row, file)), identity=identity if isinstance(identity, dict) else {"type": "?"}
    )


def _keys(row: Mapping[str, Any], file: Path) -> list[SSlibKey]:
    """Return the public keys of a requirement `sigstoreSigned`. Relative paths start at the policy's directory."""
    paths = [*row.get("keyPaths", ()), *([row["keyPath"]] if "keyPath" in row else ())]
    data = [*row.get("keyDatas", ()), *([row["keyData"]] if "keyData" in row else ())]
    keys = [key for path in paths for key in load_public(file.parent / str(path))]
    for text in data:
        try:
            keys += read_public(base64.b64decode(str(text), validate=True), file)
        except binascii.Error:
            raise SigningKeyError("keyData is not base64", file=file) from None
    if not keys:
        raise SigningKeyError(
            "a requirement sigstoreSigned names no key", file=file, remedy="add keyPath or keyData"
        )
    return keys


def _scopes(repository: str, reference: str) -> list[str]:
    """Return the scopes of an image, most specific first, as containers-policy.json(5) orders them."""
    mark = "@" if ":" in reference else ":"
    scopes = [f"{repository}{mark}{reference}"] if reference else []
    host, _, path = repository.partition("/")
    parts = path.split("/") if path else []
    scopes += ["/".join([host, *parts[:count]]) for count in range(len(parts), -1, -1)]
    # Wildcards match subdomains of the registry, without its port.
    labels = host.partition(":")[0].split(".")
    return scopes + ["*." + ".".join(labels[at:]) for at in range(1, len(labels))] + [""]
