"""Kinds of keys: purpose, where a key is trusted, what its thief can do, and how it is made, rotated and revoked.

The table of docs/how-to/keys.md is this one; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SiteKeyKind:
    """A kind of key. `trusted` is where its public half is trusted, `thief` the gain of who has the secret half."""

    name: str
    purpose: str
    trusted: str
    thief: str
    rotate: str
    revoke: str


ROTATE = "`goldnode rollout rotate-keys`, `goldnode facts rotate`"
WITHDRAW = "rotate: a root without it withdraws it"
KINDS = (
    SiteKeyKind(
        name="mirror",
        purpose="signs the indexes of the site's mirror",
        trusted="apt on nodes, by `mirror.key`",
        thief="publishes packages that nodes install, if they also control the mirror's address; locked ones must have the SHA-256 of the lock",
        rotate="make one, publish the mirror with it, run site.yml",
        revoke="run site.yml with the new `mirror.key`: nodes accept no other one",
    ),
    SiteKeyKind(
        name="modules",
        purpose="signs kernel modules for Secure Boot",
        trusted="firmware of nodes (MOK), by `module_signing.certificate`",
        thief="loads any module into the kernel of a node on which they are root already",
        rotate="make one, enroll its certificate, build modules again, then delete the old certificate",
        revoke="`mokutil --delete` on each node: until then its kernel accepts the key",
    ),
    SiteKeyKind(
        name="images",
        purpose="signs images, disks and their channels",
        trusted="this controller and admission controllers, by `images.public_key`",
        thief="publishes images that become root on nodes, if they can also write the registry or the store",
        rotate="make one, add its public key to `images.public_key`, sign again, remove the old public key",
        revoke="remove its public key from `images.public_key`, and sign what is good again",
    ),
    SiteKeyKind(
        name="log",
        purpose="signs heads of the store's log and the deny list",
        trusted="controllers and readers, by `fleet.public_key`",
        thief="writes a deny list that stops rollouts, or a false head of the log; installs nothing",
        rotate="make one, add its public key to `fleet.public_key`, sign again, remove the old one",
        revoke="remove its public key from `fleet.public_key`",
    ),
    SiteKeyKind(
        name="documents",
        purpose="signs rollout documents",
        trusted="this controller, by `fleet.document_key`",
        thief="submits a rollout of what is published and not denied; a wave still needs its requirements",
        rotate="make one, add its public key to `fleet.document_key`, remove the old one",
        revoke="remove its public key from `fleet.document_key`",
    ),
    SiteKeyKind(
        name="authority",
        purpose="issues certificates of nodes",
        trusted="the lock service, by `--client-ca`",
        thief="asks for any node, as if with its certificate: false captures, leave to reboot for others; installs nothing",
        rotate="make one, give the service both certificates in one file, issue again, remove the old one",
        revoke="remove its certificate from `--client-ca`",
    ),
    SiteKeyKind(
        name="node",
        purpose="proves which node asks the lock service",
        trusted="the lock service, by the authority",
        thief="asks and reports for this node alone",
        rotate="issue another one, install it, revoke the old one",
        revoke="`goldnode keys revoke`: the service reads the list within five seconds",
    ),
    SiteKeyKind(
        name="tls",
        purpose="proves the lock service to nodes",
        trusted="nodes, by `follow.lock.ca` or their authorities",
        thief="answers nodes in place of the service, if they can redirect the connection: grants or refuses a reboot",
        rotate="install another one, restart the service",
        revoke="replace the authority on nodes, if the key cannot be revoked there",
    ),
    SiteKeyKind(
        name="webhook",
        purpose="signs events that go to a receiver",
        trusted="the receiver",
        thief="sends false events to the receiver; reads none",
        rotate="add the new secret as a line of its file and to the receiver, then remove the old line",
        revoke="remove its line, at the receiver first",
    ),
    SiteKeyKind(
        name="token",
        purpose="authenticates to Prometheus or Alertmanager",
        trusted="Prometheus, Alertmanager",
        thief="reads metrics, or sends false alerts",
        rotate="replace the file: it is read at each question",
        revoke="withdraw it at the server",
    ),
    SiteKeyKind(
        name="root",
        purpose="signs the root of a channel, which names all other keys of it",
        trusted="nodes and clients, by the root that they were given",
        thief="with as many keys as the threshold: all of the channel; with fewer: nothing",
        rotate=ROTATE,
        revoke="rotate: a root of the old and of the new keys withdraws it",
    ),
    SiteKeyKind(
        name="targets",
        purpose="signs what a channel releases: states, images, the node program, and who else signs for what",
        trusted="nodes and clients, by the root",
        thief="with as many keys as the threshold and the online key: the program that runs as root; with fewer: nothing",
        rotate=ROTATE,
        revoke=WITHDRAW,
    ),
    SiteKeyKind(
        name="orders",
        purpose="signs a controller's orders among released states",
        trusted="nodes, by the keys of targets",
        thief="freezes, begins waves and lifts denials, all of released states; installs nothing else",
        rotate="`goldnode rollout publish --order-key` with the keys of targets",
        revoke="a release without it withdraws it",
    ),
    SiteKeyKind(
        name="online",
        purpose="signs snapshot and timestamp of a channel",
        trusted="nodes and clients, by the root",
        thief="withholds news until the orders expire; without a key of orders of its own it is that key too",
        rotate=ROTATE,
        revoke=WITHDRAW,
    ),
    SiteKeyKind(
        name="release",
        purpose="signs SHA256SUMS of a release of goldnode",
        trusted="who verifies a release, by `goldnode-release.pub`",
        thief="signs another release; who installs it runs it",
        rotate="make one, sign its public key with the old one, publish both",
        revoke="publish that it is withdrawn: there is no list that `verify-release` reads",
    ),
)
