"""Kinds of keys: purpose, where a key is trusted, what its thief can do, and how it is made, rotated and revoked.

The table of docs/how-to/keys.md is this one; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeyKind:
    """A kind of key. `trusted` is where its public half is trusted, `thief` the gain of who has the secret half."""

    name: str
    purpose: str
    trusted: str
    thief: str
    rotate: str
    revoke: str


KINDS = (
    KeyKind(
        "mirror",
        "signs the indexes of the site's mirror",
        "apt on nodes, by `mirror.key`",
        "publishes packages that nodes install, if they also control the mirror's address; locked ones must have the SHA-256 of the lock",
        "make one, publish the mirror with it, run site.yml",
        "run site.yml with the new `mirror.key`: nodes accept no other one",
    ),
    KeyKind(
        "modules",
        "signs kernel modules for Secure Boot",
        "firmware of nodes (MOK), by `module_signing.certificate`",
        "loads any module into the kernel of a node on which they are root already",
        "make one, enroll its certificate, build modules again, then delete the old certificate",
        "`mokutil --delete` on each node: until then its kernel accepts the key",
    ),
    KeyKind(
        "images",
        "signs images, disks and their channels",
        "this controller and admission controllers, by `images.public_key`",
        "publishes images that become root on nodes, if they can also write the registry or the store",
        "make one, add its public key to `images.public_key`, sign again, remove the old public key",
        "remove its public key from `images.public_key`, and sign what is good again",
    ),
    KeyKind(
        "log",
        "signs heads of the store's log and the deny list",
        "controllers and readers, by `fleet.public_key`",
        "writes a deny list that stops rollouts, or a false head of the log; installs nothing",
        "make one, add its public key to `fleet.public_key`, sign again, remove the old one",
        "remove its public key from `fleet.public_key`",
    ),
    KeyKind(
        "documents",
        "signs rollout documents",
        "this controller, by `fleet.document_key`",
        "submits a rollout of what is published and not denied; a wave still needs its requirements",
        "make one, add its public key to `fleet.document_key`, remove the old one",
        "remove its public key from `fleet.document_key`",
    ),
    KeyKind(
        "authority",
        "issues certificates of nodes",
        "the lock service, by `--client-ca`",
        "asks for any node, as if with its certificate: false captures, leave to reboot for others; installs nothing",
        "make one, give the service both certificates in one file, issue again, remove the old one",
        "remove its certificate from `--client-ca`",
    ),
    KeyKind(
        "node",
        "proves which node asks the lock service",
        "the lock service, by the authority",
        "asks and reports for this node alone",
        "issue another one, install it, revoke the old one",
        "`goldnode keys revoke`: the service reads the list within five seconds",
    ),
    KeyKind(
        "tls",
        "proves the lock service to nodes",
        "nodes, by `follow.lock.ca` or their authorities",
        "answers nodes in place of the service, if they can redirect the connection: grants or refuses a reboot",
        "install another one, restart the service",
        "replace the authority on nodes, if the key cannot be revoked there",
    ),
    KeyKind(
        "webhook",
        "signs events that go to a receiver",
        "the receiver",
        "sends false events to the receiver; reads none",
        "add the new secret as a line of its file and to the receiver, then remove the old line",
        "remove its line, at the receiver first",
    ),
    KeyKind(
        "token",
        "authenticates to Prometheus or Alertmanager",
        "Prometheus, Alertmanager",
        "reads metrics, or sends false alerts",
        "replace the file: it is read at each question",
        "withdraw it at the server",
    ),
    KeyKind(
        "root",
        "signs the root of a channel, which names all other keys of it",
        "nodes and clients, by the root that they were given",
        "with as many keys as the threshold: all of the channel; with fewer: nothing",
        "`goldnode rollout rotate-keys`, `goldnode facts rotate-keys`",
        "rotate: a root of the old and of the new keys withdraws it",
    ),
    KeyKind(
        "online",
        "signs the short-lived roles of a channel",
        "nodes and clients, by the root",
        "see SECURITY.md, channel of rollouts",
        "`goldnode rollout rotate-keys`, `goldnode facts rotate-keys`",
        "rotate: a root without it withdraws it",
    ),
    KeyKind(
        "release",
        "signs SHA256SUMS of a release of goldnode",
        "who verifies a release, by `goldnode-release.pub`",
        "signs another release; who installs it runs it",
        "make one, sign its public key with the old one, publish both",
        "publish that it is withdrawn: there is no list that `verify-release` reads",
    ),
)
