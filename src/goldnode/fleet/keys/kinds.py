"""Kinds of keys: purpose, where a key is trusted, what its thief can do, and how that ends.

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
    overlap: str  # how long both keys are trusted
    revoke: str  # what ends a stolen key, besides `--stolen`
    test: str  # the test that steals it


FILES = "the public key is removed from the file, and every machine has that file"
WITHDRAW = "a root without it withdraws it"
KINDS = (
    SiteKeyKind(
        name="mirror",
        purpose="signs the indexes of the site's mirror",
        trusted="apt on nodes, by `mirror.key`",
        thief="publishes packages that nodes install, if they also control the mirror's address; locked ones must have the SHA-256 of the lock",
        overlap="7 days",
        revoke="nodes have the new `mirror.key` alone (site.yml)",
        test="test_a_stolen_key_of_a_mirror_ends_with_its_public_key",
    ),
    SiteKeyKind(
        name="modules",
        purpose="signs kernel modules, and boot files of disks, for Secure Boot",
        trusted="firmware of nodes (MOK, or db of a signed disk), by `module_signing.certificate`",
        thief="loads any module into the kernel of a node on which they are root already, and boots any kernel where db has the certificate",
        overlap="until `mokutil --delete`",
        revoke="`mokutil --delete` on each node, or another db: until then its kernel accepts the key",
        test="test_a_stolen_key_of_modules_ends_with_its_certificate",
    ),
    SiteKeyKind(
        name="images",
        purpose="signs images, disks and their channels",
        trusted="this controller and admission controllers, by `images.public_key`; nodes with `/etc/goldnode/image-keys.pem`",
        thief="publishes images that become root on nodes, if they can also write the registry or the store",
        overlap="7 days",
        revoke=FILES,
        test="test_a_stolen_key_of_images_ends_with_its_public_key",
    ),
    SiteKeyKind(
        name="log",
        purpose="signs heads of the store's log and the deny list",
        trusted="controllers and readers, by `fleet.public_key`",
        thief="writes a deny list that stops rollouts, or a false head of the log; installs nothing",
        overlap="7 days",
        revoke=FILES,
        test="test_a_stolen_key_of_the_log_ends_with_its_public_key",
    ),
    SiteKeyKind(
        name="documents",
        purpose="signs rollout documents",
        trusted="this controller, by `fleet.document_key`",
        thief="submits a rollout of what is published and not denied; a wave still needs its requirements",
        overlap="7 days",
        revoke=FILES,
        test="test_a_stolen_key_of_documents_ends_with_its_public_key",
    ),
    SiteKeyKind(
        name="evidence",
        purpose="signs evidence about node classes, and proofs of vulnerabilities",
        trusted="this controller, by `evidence.public_key`; nodes with `/etc/goldnode/evidence-keys.pem`",
        thief="states that a class is proved: waves and promotions go on without a proof; installs nothing",
        overlap="7 days",
        revoke="the public key is removed from the file, or added to `evidence.withdrawn_keys`, and every machine has that file",
        test="test_a_stolen_key_of_evidence_ends_with_its_public_key",
    ),
    SiteKeyKind(
        name="authority",
        purpose="issues certificates of nodes",
        trusted="the lock service, by `--client-ca`",
        thief="asks for any node, as if with its certificate: false captures, leave to reboot for others; installs nothing",
        overlap="30 days",
        revoke="the service is restarted with the new `--client-ca`",
        test="test_a_stolen_authority_ends_when_the_service_trusts_another_one",
    ),
    SiteKeyKind(
        name="node",
        purpose="proves which node asks the lock service",
        trusted="the lock service, by the authority",
        thief="asks and reports for this node alone",
        overlap="until the node has the new one",
        revoke="the service reads `revoked.pem` within five seconds",
        test="test_a_stolen_key_of_a_node_ends_with_its_revocation",
    ),
    SiteKeyKind(
        name="tls",
        purpose="proves the lock service to nodes",
        trusted="nodes, by `follow.lock.ca` or their authorities",
        thief="answers nodes in place of the service, if they can redirect the connection: grants or refuses a reboot",
        overlap="until the service has the new one",
        revoke="nodes trust another authority: they ask no list of revoked certificates",
        test="test_a_stolen_key_of_the_service_ends_with_its_authority_on_nodes",
    ),
    SiteKeyKind(
        name="webhook",
        purpose="signs events that go to a receiver",
        trusted="the receiver",
        thief="sends false events to the receiver; reads none",
        overlap="until the receiver has the new one",
        revoke="the receiver has the old secret no more",
        test="test_a_stolen_secret_of_a_webhook_ends_with_its_line",
    ),
    SiteKeyKind(
        name="token",
        purpose="authenticates to Prometheus or Alertmanager",
        trusted="Prometheus, Alertmanager",
        thief="reads metrics, or sends false alerts",
        overlap="until the server withdraws the old one",
        revoke="the server accepts it no more",
        test="test_a_stolen_token_ends_when_the_server_withdraws_it",
    ),
    SiteKeyKind(
        name="root",
        purpose="signs the root of a channel, which names all other keys of it",
        trusted="nodes and clients, by the root that they were given",
        thief="with as many keys as the threshold: all of the channel; with fewer: nothing",
        overlap="none: each node reads the next root",
        revoke="a root of the old and of the new keys withdraws it; with enough of them stolen, a person replaces the root on each node",
        test="test_enough_keys_of_the_root_choose_all_until_a_person_replaces_the_root_on_the_nodes",
    ),
    SiteKeyKind(
        name="targets",
        purpose="signs what a channel releases: states, images, the node program, and who else signs for what",
        trusted="nodes and clients, by the root",
        thief="with as many keys as the threshold and the online key: the program that runs as root; with fewer: nothing",
        overlap="none",
        revoke=WITHDRAW,
        test="test_all_keys_of_targets_with_the_online_key_choose_the_program_until_they_are_rotated",
    ),
    SiteKeyKind(
        name="orders",
        purpose="signs a controller's orders among released states",
        trusted="nodes, by the keys of targets",
        thief="freezes, begins waves and lifts denials, all of released states; installs nothing else",
        overlap="none",
        revoke="a release without it withdraws it",
        test="test_a_new_key_of_the_orders_is_named_by_the_keys_of_targets_alone",
    ),
    SiteKeyKind(
        name="online",
        purpose="signs snapshot and timestamp of a channel",
        trusted="nodes and clients, by the root",
        thief="withholds news until the orders expire; without a key of orders of its own it is that key too",
        overlap="none",
        revoke=WITHDRAW,
        test="test_a_new_online_key_ends_a_freeze_and_a_version_that_is_far_ahead",
    ),
    SiteKeyKind(
        name="release",
        purpose="signs SHA256SUMS of a release of goldnode",
        trusted="who verifies a release, by `goldnode-release.pub`",
        thief="signs another release; who installs it runs it",
        overlap="until users have the new one",
        revoke="publish that it is withdrawn: there is no list that `verify-release` reads",
        test="test_a_stolen_key_of_releases_ends_with_its_public_key",
    ),
)
