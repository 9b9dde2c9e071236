"""Site configuration: archive addresses, signing keys and the directory of locks.

A site file holds values that differ between sites and must not be in a catalog. goldnode reads
`$GOLDNODE_SITE`, otherwise `./goldnode-site.yml`, otherwise `/etc/goldnode/site.yml`. Without a site file
every value has its default.
"""

# No `from __future__ import annotations`: pydantic would compile the text of each annotation at each start.

import datetime as dt
import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from goldnode.core import event_kinds, logins, parsed_files, yamlsource
from goldnode.core.data import SITE_FILES, lock_places
from goldnode.core.deny_list import DenyListPlace
from goldnode.core.errors import SiteError, nearest
from goldnode.node.state.family import FAMILIES

Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f]{40}$", to_upper=True)]

# A systemd unit on the node runs it without a shell: the first word is the full path of a program.
NodeCommand = Annotated[tuple[str, ...], Field(min_length=1)]

FLEET_STORE = ".goldnode/fleet.db"  # where neither the environment nor the site file names a store
FLEET_DATA = ".goldnode/fleet-data"  # likewise for the captures of the fleet
GAME_DAYS = ".goldnode/game-days"  # records of game days
DENY_LISTS = ".goldnode/deny-lists.json"  # numbers of the deny lists that were read
EVENTS = ".goldnode/events.db"  # likewise for the events that wait for hooks


# file and copy are apt methods for local directories.
# apt also accepts file:/path, with one slash.
_URL = re.compile(r"^(https?|file|copy)://?[^\s]*$")


class _SiteModel(BaseModel):
    """Base of what a site file consists of: no unknown keys, immutable."""

    # defer_build: without a site file, or with one that has been read before, no validator is needed.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class SiteArchive(_SiteModel):
    """Address and keys of one catalog archive at this site."""

    url: str | None = Field(
        default=None,
        description=(
            "Address without suite: http, https or file, with placeholders as in the catalog. null: the public "
            "address of the catalog."
        ),
    )
    key: str | None = Field(
        default=None,
        description=(
            "Key, armoured or binary: a file relative to the site file, or an address. null: the location that "
            "the catalog names."
        ),
    )
    fingerprints: tuple[Fingerprint, ...] = Field(
        default=(),
        description="Fingerprints of the primary keys in `key`; replace those of the catalog.",
    )
    snapshot: str | None = Field(
        default=None,
        description=(
            "Address of the archive on the day of a lock, {date} as YYYYMMDD: for files that have left it, and for "
            "apt in images for Dockerfiles. null: none."
        ),
    )
    accept_expired: bool = Field(
        default=False,
        description=(
            "Accept indexes past their Valid-Until date: for an address that is itself a snapshot."
        ),
    )


class SiteIndex(_SiteModel):
    """The site's own Python package index, for images whose matrix entry names it (`index`)."""

    url: str = Field(description="Address of the index as pip takes it: http, https or file.")


class SiteGate(_SiteModel):
    """Commands that drain and resume a node in a scheduler other than Slurm (`gate: drain` in the class)."""

    drain: NodeCommand = Field(
        description=(
            "Command on the node, as words; the reason is added as the last one. Status 3: it was drained "
            "already."
        )
    )
    resume: NodeCommand = Field(
        description="Command on the node, as a list of words, that resumes it; called only after its own drain."
    )


class SiteMirror(_SiteModel):
    """The site's own mirror of locked packages (`goldnode mirror`)."""

    directory: str = Field(
        description="Its directory on the controller; relative to the site file."
    )
    url: str | None = Field(
        default=None,
        description=(
            "Address at which nodes find that directory; they then use nothing else. null: nodes do not "
            "use it."
        ),
    )
    key: str | None = Field(
        default=None,
        description="Public key that its indexes are signed with; relative to the site file.",
    )
    signing_key: str | None = Field(
        default=None,
        description="Secret key to sign with, a file, used only by `goldnode mirror` and `modules`.",
    )


class SiteSigning(_SiteModel):
    """The site's own key for Secure Boot, enrolled in the firmware of its nodes: kernel modules, boot files of disks."""

    key: str = Field(
        description=(
            "Private key, PEM, a file that only `goldnode modules build` and `goldnode disks sign` read; "
            "relative to the site file."
        )
    )
    certificate: str = Field(
        description="Its X.509 certificate, PEM or DER; relative to the site file."
    )


class VulnerabilityLimits(_SiteModel):
    """Limits of the requirement `vulnerabilities` of a channel."""

    max_age: int = Field(
        default=30,
        ge=1,
        description="Age in days of a vulnerability database from which a report fails.",
    )
    severity: Literal["low", "medium", "high", "critical", "none"] = Field(
        default="critical",
        description="Severity from which a vulnerability fails the requirement; none: no finding does.",
    )
    without_fix: bool = Field(
        default=False,
        description="Whether a vulnerability fails the requirement before a fix exists.",
    )


class SiteImages(_SiteModel):
    """Keys and databases for signing and checking evidence of this site's container and disk images."""

    signing_key: str | None = Field(
        default=None,
        description=(
            "Secret key that images, disks and their channels are signed with, PEM (ed25519 or ECDSA "
            "P-256) and relative to the site file, or hsm:KEYID?label=TOKEN."
        ),
    )
    public_key: str | None = Field(
        default=None,
        description=(
            "Public keys that signatures are checked against, one or more PEM blocks; relative to the site "
            "file."
        ),
    )
    roots: tuple[str, ...] = Field(
        default=(),
        description=(
            "Trusted root documents of the channels of images and disks, from the publisher; relative to the site "
            "file."
        ),
    )
    online_key: str | None = Field(
        default=None,
        description=(
            "Secret key that signs which state of the channels is the newest, PEM and relative to the site file, or "
            "hsm:KEYID?label=TOKEN."
        ),
    )
    builder: str | None = Field(
        default=None,
        description="URI that names this site's builder in provenance; null: goldnode's own.",
    )
    vulnerabilities: tuple[str, ...] = Field(
        default=(),
        description=(
            "Vulnerability databases, KIND=FILE[@YYYY-MM-DD] with KIND debian or osv; relative to the site "
            "file."
        ),
    )
    vulnerability_limits: VulnerabilityLimits = Field(
        default=VulnerabilityLimits.model_construct(),
        description="Limits of the requirement `vulnerabilities`.",
    )


class SiteFacts(_SiteModel):
    """Signed updates of the compatibility facts (`goldnode facts update`)."""

    source: str | None = Field(
        default=None,
        description=(
            "Repository of updates: an http or https address, or a directory or a zip archive relative to the "
            "site file. null: it is given with --from."
        ),
    )
    root: str = Field(
        description="The publisher's root document, from a trusted place; relative to the site file."
    )
    directory: str = Field(
        default="facts-update",
        description="Directory of the update in force; relative to the site file.",
    )
    max_age: int = Field(
        default=90, ge=1, description="Age of the facts in days from which `goldnode check` warns."
    )


class SitePrometheus(_SiteModel):
    """The Prometheus, or another server with its HTTP API, that answers requirements of rollouts."""

    url: str = Field(
        pattern=r"^https?://[^\s@]+$",
        description="Address of its HTTP API, without `/api/v1`: http or https.",
    )
    token: str | None = Field(
        default=None,
        description="File with a bearer token; relative to the site file. null: none is sent.",
    )
    ca: str | None = Field(
        default=None,
        description="Certificates of its authority, PEM; relative to the site file. null: those of this machine.",
    )
    timeout: float = Field(default=30, gt=0, description="Seconds for a query.")


def _zone_fault(name: str) -> str | None:
    """Return why a time zone cannot be used, and the remedy behind " | "; None if this machine's tz database has it."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return (
            f'"{name}" is not a time zone | write a name of the tz database, such as Europe/Zurich'
        )
    return None


class SiteCalendar(_SiteModel):
    """A freeze calendar: an iCalendar file in whose events rollouts take no node."""

    file: str = Field(min_length=1, description="The file; relative to the site file.")
    zone: str = Field(
        description="Zone of all-day events and of times without one: a name of the tz database."
    )
    url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s@]+$",
        description="Address from which `goldnode rollout calendars --fetch` writes the file. Nothing else fetches it.",
    )
    ca: str | None = Field(
        default=None,
        description="Certificates of its authority, PEM; relative to the site file. null: those of this machine.",
    )
    match: str | None = Field(
        default=None,
        description="Regular expression: only events whose summary or category has it are freezes. null: all are.",
    )
    before: float = Field(
        default=0, ge=0, le=720, description="Hours before a freeze from which no node is taken."
    )
    max_age: float | None = Field(
        default=None,
        gt=0,
        description="Days since the file was written, after which it counts as not checked. null: any age.",
    )
    classes: tuple[str, ...] = Field(
        default=(), description="Classes for which it holds. Empty: all."
    )

    @field_validator("zone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        if fault := _zone_fault(name):
            raise ValueError(fault)
        return name

    @field_validator("match")
    @classmethod
    def _valid_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as problem:
            raise ValueError(f"it is no regular expression: {problem} | correct it") from None
        return pattern


class SiteFleet(_SiteModel):
    """The store of rollouts, its keys, and what rollouts need of this site."""

    store: str | None = Field(
        default=None,
        description=(
            "A file (SQLite), relative to the site file, or postgresql://USER@HOST/DATABASE. null: "
            "`.goldnode/fleet.db` in the current directory."
        ),
    )
    data: str | None = Field(
        default=None,
        description=(
            "Directory of the fleet's captures and verdicts, relative to the site file. With it, `site.yml` fetches "
            "them from every node."
        ),
    )
    precision: Literal["exact", "stated"] = Field(
        default="exact",
        description=(
            "Numbers of stored captures. exact: as they were read. stated: readings that no report judges are rounded "
            "(facts/precision.yml)."
        ),
    )
    signing_key: str | None = Field(
        default=None,
        description=(
            "Secret key that signs the heads of the log and the deny list, PEM (ed25519 or ECDSA); relative to the "
            "site file. null: they are not signed."
        ),
    )
    public_key: str | None = Field(
        default=None,
        description="Public keys that verify what that key signed, PEM; relative to the site file.",
    )
    document_key: str | None = Field(
        default=None,
        description=(
            "Public keys that verify rollout documents, PEM; relative to the site file. null: documents need no "
            "signature."
        ),
    )
    deny_list: str | None = Field(
        default=None,
        description=(
            "File with the denied states, which controllers write and `site.yml` reads. "
            "null: `denied.json` beside the store, if that is a file."
        ),
    )
    prometheus: SitePrometheus | None = Field(
        default=None,
        description="The server that answers the requirements `prometheus` of rollouts. null: they are unknown.",
    )
    canary: str | None = Field(
        default=None,
        description=(
            "Directory with results of the canary suite, which the requirements `floors` of rollouts read; relative to "
            "the site file. null: they are unknown."
        ),
    )
    power_cycle: tuple[str, ...] = Field(
        default=(),
        description=(
            "Command that cycles the power of a node that a rollout waits for in vain, for instance "
            "[bmc-cycle, '{node}']. It is tried once for a step. Empty: none."
        ),
    )

    calendars: dict[
        Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")], SiteCalendar
    ] = Field(
        default_factory=dict,
        description="Freeze calendars by name. Rollouts take no node in their events, and none where one cannot be read.",
    )

    @field_validator("power_cycle")
    @classmethod
    def _names_the_node(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and not any("{node}" in word for word in command):
            raise ValueError("the command needs {node} where the name of the node belongs")
        return command


class SiteBmc(_SiteModel):
    """How the BMC of a node is reached. `{node}` is replaced by the name of the node."""

    protocol: Literal["redfish", "ipmi"] = Field(
        description="`redfish` needs the extra `redfish` (sushy), `ipmi` needs ipmitool."
    )
    address: str = Field(
        pattern=r"^[^\s@]+$",
        description="https://{node}-bmc.example.org for redfish; HOST or HOST:PORT for ipmi.",
    )
    system: str | None = Field(
        default=None,
        description="Id of the system below /redfish/v1/Systems. null: the only one.",
    )
    credentials: str | None = Field(
        default=None,
        description="File with user and password, one line each, mode 600; relative to the site file.",
    )
    command: tuple[str, ...] = Field(
        default=(), description="Command that prints user and password, one line each, instead."
    )
    ca: str | None = Field(
        default=None,
        description="Certificates of its authority, PEM; relative to the site file. null: those of this machine.",
    )

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if bool(self.credentials) == bool(self.command):
            raise ValueError("give either `credentials` or `command`")
        if "{node}" not in self.address:
            raise ValueError("the address needs {node}: it would cycle an unknown machine")
        if self.protocol == "redfish" and not self.address.startswith(("http://", "https://")):
            raise ValueError("the address of redfish begins with https://")
        return self


class SiteInstall(_SiteModel):
    """How nodes are installed again from the network (docs/how-to/install-from-network.md)."""

    plan: str = Field(
        description="Plan of installations (`install.yml`); relative to the site file."
    )
    to: str = Field(
        description="Published directory whose orders are signed again; relative to the site file."
    )
    key: str = Field(
        description="Key of the orders, PEM, mode 600: that of `goldnode disks netboot --key`; relative to the site file."
    )
    accept_host_key: bool = Field(
        default=False,
        description="Accept the new ssh host key of a node that was just installed, unseen, instead of the known one. "
        "false: ssh has to know it in another way.",
    )


class SiteLadder(_SiteModel):
    """The remediation ladder: repairs of single nodes, rung by rung. Off unless a mode is given."""

    mode: Literal["off", "plan", "run"] = Field(
        default="off",
        description="`plan` records which rung it would begin with, and changes nothing.",
    )
    attempts: int = Field(default=1, ge=1, le=5, description="Attempts of one rung of one repair.")
    per_node: int = Field(default=6, ge=1, description="Rungs of one node within seven days.")
    per_hour: int = Field(default=10, ge=1, description="Rungs of the fleet within an hour.")
    together: int = Field(
        default=4, ge=1, description="Nodes that the ladder has out of service at once."
    )
    common: int = Field(
        default=3,
        ge=2,
        description=(
            "Nodes with one finding, or in one rack or leaf, within ten minutes that stop the ladder: one cause. On a "
            "large fleet 0.05 % of its nodes, where that is more."
        ),
    )
    recurrence_days: float = Field(
        default=30, gt=0, description="Days within which a finding that comes back climbs."
    )
    channel: str | None = Field(
        default=None,
        description="Channel whose signed image `slot-write` writes. null: nodes have no such rung.",
    )
    evidence: str = Field(
        default=".goldnode/repairs",
        description="Directory for the evidence of repairs; relative to the current directory.",
    )
    bmc: SiteBmc | None = Field(
        default=None, description="The BMCs of the nodes. null: nodes have no `power-cycle`."
    )
    install: SiteInstall | None = Field(
        default=None,
        description="Installations from the network. null: nodes have no `reinstall`, which needs `bmc` too.",
    )


_HookFile = Annotated[str, StringConstraints(min_length=1)]
_HOOK_URL = r"^https?://[^\s@]+$"


class SiteHookCommand(_SiteModel):
    """A command on the controller that gets each event as JSON on its standard input."""

    run: tuple[str, ...] = Field(
        min_length=1,
        description="The command as a list of words, run without a shell. Status 0: delivered.",
    )
    timeout: float = Field(default=30, gt=0, le=600, description="Seconds for one event.")
    environment: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")], ...] = Field(
        default=(),
        description=(
            "Names of further environment variables that the command inherits, beside PATH, HOME, language, proxies "
            "and the like."
        ),
    )


class SiteHookWebhook(_SiteModel):
    """An address that gets each event by POST, signed as Standard Webhooks specifies it (HMAC-SHA256)."""

    url: str = Field(pattern=_HOOK_URL, description="Address: http or https, without a password.")
    secret: _HookFile = Field(
        description=(
            "File with the secret, `whsec_` and base64; relative to the site file. Each further line is a secret "
            "with its own signature, for a rotation."
        )
    )
    ca: _HookFile | None = Field(
        default=None,
        description="Certificates of its authority, PEM; relative to the site file. null: those of this machine.",
    )
    timeout: float = Field(default=10, gt=0, le=600, description="Seconds for one request.")

    @field_validator("secret")
    @classmethod
    def _is_a_file(cls, name: str) -> str:
        if name.startswith("whsec_"):
            raise ValueError(
                "this is a secret, expected the name of a file with it | write it into a file"
            )
        return name


class SiteHookAlertmanager(_SiteModel):
    """An Alertmanager: events that raise or resolve an alert are posted to its API, version 2."""

    url: str = Field(pattern=_HOOK_URL, description="Its address, without `/api/v2`.")
    token: _HookFile | None = Field(
        default=None,
        description="File with a bearer token; relative to the site file. null: none is sent.",
    )
    ca: _HookFile | None = Field(
        default=None,
        description="Certificates of its authority, PEM; relative to the site file. null: those of this machine.",
    )
    labels: dict[Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")], str] = (
        Field(default_factory=dict, description="Further labels of every alert, for routes.")
    )
    silence: tuple[Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")], ...] = (
        Field(
            default=(),
            description=(
                "Labels with the name of a node, such as [node, instance]: a rollout silences their alerts while it "
                "changes a node. Empty: no silences."
            ),
        )
    )
    timeout: float = Field(default=10, gt=0, le=600, description="Seconds for one request.")


class SiteHookTicket(_SiteModel):
    """A tracker that gets a record for each ticket of a node, and its follow-ups as comments."""

    system: Literal["jira2", "jira3", "servicenow", "github", "mail"] = Field(
        description="`jira2`: Jira Data Center. `jira3`: Jira Cloud. `mail`: plain e-mail by SMTP."
    )
    url: str = Field(
        pattern=r"^(https?|smtps?)://[^\s@]+$",
        description=(
            "Address without a password: of Jira, the ServiceNow instance, https://api.github.com; smtps://HOST, or "
            "smtp://HOST with STARTTLS where it is."
        ),
    )
    target: str = Field(
        min_length=1,
        description="Key of the project, name of the table (incident), OWNER/REPOSITORY, or addresses with commas.",
    )
    issue_type: str = Field(default="Bug", description="Of Jira.")
    sender: str | None = Field(default=None, description="Address of the sender, for mail.")
    fields: dict[str, Any] = Field(
        default_factory=dict,
        description="Further fields of a new record, as its API has them, such as {assignment_group: dc-ops}.",
    )
    credentials: _HookFile | None = Field(
        default=None,
        description=(
            "File with user and password, or a bearer token alone, one line each, mode 600; relative to the site "
            "file."
        ),
    )
    command: tuple[str, ...] = Field(
        default=(), description="Command that prints these lines, instead."
    )
    ca: _HookFile | None = Field(
        default=None,
        description="Certificates of its authority, PEM; relative to the site file. null: those of this machine.",
    )
    timeout: float = Field(default=30, gt=0, le=600, description="Seconds for one request.")

    @model_validator(mode="after")
    def _usable(self) -> Self:
        by_mail = self.system == "mail"
        if by_mail != self.url.startswith("smtp"):
            raise ValueError("mail needs an address smtp:// or smtps://, the others https://")
        if by_mail and not self.sender:
            raise ValueError("mail needs `sender` | add the address that mails come from")
        if self.credentials and self.command:
            raise ValueError("give either `credentials` or `command`")
        if not by_mail and not (self.credentials or self.command):
            raise ValueError(f"{self.system} needs `credentials` or `command`")
        if self.system == "github" and self.target.count("/") != 1:
            raise ValueError("the target of github is OWNER/REPOSITORY")
        return self


class SiteTickets(_SiteModel):
    """Tickets of broken hardware: where bundles are written, and when a part counts as a repeat offender."""

    bundles: str = Field(
        default=".goldnode/tickets",
        description="Directory for the bundles of tickets; relative to the current directory.",
    )
    offender_repairs: int = Field(
        default=3,
        ge=2,
        description=(
            "Tickets of one part, in any node, after which only a person returns it to its class; our judgement."
        ),
    )
    offender_days: float = Field(
        default=180, gt=0, description="Days within which these tickets count."
    )


class SiteHook(_SiteModel):
    """One receiver of events: a command, a webhook, an Alertmanager or a tracker of tickets."""

    command: SiteHookCommand | None = Field(
        default=None, description="A command on the controller."
    )
    webhook: SiteHookWebhook | None = Field(
        default=None, description="An address that gets signed events."
    )
    alertmanager: SiteHookAlertmanager | None = Field(default=None, description="An Alertmanager.")
    ticket: SiteHookTicket | None = Field(
        default=None,
        description="A tracker or mail address that gets tickets, and no other events.",
    )
    kinds: tuple[str, ...] = Field(
        default=("*",),
        min_length=1,
        description="Kinds of events, as names or patterns such as rollout.*; docs/how-to/events.md lists them.",
    )
    severity: Literal["info", "warning", "critical"] = Field(
        default="info",
        description="Least severity. An Alertmanager also gets the events that resolve an alert.",
    )

    @field_validator("kinds")
    @classmethod
    def _known_kinds(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        wrong = event_kinds.unknown(kinds)
        if wrong is not None:
            raise ValueError(
                f'no kind of event matches "{wrong}" | {nearest(wrong, event_kinds.KINDS)}'
            )
        return kinds

    @model_validator(mode="after")
    def _one_receiver(self) -> Self:
        receivers = [
            name
            for name in ("command", "webhook", "alertmanager", "ticket")
            if getattr(self, name) is not None
        ]
        if len(receivers) != 1:
            have = " and ".join(receivers) or "no receiver"
            raise ValueError(
                f"the hook has {have} | give it one of command, webhook, alertmanager and ticket"
            )
        return self


class SiteEvents(_SiteModel):
    """Hooks that get the events of the fleet, and where those wait for delivery."""

    outbox: str | None = Field(
        default=None,
        description=(
            "File with events and what each hook has; relative to the site file. null: `.goldnode/events.db` in the "
            "current directory."
        ),
    )
    channels: tuple[str, ...] = Field(
        default=(),
        description=(
            "Directories whose channels give events: stores of images or disks, and channels that nodes follow; "
            "relative to the site file."
        ),
    )
    silent_after: float | None = Field(
        default=None,
        gt=0,
        description=(
            "Hours without a report after which a node is silent: its state is unknown then. null: silence is no "
            "event, as where reports are fetched now and then."
        ),
    )
    hooks: dict[
        Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")], SiteHook
    ] = Field(
        default_factory=dict,
        description="Hooks by name. A hook starts with the events after it was added.",
    )


class SiteEvidence(_SiteModel):
    """Where signed evidence about node classes is, and the keys that make and verify it."""

    directory: str = Field(
        default=".goldnode/evidence",
        description="Directory with a folder of statements per class; relative to the site file.",
    )
    signing_key: str | None = Field(
        default=None,
        description=(
            "Secret key that signs statements, PEM (ed25519 or ECDSA); relative to the site file. null: "
            "`fleet.signing_key`."
        ),
    )
    public_key: str | None = Field(
        default=None,
        description="Public keys that verify them, PEM; relative to the site file. null: `fleet.public_key`.",
    )
    withdrawn_keys: str | None = Field(
        default=None,
        description="Public keys that no longer count, PEM: what they signed is refused; relative to the site file.",
    )


SeverityName = Literal["critical", "high", "medium", "low", "not stated"]
SOAK: Mapping[SeverityName, str] = {
    "critical": "1h",
    "high": "4h",
    "medium": "1d",
    "low": "3d",
    "not stated": "1d",
}


class SiteCve(_SiteModel):
    """Where the records of vulnerabilities are, and how long a fix is watched before the next wave."""

    directory: str = Field(
        default="vulnerabilities",
        description="Directory with a folder per vulnerability, relative to the site file: mitigation, record, proof.",
    )
    signing_key: str | None = Field(
        default=None,
        description="Secret key that signs proofs, PEM; relative to the site file. null: `evidence.signing_key`, else "
        "`fleet.signing_key`.",
    )
    soak: dict[SeverityName, str] = Field(
        default_factory=dict,
        description="Soak of the waves of a rollout with a fix, by severity, as 90m or 4h; not named: 1h, 4h, 1d, 3d and 1d.",
    )


class SiteException(_SiteModel):
    """A compatibility finding that this site accepts for a class or a stack, until a day."""

    model_config = ConfigDict(populate_by_name=True)

    rule: str = Field(
        description="Id of the rule, for instance end-of-life; `goldnode check --list-rules` lists them."
    )
    class_: str | None = Field(
        default=None,
        alias="class",
        description="Class for which it is accepted; null: all of the stack.",
    )
    stack: str | None = Field(
        default=None, description="Stack for which it is accepted; null: that of the class."
    )
    subject: str | None = Field(
        default=None,
        description="Subject of the finding, for instance an image; null: any subject.",
    )
    owner: str = Field(min_length=1, description="Who has accepted it.")
    reason: str = Field(min_length=1, description="Why it is accepted.")
    expires: dt.date = Field(description="The last day on which it is accepted.")

    @model_validator(mode="after")
    def _filled(self) -> Self:
        if self.class_ is None and self.stack is None:
            raise ValueError("an exception needs `class` or `stack` | name the one that it is for")
        for key, placeholder in EXCEPTION_PLACEHOLDERS.items():
            if getattr(self, key) == placeholder:
                raise ValueError(f'"{key}" is still the placeholder {placeholder} | fill it in')
        return self

    def concerns(self, node_class: str | None, stack: str) -> bool:
        """Return whether it is for this class (None: the stack alone) with this stack."""
        return self.class_ in (None, node_class) and self.stack in (None, stack)


# Words that error messages have in place of a value that a person fills in.
EXCEPTION_PLACEHOLDERS = {"owner": "NAME", "reason": "REASON"}


_EXCEPTION_DAYS = 90  # the proposed end of an exception; its owner may choose another


def acceptance(rule: str, subject: str) -> str:
    """Return how to accept a finding in the site file: an instruction with the line to paste.

    :param subject: as in a finding: "class l4", "image X on class l4" or "stack debian12_r535".
    """
    return (
        f"accept it: add this line to {file_to_edit()}, or its entry to the exceptions there: "
        f"exceptions: [{exception_entry(rule, subject)}]"
    )


def file_to_edit() -> Path:
    """Return the site file in force, or the one to create: a second file would replace the first."""
    try:
        return find_site() or SITE_FILES[0]
    except SiteError:
        return SITE_FILES[0]


def exception_entry(rule: str, subject: str) -> str:
    """Return the entry of `exceptions` for a finding, as YAML on one line. Owner and reason are to be filled in."""
    about, _, owner = subject.rpartition(" on ")
    kind, _, name = owner.partition(" ")
    until = dt.datetime.now(tz=dt.UTC).date() + dt.timedelta(days=_EXCEPTION_DAYS)
    rows = {
        "rule": rule,
        kind: name,
        **({"subject": f'"{about.partition(" ")[2]}"'} if about else {}),
    }
    rows |= {**EXCEPTION_PLACEHOLDERS, "expires": f'"{until}"'}
    return "{" + ", ".join(f"{key}: {value}" for key, value in rows.items()) + "}"


class Site(_SiteModel):
    """A parsed site configuration; `file` is None without a site file."""

    archives: dict[str, SiteArchive] = Field(
        default_factory=dict, description="Archives by the catalog's id."
    )
    upstream_mirrors: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Mirrors by the beginning of the public address that they replace; archives and keys below it are "
            "read there."
        ),
    )
    indexes: dict[str, SiteIndex] = Field(
        default_factory=dict, description="Indexes of wheels by the matrix's name."
    )
    catalog: str | None = Field(
        default=None,
        description=(
            "Directory with the site's own `stacks/`, `platforms/`, `classes/`, `facts/` or `archives.yml`, read "
            "beside goldnode's own; relative to the site file."
        ),
    )
    locks: str | None = Field(
        default=None,
        description="Directory searched for STACK.lock.yml before the catalog; relative to the site file.",
    )
    mirror: SiteMirror | None = Field(
        default=None, description="The site's mirror of locked packages."
    )
    modules: Literal["dkms", "prebuilt"] = Field(
        default="dkms",
        description=(
            "Where a node's driver module comes from: built on the node, or built once and kept in the "
            "mirror."
        ),
    )
    module_signing: SiteSigning | None = Field(
        default=None,
        description=(
            "Key for the modules of stacks with `secure_boot: true`, and for `goldnode disks sign`; null: they stay "
            "unsigned."
        ),
    )
    gate: SiteGate | None = Field(
        default=None, description="Commands with which a node drains and resumes itself."
    )
    images: SiteImages = Field(
        default_factory=SiteImages,
        description="Keys and databases for container images and disk images.",
    )
    facts: SiteFacts | None = Field(
        default=None,
        description="Signed updates of the compatibility facts; null: those of this version.",
    )
    fleet: SiteFleet = Field(
        default_factory=SiteFleet, description="The store of rollouts, its keys, and its deny list."
    )
    ladder: SiteLadder = Field(
        default_factory=SiteLadder, description="Repairs of single nodes, rung by rung."
    )
    tickets: SiteTickets = Field(
        default_factory=SiteTickets, description="Tickets of broken hardware."
    )
    events: SiteEvents = Field(
        default_factory=SiteEvents,
        description="Hooks for events of nodes, gates, rollouts and channels.",
    )
    evidence: SiteEvidence = Field(
        default_factory=SiteEvidence,
        description="Signed evidence about node classes: its directory and keys.",
    )
    cve: SiteCve = Field(
        default_factory=SiteCve, description="Records of vulnerabilities, and their rollouts."
    )
    exceptions: tuple[SiteException, ...] = Field(
        default=(),
        description="Compatibility findings that the site accepts: an end of life, a security floor, a known bad row.",
    )
    file: Path | None = Field(default=None, exclude=True, json_schema_extra={"x-internal": True})

    @classmethod
    def load(cls, path: Path | None = None) -> "Site":
        """Read the site configuration in force; see `load_site`."""
        return load_site(path)

    def resolve(self, path: str) -> Path:
        """Return `path` as an absolute path. Relative paths start at the directory of the site file."""
        base = self.file.parent if self.file is not None else Path.cwd()
        return (base / Path(path).expanduser()).absolute()

    def fleet_store(self) -> str:
        """Return the address of the store of rollouts: $GOLDNODE_FLEET_STORE, else `fleet.store`, else a file."""
        named = os.environ.get("GOLDNODE_FLEET_STORE")
        if named or not self.fleet.store:
            return named or FLEET_STORE
        return (
            self.fleet.store if "://" in self.fleet.store else str(self.resolve(self.fleet.store))
        )

    def fleet_data(self) -> Path:
        """Return the directory of captures: $GOLDNODE_FLEET_DATA, else `fleet.data`, else one in the current directory."""
        return self.declared_fleet_data() or Path(FLEET_DATA)

    def declared_fleet_data(self) -> Path | None:
        """Return the directory of captures that the environment or the site file names; None if neither does."""
        named = os.environ.get("GOLDNODE_FLEET_DATA")
        if named:
            return Path(named).expanduser()
        return self.resolve(self.fleet.data) if self.fleet.data else None

    def events_outbox(self) -> Path:
        """Return the file of events: `events.outbox`, else one in the current directory."""
        return self.resolve(self.events.outbox) if self.events.outbox else Path(EVENTS)

    def deny_list(self, store: str | None = None) -> DenyListPlace | None:
        """Return where the deny list is. None: the store is a server, and `fleet.deny_list` names no file."""
        keys = str(self.resolve(self.fleet.public_key)) if self.fleet.public_key else None
        seen = str(self.resolve(DENY_LISTS))
        if self.fleet.deny_list:
            return DenyListPlace(str(self.resolve(self.fleet.deny_list)), True, keys, seen)
        store = store or self.fleet_store()
        if "://" in store:
            return None
        return DenyListPlace(
            str(Path(store).expanduser().absolute().with_name("denied.json")), False, keys, seen
        )

    def lock_directories(self, *, to_write: bool = False) -> list[Path]:
        """Return the lock directories that precede the catalog: those of $GOLDNODE_LOCKS, then `locks`.

        With `to_write`, directories may be missing, because goldnode creates them. Otherwise a missing
        directory raises SiteError: goldnode would silently use a different lock.
        """
        directories = named_directories("GOLDNODE_LOCKS", to_write=to_write)
        if self.locks is not None:
            path = self.resolve(self.locks)
            if not to_write and not path.is_dir():
                raise self._no_directory("locks", path)
            directories.append(path)
        return directories

    def catalog_directory(self) -> Path | None:
        """Return the site's own catalog directory, or None. Raises SiteError if it is missing."""
        if self.catalog is None:
            return None
        path = self.resolve(self.catalog)
        if not path.is_dir():
            raise self._no_directory("catalog", path)
        return path

    def _no_directory(self, key: str, path: Path) -> SiteError:
        line = (
            None if self.file is None else yamlsource.read(self.file, error=SiteError).line((key,))
        )
        return SiteError(
            f'"{key}" names {path}, which is not a directory',
            file=self.file,
            line=line,
            remedy="make it, or correct the path",
        )

    def lock_places(self, directory: Path, kind: str) -> list[Path]:
        """Return the directories of the locks of what is defined in `directory`: see `data.lock_places`."""
        return lock_places(directory, kind, self.resolve("."))

    def key_address(self, archive: str) -> str | None:
        """Return the address of the key that the site names for `archive`, or None if it names none or a file."""
        key = self.archives.get(archive, SiteArchive()).key
        return key if key is not None and _URL.match(key) else None

    def redirected(self, url: str) -> str:
        """Return a public address with the mirror in `upstream_mirrors` whose key is its longest beginning."""
        for start, mirror in sorted(self.upstream_mirrors.items(), key=lambda row: -len(row[0])):
            head = start.rstrip("/")
            if url == head or url.startswith(head + "/"):
                return mirror.rstrip("/") + url[len(head) :]
        return url

    def key_bytes(self, archive: str) -> bytes | None:
        """Return the content of the key file that the site names for `archive`, or None if it names none.

        A key that is named by its address is not read here. Raises SiteError if the file cannot be read.
        """
        key = self.archives.get(archive, SiteArchive()).key
        if key is None or _URL.match(key):
            return None
        path = self.resolve(key)
        try:
            return path.read_bytes()
        except OSError as error:
            raise SiteError(
                f'the key of archive "{archive}" cannot be read: {path}: {error.strerror}',
                file=self.file,
                remedy="put the archive's public key there, or correct `key`",
            ) from error


def named_directories(variable: str, *, to_write: bool = False) -> list[Path]:
    """Return the lock directories listed in an environment variable, in order.

    With `to_write`, directories may be missing, because goldnode creates them. Otherwise a missing directory
    raises SiteError: goldnode would silently use a different lock.
    """
    directories = [
        Path(part).expanduser() for part in os.environ.get(variable, "").split(os.pathsep) if part
    ]
    for path in directories:
        if not to_write and not path.is_dir():
            raise SiteError(
                f"{variable} names {path}, which is not a directory",
                remedy="make it, or correct the variable",
            )
    return directories


def own_lock_places(directory: Path, kind: str) -> list[Path]:
    """Return the same as `Site.lock_places` of the site file in force. Raises SiteError."""
    file = find_site()
    return lock_places(directory, kind, Path.cwd() if file is None else file.parent)


def find_site() -> Path | None:
    """Return the site file in force, or None.

    Raises SiteError if $GOLDNODE_SITE names a missing file, or if a site file ends in .yaml instead of .yml.
    """
    named = os.environ.get("GOLDNODE_SITE")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise SiteError(
                f"GOLDNODE_SITE names {path}, which is not a file",
                remedy="correct the variable or create the file",
            )
        return path
    for path in SITE_FILES:
        if path.is_file():
            return path
        # It would be ignored without a word, and every setting in it.
        other = path.with_suffix(".yaml")
        if other.is_file():
            raise SiteError(
                "a site file of this name is never read",
                file=other,
                remedy=f"rename it to {path.name}",
            )
    return None


def load_site(path: Path | None = None) -> Site:
    """Read the site file at `path`, or the one in force.

    A missing file is an empty Site. Raises SiteError.
    """
    path = path or find_site()
    site, source = yamlsource.load(Site, path, error=SiteError, allow_empty=True)
    parsed_files.save()
    if path is None:
        return site
    # A cached site file was validated with the tz database of that day.
    for name, calendar in site.fleet.calendars.items():
        if fault := _zone_fault(calendar.zone):
            where = ("fleet", "calendars", name, "zone")
            message, _, remedy = fault.partition(" | ")
            raise SiteError(
                f'"{".".join(where)}": {message}',
                file=path,
                line=source.line(where),
                remedy=remedy,
            )
    # The model cannot do it: here the line of each address is known.
    for name, archive in site.archives.items():
        if archive.url is not None and not _URL.match(archive.url):
            raise SiteError(
                f'the url of archive "{name}" is "{archive.url}", expected an http, https or file address',
                file=path,
                line=source.line(("archives", name, "url")),
                remedy="write it with its scheme, for instance file:///srv/mirror",
            )
    for start, mirror in site.upstream_mirrors.items():
        for text in (start, mirror):
            if not _URL.match(text):
                raise SiteError(
                    f'"{text}" of "upstream_mirrors" is not an address',
                    file=path,
                    line=source.line(("upstream_mirrors", start)),
                    remedy="write both sides with their scheme: https://vendor.example: https://mirror.example/vendor",
                )
    for name, index in site.indexes.items():
        if not _URL.match(index.url):
            raise SiteError(
                f'the url of index "{name}" is "{index.url}", expected an http, https or file address',
                file=path,
                line=source.line(("indexes", name, "url")),
                remedy="write it with its scheme, for instance file:///srv/wheels/simple",
            )
    if site.mirror is not None and site.mirror.url is not None and not _URL.match(site.mirror.url):
        raise SiteError(
            f'the url of the mirror is "{site.mirror.url}", expected an http, https or file address',
            file=path,
            line=source.line(("mirror", "url")),
            remedy="write the address at which nodes find its directory, with the scheme",
        )
    for key in ("drain", "resume") if site.gate is not None else ():
        words: tuple[str, ...] = getattr(site.gate, key)
        if not words[0].startswith("/"):
            raise SiteError(
                f'"gate.{key}" begins with "{words[0]}", expected the full path of a program on the node',
                file=path,
                line=source.line(("gate", key)),
                remedy=(
                    f"write it as a list of words, for instance {key}: [/usr/local/sbin/{key}-node, --quiet]"
                ),
            )
    return site.model_copy(update={"file": path})


def check_archives(site: Site, known: Mapping[str, object]) -> None:
    """Refuse archive ids that the catalog does not have.

    Raises SiteError with file, line and nearest spelling.
    """
    for name in site.archives:
        if name not in known and site.file is not None:
            source = yamlsource.read(site.file, error=SiteError)
            raise SiteError(
                f'archive "{name}" is not in the catalog',
                file=site.file,
                line=source.line(("archives", name)),
                remedy=nearest(name, known),
            )


def archive_url(site: Site, archive: str, public: str | None = None) -> str:
    """Return the address of `archive`.

    The site's address takes precedence. For archives of this machine's own distribution, the address in its
    apt sources comes next. `public`, the catalog's address, is the last; mirrors of the site replace its beginning.
    Raises SiteError if none is known.
    """
    entry = site.archives.get(archive)
    if entry is not None and entry.url is not None:
        return entry.url.rstrip("/")
    suite = archive.removesuffix("-backports")  # backports are at the address of their release
    # apt is asked only for archives of the distribution: it takes half a second.
    own = any(suite in family.archives for family in FAMILIES.values() if family.found)
    machine = _machine_archives() if own else {}
    url = machine.get(archive) or machine.get(suite) or public
    if url is not None:
        if address := logins.login_in(url):
            raise SiteError(
                f'archive "{archive}" has an address with a login in this machine\'s apt sources, {address}: locks and '
                "nodes would show it",
                remedy=logins.remedy(address),
            )
        return site.redirected(url).rstrip("/")
    why = "the catalog has no public address of it"
    if own:
        why = "this machine's own apt uses no such archive"
    raise SiteError(
        f'no address is known for archive "{archive}": {why}',
        file=site.file,
        remedy=f"name it in goldnode-site.yml, as archives: {{{archive}: {{url: …}}}}",
    )


def snapshot_url(site: Site, archive: str, day: str) -> str | None:
    """Return the address of `archive` on `day` (YYYY-MM-DD), or None if the site names none."""
    entry = site.archives.get(archive)
    if entry is None or entry.snapshot is None:
        return None
    return entry.snapshot.replace("{date}", day.replace("-", ""))


def _machine_archives() -> dict[str, str]:
    """Return the addresses of the distribution's own archives in this machine's apt sources, by archive id.

    The suite of a source must be the machine's own release. If the index is downloaded, its Origin must be
    the distribution too. This excludes third-party archives that copy the suite names.
    """
    import subprocess  # start-up time: few commands ask apt

    system = _os_release()
    codename, family = system.get("VERSION_CODENAME", ""), FAMILIES.get(system.get("ID", ""))
    if not codename or family is None or not family.found:
        return {}
    try:
        rows = index_targets()
    except (OSError, subprocess.SubprocessError):
        return {}
    suites = {suite.format(codename=codename): name for name, suite in family.archives.items()}
    # Without a downloaded index apt prints an empty origin or the unexpanded variable.
    own = (system["ID"].capitalize(), "", "$(ORIGIN)")
    archives: dict[str, str] = {}
    for row in rows:
        kind, uri, release, origin = [*row.split("|"), "", "", ""][:4]
        name = suites.get(release)
        if kind == "Packages" and name and origin in own:
            archives.setdefault(name, uri.rstrip("/"))
    return archives


@functools.cache
def index_targets() -> tuple[str, ...]:
    """Return the sources of this machine's apt, as lines "KIND|URI|RELEASE|ORIGIN".

    apt reads its whole package index for them: half a second, for each archive of a lock. Raises OSError or
    SubprocessError.
    """
    import subprocess  # start-up time

    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CREATED_BY)|$(REPO_URI)|$(RELEASE)|$(ORIGIN)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        # The machine's own configuration decides, not one that APT_CONFIG points to.
        env={key: value for key, value in os.environ.items() if key != "APT_CONFIG"}
        | {"LC_ALL": "C.UTF-8"},
    )
    return tuple(done.stdout.splitlines())


def _os_release() -> dict[str, str]:
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip().strip('"') for key, value in pairs}
