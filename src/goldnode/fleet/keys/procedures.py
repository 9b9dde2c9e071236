"""The procedure of each kind of key: its steps, from the new key to the end of the trust in the old one."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goldnode.channels import signed
from goldnode.channels.signed import KEYS
from goldnode.channels.updates import UpdateError
from goldnode.core import keys as openpgp
from goldnode.core.files import replace_file
from goldnode.core.site import Site
from goldnode.evidence.signatures import load_public, public_half, read_public
from goldnode.fleet.keys import authority, making
from goldnode.fleet.keys.rotation import (
    GOLDNODE,
    OVERLAP,
    TRUST,
    WITHDRAW,
    KeyRotation,
    KeyStep,
    RotationError,
)
from goldnode.node.ground.openpgp import OpenPGPError, dearmor, primary_fingerprints

BEFORE = "before"  # in the directory of a rotation: files that were replaced
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----\n?", re.DOTALL)


@dataclass(frozen=True)
class KeyPlaces:
    """Where the key is that is rotated: the site file, and what options name. `now` is the time of the run."""

    site: Site
    now: dt.datetime
    name: str | None = None
    authority: Path | None = None
    channel: Path | None = None
    old: Path | None = None
    new: Path | None = None
    out: Path | None = None
    root_keys: Sequence[Path | str] = ()
    # Signs the heads of the store's log again: secret key, public keys that verify them before.
    sign_heads: Callable[[Path, Path], object] = lambda _secret, _public: None


def procedure(kind: str, places: KeyPlaces) -> KeyRotation:
    """Return the procedure of a key. Raises RotationError if an option or a line of the site file is missing."""
    return PROCEDURES[kind](kind, places)


def _overlap(days: int) -> KeyStep:
    text = f"old and new key are trusted, for {days} days or for --overlap"
    return KeyStep(OVERLAP, "time", text)


def _needed(value: Path | str | None, option: str, why: str) -> Path:
    if value is None:
        raise RotationError(f"{option} is missing", remedy=f"give {option}: {why}")
    return Path(value)


def _named(value: str | None, key: str, site: Site) -> Path:
    if value is None:
        raise RotationError(
            f"the site file names no {key}",
            file=site.file,
            remedy=f"add {key}; a key that nothing names needs no rotation",
        )
    if value.startswith("hsm:"):
        raise RotationError(
            f"{key} is in a token",
            file=site.file,
            remedy="make the next key in the token, add its public half to images.public_key, and name it in the site file",
        )
    return site.resolve(value)


def _directory(beside: Path, kind: str, name: str | None = None) -> Path:
    return beside / "-".join(["rotation", kind, *([name] if name else [])])


# Effects, each of which may be carried out twice.


def _make(work: Path, make: Callable[[Path], object]) -> KeyStep:
    def act() -> str:
        # A directory that is there is of an interrupted run: nothing trusts its key yet.
        if (work / "new").exists():
            shutil.rmtree(work / "new")
        make(work / "new")
        return ""

    return KeyStep("make", GOLDNODE, f"make the new key in {work / 'new'}, mode 0600", act=act)


def _replaced(path: Path, data: bytes, work: Path) -> str:
    """Replace a file, with its owner and mode; what it was is in the directory `before`."""
    before, status = work / BEFORE / path.name, path.stat()
    if path.read_bytes() != data:
        before.parent.mkdir(mode=0o700, exist_ok=True)
        if not before.exists():
            replace_file(before, path.read_bytes(), 0o600)
        replace_file(path, data, status.st_mode & 0o777)
        if os.geteuid() == 0:
            os.chown(path, status.st_uid, status.st_gid)
    return ""


def _use(secret: Path, new: Path, work: Path, after: str) -> KeyStep:
    return KeyStep(
        "use",
        GOLDNODE,
        f"{secret} is the new key, and {after}; the old one is in {work / BEFORE}",
        act=lambda: _replaced(secret, new.read_bytes(), work),
    )


def _person(name: str, who: str, text: str, command: str = "") -> KeyStep:
    return KeyStep(name, who, text, command)


def _destroy(work: Path) -> KeyStep:
    return _person("destroy", "you", f"destroy {work / BEFORE} and every copy of the old secret")


# Keys in PEM whose public halves are in a file of the site


def _pem_added(public: Path, new: Path, work: Path) -> str:
    data = public.read_bytes()
    known = {key.keyid for key in read_public(data, public)}
    if public_half(new).keyid in known:
        return ""
    joined = data if data.endswith(b"\n") else data + b"\n"
    return _replaced(public, joined + new.read_bytes(), work)


def _pem_removed(public: Path, old: str, work: Path) -> str:
    """Remove the public key of an id."""
    data = public.read_bytes()
    blocks = _PEM.findall(data)
    stay = [block for block in blocks if read_public(block, public)[0].keyid != old]
    if not stay:
        raise RotationError(
            "the file would have no public key", file=public, remedy="begin with the step trust"
        )
    return "" if len(stay) == len(blocks) else _replaced(public, b"".join(stay), work)


def _old_id(work: Path, secret: Path | None, public: Path, given: Path | None) -> str:
    """Return the id of the key that goes: of the secret half before, of --old, or of the only public one."""
    before = work / BEFORE / public.name
    if given is not None:
        return public_half(given).keyid
    if secret is not None:
        saved = work / BEFORE / secret.name
        return public_half(saved if saved.exists() else secret).keyid
    keys = load_public(before if before.exists() else public)
    if len(keys) > 1:
        raise RotationError(
            f"the file has {len(keys)} public keys, and it is not known which one goes",
            file=public,
            remedy="name it with --old FILE, its public half",
        )
    return keys[0].keyid


def _pem(
    kind: str, places: KeyPlaces, secret: Path | None, public: Path, again: list[KeyStep]
) -> KeyRotation:
    work, days = _directory((secret or public).parent, kind), 7
    new = places.new or work / f"new/{kind}.pub"
    make = _make(work, lambda out: making.make(kind, out, kind, places.now))
    if places.new is not None:
        make = KeyStep(
            "make", GOLDNODE, f"the new public key is {new}", act=lambda: _is_public(new)
        )
    switch = [_use(secret, work / f"new/{kind}.pem", work, "signs from now on")] if secret else []
    return KeyRotation(
        kind,
        str(public),
        work,
        days,
        [
            make,
            KeyStep(
                TRUST,
                GOLDNODE,
                f"{public} has the new public key, beside the old one",
                act=lambda: _pem_added(public, new, work),
            ),
            _person("distribute", "every machine that verifies", f"it has {public} as it is now"),
            *switch,
            *again,
            _overlap(days),
            KeyStep(
                WITHDRAW,
                GOLDNODE,
                f"{public} has the old public key no more",
                act=lambda: _pem_removed(public, _old_id(work, secret, public, places.old), work),
            ),
            _person("redistribute", "every machine that verifies", f"it has {public} as it is now"),
            _destroy(work),
        ],
    )


def _is_public(path: Path) -> str:
    load_public(path)
    return ""


def _images(kind: str, places: KeyPlaces) -> KeyRotation:
    site = places.site
    secret = _named(site.images.signing_key, "images.signing_key", site)
    public = _named(site.images.public_key, "images.public_key", site)
    again = "what stays in use has a signature of the new key: images, disks, and channels, if it signs them (channels keys)"
    return _pem(
        kind, places, secret, public, [_person("sign", "you", again, "goldnode images evidence")]
    )


def _log(kind: str, places: KeyPlaces) -> KeyRotation:
    site = places.site
    secret = _named(site.fleet.signing_key, "fleet.signing_key", site)
    public = _named(site.fleet.public_key, "fleet.public_key", site)

    def sign_again() -> str:
        # After a theft the site trusts the new key alone, and the heads have signatures of the old one.
        both, saved = public, _directory(secret.parent, kind) / BEFORE / public.name
        if saved.exists():
            both = saved.with_name("both.pub")
            replace_file(both, saved.read_bytes() + public.read_bytes(), 0o600)
        places.sign_heads(secret, both)
        return ""

    heads = "the heads of the store's log are verified, and signed with the new key"
    lists = "the service runs with the new key; deny list and baselines of floors are signed again"
    again = [
        KeyStep("heads", GOLDNODE, heads, act=sign_again),
        _person("sign", "you", lists, "goldnode rollout denied --write"),
    ]
    return _pem(kind, places, secret, public, again)


def _documents(kind: str, places: KeyPlaces) -> KeyRotation:
    public = _named(places.site.fleet.document_key, "fleet.document_key", places.site)
    again = "documents of rollouts that have not ended have a signature of the new key, and are submitted again"
    signs = _person("sign", "the authors of rollouts", again, "goldnode rollout sign DOCUMENT")
    return _pem(kind, places, None, public, [signs])


def _evidence(kind: str, places: KeyPlaces) -> KeyRotation:
    site = places.site
    secret = _named(site.evidence.signing_key, "evidence.signing_key", site)
    public = _named(site.evidence.public_key, "evidence.public_key", site)
    again = (
        "statements that a class still needs are signed again from their records, also proofs of vulnerabilities; "
        "those of the old key are refused from the step withdraw on"
    )
    signs = _person("sign", "you", again, "goldnode evidence sign KIND RECORD --class CLASS")
    return _pem(kind, places, secret, public, [signs])


# The mirror


def _mirror(kind: str, places: KeyPlaces) -> KeyRotation:
    site, days = places.site, 7
    own = site.mirror
    named = own.signing_key if own is not None else None
    if named is not None and re.fullmatch(r"(?:0x)?[0-9A-Fa-f]{40}", named):
        raise RotationError(
            "the key of the mirror is in a keyring of GnuPG",
            file=site.file,
            remedy=f"export it with `gpg --armor --export-secret-keys {named}` into a file, and name that",
        )
    secret = _named(named, "mirror.signing_key", site)
    public = _named(own.key if own is not None else None, "mirror.key", site)
    work = _directory(secret.parent, kind)
    new = work / "new"

    def trust() -> str:
        data, fresh = _binary(public), _binary(new / "mirror.asc")
        if set(primary_fingerprints(fresh)) <= set(primary_fingerprints(data)):
            return ""
        # One armoured block: concatenated ones are read differently by programs of users.
        return _replaced(public, openpgp.armor(data + fresh), work)

    def withdraw() -> str:
        return _replaced(public, (new / "mirror.asc").read_bytes(), work)

    nodes = f"nodes have {public.name} as it is now"
    return KeyRotation(
        kind,
        str(public),
        work,
        days,
        [
            _make(work, lambda out: making.make(kind, out, "goldnode mirror", places.now)),
            KeyStep(TRUST, GOLDNODE, f"{public} has both public keys", act=trust),
            _person("distribute", "every node", nodes, "ansible-playbook site.yml"),
            _use(secret, new / "mirror-signing.asc", work, "the mirror is signed with it"),
            _person(
                "sign",
                "you",
                "every publication in use is signed again",
                "goldnode mirror fetch STACK",
            ),
            _overlap(days),
            KeyStep(WITHDRAW, GOLDNODE, f"{public} has the new key alone", act=withdraw),
            _person("redistribute", "every node", nodes, "ansible-playbook site.yml"),
            _destroy(work),
        ],
    )


def _binary(path: Path) -> bytes:
    try:
        return dearmor(path.read_bytes())
    except OpenPGPError as problem:
        raise RotationError(
            f"this is no OpenPGP key: {problem}", file=path, remedy="correct `mirror.key`"
        ) from problem


# Kernel modules


def _modules(kind: str, places: KeyPlaces) -> KeyRotation:
    own, site = places.site.module_signing, places.site
    secret = _named(own.key if own is not None else None, "module_signing.key", site)
    certificate = _named(
        own.certificate if own is not None else None, "module_signing.certificate", site
    )
    work = _directory(secret.parent, kind)
    form = "pem" if b"-----BEGIN" in certificate.read_bytes() else "der"
    if (work / BEFORE / certificate.name).exists():
        form = "pem" if b"-----BEGIN" in (work / BEFORE / certificate.name).read_bytes() else "der"

    def use() -> str:
        _replaced(certificate, (work / f"new/modules.{form}").read_bytes(), work)
        return _replaced(secret, (work / "new/modules.key").read_bytes(), work)

    return KeyRotation(
        kind,
        str(certificate),
        work,
        0,
        [
            _make(work, lambda out: making.make(kind, out, "goldnode modules", places.now)),
            _person(
                TRUST,
                "every node, at its console",
                "the firmware has both certificates: import the new one, boot, and accept it in MokManager",
                f"mokutil --import {work / 'new/modules.der'}",
            ),
            KeyStep("use", GOLDNODE, f"{secret} and {certificate} are the new ones", act=use),
            _person(
                "build",
                "you",
                "modules are built again, and in the mirror",
                "goldnode modules build STACK",
            ),
            _person(
                "install",
                "every node",
                "it runs modules of the new key",
                "ansible-playbook site.yml",
            ),
            _person(
                WITHDRAW,
                "every node, at its console",
                "the firmware has the old certificate no more; a kernel that is kept for a fallback needs it until then",
                f"mokutil --delete {work / BEFORE / certificate.name}",
            ),
            _destroy(work),
        ],
    )


# Certificates


def _authority(kind: str, places: KeyPlaces) -> KeyRotation:
    directory = _needed(places.authority, "--authority DIR", "the directory of the authority")
    work, days = _directory(directory, kind), 30
    name = f"goldnode {places.now:%Y-%m-%d %H:%M}"  # another name: authorities of earlier versions have no key id
    files = f"{authority.CERTIFICATE} and {authority.REVOKED} of {directory}"
    serves = _person(
        "distribute",
        "the lock service",
        f"it has {files} as --client-ca and --client-crl, and was restarted",
        "goldnode fleet serve",
    )

    def issue_again() -> str:
        _issue_again(directory, work / "nodes", places.now)
        return ""

    def trust() -> str:
        authority.succeed(directory, work / "new", places.now)
        return ""

    def withdraw() -> str:
        authority.withdraw(directory, work / BEFORE, places.now)
        return ""

    return KeyRotation(
        kind,
        str(directory),
        work,
        days,
        [
            _make(work, lambda out: authority.create(out, name, places.now)),
            KeyStep(
                TRUST, GOLDNODE, f"{files} name both authorities; the new one issues", act=trust
            ),
            serves,
            KeyStep(
                "issue",
                GOLDNODE,
                f"every node has a new certificate in {work / 'nodes'}",
                act=issue_again,
            ),
            _person(
                "install",
                "every node",
                "it has its new certificate and key; so has the service, if it has one of them",
            ),
            _overlap(days),
            KeyStep(WITHDRAW, GOLDNODE, f"{files} name the new authority alone", act=withdraw),
            _person(
                "redistribute",
                "the lock service",
                f"it has {files}, and was restarted",
                "goldnode fleet serve",
            ),
            _destroy(work),
        ],
    )


def _issue_again(directory: Path, out: Path, now: dt.datetime) -> None:
    """Issue a certificate for every name that has a valid one of the authority before, once."""
    former = directory / authority.BEFORE
    if not former.exists():  # after a theft, it is withdrawn before
        former = directory / "rotation-authority" / BEFORE
    for row in authority.issued(former):
        valid = row["revoked"] is None and dt.datetime.fromisoformat(row["expires"]) > now
        key, certificate = out / f"{row['node']}.key", out / f"{row['node']}.pem"
        if not valid or (key.exists() and certificate.exists()):
            continue
        key.unlink(missing_ok=True)  # of an interrupted run
        authority.issue(directory, row["node"], out, now, serves=bool(row.get("serves")))


def _certificate(kind: str, places: KeyPlaces) -> KeyRotation:
    """Return the procedure of a certificate: of a node, or (`tls`) of the lock service."""
    directory = _needed(places.authority, "--authority DIR", "the directory of the authority")
    if places.name is None:
        raise RotationError(
            "the name of the certificate is missing",
            remedy=f"give it: `goldnode keys rotate {kind} NAME`",
        )
    name, service = places.name, kind == "tls"
    work = _directory(directory, kind, name)

    def revoke() -> str:
        serial = authority.serial(work / f"new/{name}.pem")
        rows = [row for row in authority.issued(directory) if row["node"] == name]
        if any(row["revoked"] is None and row["serial"] != serial for row in rows):
            authority.revoke(directory, name, places.now, keep=serial)
        return ""

    who = "the lock service" if service else f"node {name}"
    ends = [
        KeyStep(
            WITHDRAW,
            GOLDNODE,
            f"{directory / authority.REVOKED} lists the old certificates of {name}",
            act=revoke,
        ),
        _person(
            "redistribute",
            "the lock service",
            f"it has {authority.REVOKED}; it reads it within five seconds",
        ),
    ]
    if service:
        # A node asks no list of revoked certificates of the service.
        ends = [
            ends[0],
            _person(
                "replace",
                "every node",
                "after a theft: it trusts another authority as follow.lock.ca; otherwise confirm this step",
            ),
        ]
    return KeyRotation(
        kind,
        name,
        work,
        0,
        [
            _make(
                work, lambda out: authority.issue(directory, name, out, places.now, serves=service)
            ),
            _person(
                "install",
                who,
                f"it has {name}.pem and {name}.key of {work / 'new'}, and was restarted",
            ),
            *ends,
            _destroy(work),
        ],
    )


# Secrets that are shared with others


def _webhook(kind: str, places: KeyPlaces) -> KeyRotation:
    hooks = {name: hook.webhook for name, hook in places.site.events.hooks.items() if hook.webhook}
    name = _one_of(places.name, hooks, "webhook")
    secret = places.site.resolve(hooks[name].secret)
    work, days = _directory(secret.parent, kind, name), 0
    new = work / "new/webhook.secret"

    def trust() -> str:
        line = new.read_text(encoding="ascii").strip()
        lines = secret.read_text(encoding="utf-8").splitlines()
        return (
            "" if line in lines else _replaced(secret, "\n".join([*lines, line, ""]).encode(), work)
        )

    return KeyRotation(
        kind,
        f"events.hooks.{name}",
        work,
        days,
        [
            _make(work, lambda out: making.make(kind, out, name, places.now)),
            KeyStep(
                TRUST, GOLDNODE, f"events have signatures of both secrets of {secret}", act=trust
            ),
            _person("distribute", "the receiver", f"it verifies with the secret of {new}"),
            _overlap(days),
            KeyStep(
                WITHDRAW,
                GOLDNODE,
                f"{secret} has the new secret alone",
                act=lambda: _replaced(secret, new.read_bytes(), work),
            ),
            _person("redistribute", "the receiver", "it has the old secret no more"),
            _destroy(work),
        ],
    )


def _one_of(name: str | None, rows: Mapping[str, object], kind: str) -> str:
    if name is None and len(rows) == 1:
        return next(iter(rows))
    if name is None or name not in rows:
        has = ", ".join(sorted(rows)) or "none"
        why = f"the site file has no {kind} {name}"
        if name is None:
            why = f"it is not known which {kind} is meant"
        raise RotationError(why, remedy=f"name one of: {has}")
    return name


def _token(kind: str, places: KeyPlaces) -> KeyRotation:
    site, rows = places.site, dict[str, Path]()
    if site.fleet.prometheus is not None and site.fleet.prometheus.token:
        rows["prometheus"] = site.resolve(site.fleet.prometheus.token)
    for name, hook in site.events.hooks.items():
        if hook.alertmanager is not None and hook.alertmanager.token:
            rows[name] = site.resolve(hook.alertmanager.token)
    name = _one_of(places.name, rows, kind)
    path = rows[name]
    work = _directory(path.parent, kind, name)
    test = "goldnode rollout status" if name == "prometheus" else f"goldnode events test {name}"

    def make() -> str:
        given = _needed(places.new, "--new FILE", "the token that the server has made")
        if not given.read_bytes().strip():
            raise RotationError("the token is empty", file=given, remedy="write the token into it")
        (work / "new").mkdir(mode=0o700, exist_ok=True)
        replace_file(work / "new/token", given.read_bytes(), 0o600)
        return ""

    return KeyRotation(
        kind,
        name,
        work,
        0,
        [
            KeyStep(
                "make",
                GOLDNODE,
                "the new token, made at the server, is given with --new FILE",
                act=make,
            ),
            _use(path, work / "new/token", work, "is read at each question"),
            _person(
                "test",
                "you",
                "the server accepts it",
                test,
            ),
            _person(WITHDRAW, "the server", "it accepts the old token no more"),
            _destroy(work),
        ],
    )


# Releases of goldnode


def _release(kind: str, places: KeyPlaces) -> KeyRotation:
    old = _needed(places.old, "--old FILE", "the secret key of releases")
    work = _directory(places.out or old.parent, kind)
    public = work / "new/goldnode-release.pub"

    def endorse() -> str:
        from goldnode.evidence.signatures import load_signer

        signature = load_signer(old).sign_bytes(public.read_bytes())
        replace_file(public.with_suffix(".pub.sig"), signature)
        return ""

    check = f"openssl dgst -sha256 -verify OLD.pub -signature {public.name}.sig {public.name}"
    return KeyRotation(
        kind,
        str(old),
        work,
        0,
        [
            _make(work, lambda out: making.make(kind, out, kind, places.now)),
            KeyStep(TRUST, GOLDNODE, "the old key has signed the new public key", act=endorse),
            _person(
                "publish",
                "you",
                "new public key and its signature are published; users verify them",
                check,
            ),
            _person(
                WITHDRAW,
                "you",
                "the pages of the project say that the old key signs no release any more",
            ),
            _destroy(work),
        ],
    )


# Keys of channels and of repositories of facts


def _role(kind: str, places: KeyPlaces) -> KeyRotation:
    """Return the procedure of a key of root, targets or online: a root that the present keys of the root sign."""
    channel, work, new, old = _channel_places(kind, places)
    roles = ("snapshot", "timestamp") if kind == "online" else (kind,)
    published = roles[-1]

    def root() -> str:
        return _next_root(channel, work / "next-root.json", roles, (new, old), places.root_keys)

    def is_published() -> bool:
        from goldnode.channels import updates

        document = updates.newest(channel, published)
        return document is not None and public_half(new).keyid in document.signatures

    again = KeyStep(
        "publish",
        "you",
        f"{published} is signed with the new key; for another key of targets with all images",
        "goldnode rollout publish, or goldnode facts publish, with the new key",
        seen=is_published,
    )
    who = "root: each node reads the new one, and trusts the old key no more; there is no overlap"
    return KeyRotation(
        kind,
        str(channel),
        work,
        0,
        [
            _make_role(kind, places, work),
            KeyStep(TRUST, GOLDNODE, who, act=root),
            *([] if kind == "root" else [again]),
            _person("destroy", "you", f"destroy {old} and every copy of it"),
        ],
    )


def _channel_places(kind: str, places: KeyPlaces) -> tuple[Path, Path, Path, Path]:
    channel = _needed(places.channel, "--channel DIR", "the directory that is published")
    out = _needed(places.out, "--out DIR", "a directory for the new key, which is not published")
    old = _needed(places.old, "--old FILE", "the key that is replaced, or its public half")
    if out.resolve().is_relative_to(channel.resolve()):
        raise RotationError(
            "the new key would be in the directory that is published",
            file=out,
            remedy="name another directory with --out",
        )
    if _moves_images(channel):
        raise RotationError(
            f"{channel} has the channels of images or disks, whose roles are signed again in one step",
            remedy=f"run `{KEYS} disks --to {channel} --root-key ROOT.pem`, with each role's keys as they are from now on",
        )
    work = _directory(out, kind, places.name)
    return channel, work, places.new or work / f"new/{kind}.pem", old


def _moves_images(channel: Path) -> bool:
    """Return whether a directory has channels of images or disks: each of its targets has moves."""
    try:
        files = signed.read_folder(channel / signed.FOLDER)
        signed.unverified(files)
    except UpdateError:
        return False
    return bool(files)


def _make_role(kind: str, places: KeyPlaces, work: Path) -> KeyStep:
    given = places.new
    if given is None:
        return _make(work, lambda out: making.make(kind, out, kind, places.now))

    def act() -> str:
        public_half(given)
        return ""

    return KeyStep("make", GOLDNODE, f"the new key is {given}", act=act)


def _next_root(
    channel: Path,
    prepared: Path,
    roles: Sequence[str],
    change: tuple[Path, Path],
    root_keys: Sequence[Path | str],
) -> str:
    """Sign a root in which one key replaces another, until enough keys have signed it; then publish it."""
    from goldnode.channels import keys, updates
    from goldnode.core import files

    new, old = (public_half(place) for place in change)
    before = updates.newest(channel, updates.ROOT)
    if before is None:
        raise RotationError(
            "there is no root of a channel",
            file=channel,
            remedy="name the directory that `publish` writes",
        )
    named = [set(before.signed.roles[role].keyids) for role in roles]
    if all(new.keyid in ids and old.keyid not in ids for ids in named):
        return ""
    if not all(old.keyid in ids for ids in named):
        raise RotationError(
            f"the root names another key for {roles[0]} than --old",
            file=change[1],
            remedy="`goldnode keys list --channel DIR` lists its roles; name the key that is to go",
        )
    document = updates.read_document(prepared) if prepared.exists() else None
    if document is None or document.signed.version != before.signed.version + 1:
        following = {
            role: updates.RoleKeys(
                [*(before.signed.keys[one] for one in sorted(ids - {old.keyid})), new]
            )
            for role, ids in zip(roles, named, strict=True)
        }
        document = updates.next_root(channel, following)
    own = [change[0]] if updates.ROOT in roles and b"PRIVATE KEY" in change[0].read_bytes() else []
    updates.write_document(prepared, updates.sign(document, keys.signers([*root_keys, *own])))
    files.readable_by_others()  # nodes read the root
    try:
        keys.accept_root(channel, document)
    except updates.UpdateError as problem:
        sign = f"goldnode rollout sign-metadata {prepared} --key ROOT.pem"
        return f"{problem.message}. Give --root-key, or run `{sign}` on the machines that have one, and repeat"
    return ""


def _orders(kind: str, places: KeyPlaces) -> KeyRotation:
    """Return the procedure of a delegated role: of the controller's orders, or of the team that is named."""
    channel, work, new, old = _channel_places(kind, places)
    role = places.name or kind
    option = "--order-key" if role == kind else "--delegations"

    def is_delegated() -> bool:
        from goldnode.channels import updates

        release = updates.newest(channel, updates.TARGETS)
        named = release.signed.delegations if release is not None else None
        ids = named.roles[role].keyids if named is not None and role in named.roles else []
        return public_half(new).keyid in ids and public_half(old).keyid not in ids

    return KeyRotation(
        kind,
        f"{channel}, role {role}",
        work,
        0,
        [
            _make_role(kind, places, work),
            KeyStep(
                TRUST,
                "who has the keys of targets",
                f"a release names the new key for {role}, and the old one no more; there is no overlap",
                f"goldnode rollout publish, with {option} and --targets-key",
                seen=is_delegated,
            ),
            _person("use", "the controller" if role == kind else role, f"it signs with {new}"),
            _person("destroy", "you", f"destroy {old} and every copy of it"),
        ],
    )


PROCEDURES: dict[str, Callable[[str, KeyPlaces], KeyRotation]] = {
    "authority": _authority,
    "documents": _documents,
    "evidence": _evidence,
    "images": _images,
    "log": _log,
    "mirror": _mirror,
    "modules": _modules,
    "node": _certificate,
    "online": _role,
    "orders": _orders,
    "release": _release,
    "root": _role,
    "targets": _role,
    "tls": _certificate,
    "token": _token,
    "webhook": _webhook,
}
