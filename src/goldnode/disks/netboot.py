"""Installation of machines from a network: a plan (`install.yml`), and the files that a web server and dnsmasq serve for it.

PLACE/netboot/vmlinuz, initrd.img     the installer (:mod:`goldnode.disks.installer`)
PLACE/netboot/goldnode-install.efi    the same as one EFI program, for HTTP boot of UEFI
PLACE/netboot/boot.ipxe               the script that iPXE starts
PLACE/netboot/tftp/                   iPXE itself, for firmware that boots by PXE
PLACE/netboot/orders.json             who becomes what: signed
CONFIG/dnsmasq.conf, nginx.conf       what to start the servers with
"""

from __future__ import annotations

import datetime as dt
import fcntl
import ipaddress
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from goldnode.core import yamlsource
from goldnode.core.errors import DiskError, ImageError
from goldnode.core.files import replace_file
from goldnode.core.formats import check_format
from goldnode.disks import installer
from goldnode.disks.lines import CLASS_NAME
from goldnode.disks.model import BuiltDisk
from goldnode.evidence import signatures
from goldnode.node.install import orders

if TYPE_CHECKING:
    from goldnode.evidence.signatures import EnvelopeSigner

FOLDER = "netboot"
ORDERS = f"{FOLDER}/orders.json"
# Programs of the package ipxe. snponly uses the driver of the firmware for the card that it booted from.
IPXE = {
    "snponly.efi": Path("/usr/lib/ipxe/snponly.efi"),
    "undionly.kpxe": Path("/usr/lib/ipxe/undionly.kpxe"),
}
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_NAME = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


def _mac(value: str) -> str:
    if not _MAC.fullmatch(value.lower().replace("-", ":")):
        raise ValueError(f'"{value}" is no MAC address | write it as 52:54:00:12:34:56')
    return value.lower().replace("-", ":")


def _class(value: str) -> str:
    if not CLASS_NAME.fullmatch(value):
        raise ValueError(f'"{value}" is no name of a class | write it as the catalog does')
    return value


class _PlanModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DiskRule(_PlanModel):
    """The disk of a machine: exactly one has to match all that is given. Texts may have `*`, `?` and `[…]`."""

    serial: str | None = Field(
        default=None, min_length=1, description="Serial number, as `lsblk -o SERIAL` shows it."
    )
    wwn: str | None = Field(
        default=None, min_length=1, description="World wide name, as `lsblk -o WWN` shows it."
    )
    model: str | None = Field(
        default=None, min_length=1, description="Model, as `lsblk -o MODEL` shows it."
    )
    path: str | None = Field(
        default=None,
        min_length=1,
        description="Place in the machine: ID_PATH of `udevadm info`, as in `pci-0000:01:00.0-nvme-1`.",
    )
    min_gib: float | None = Field(default=None, gt=0, description="Smallest size, GiB.")
    max_gib: float | None = Field(default=None, gt=0, description="Largest size, GiB.")

    @model_validator(mode="after")
    def _some(self) -> DiskRule:
        if not self.given():
            raise ValueError(
                "no rule names the disk | give serial, wwn, model, path, min_gib or max_gib"
            )
        return self

    def given(self) -> dict[str, Any]:
        """Return the rules that are given."""
        return self.model_dump(exclude_none=True)


class PlannedMachine(_PlanModel):
    """One machine."""

    mac: Annotated[str, AfterValidator(_mac)] | tuple[Annotated[str, AfterValidator(_mac)], ...] = (
        Field(description="MAC address of a network card, or several of them.")
    )
    class_: Annotated[str, AfterValidator(_class)] = Field(alias="class", description="Node class.")
    channel: Literal["candidate", "canary", "stable", "known-good"] = Field(
        default="stable", description="Channel of the class whose image is installed."
    )
    disk: DiskRule = Field(description="The disk to install on.")
    erase: int = Field(
        default=0,
        ge=0,
        description="0: only an empty disk is written. A number lets a disk with data be erased, once: raise it to install again.",
    )
    authorized_keys: tuple[str, ...] = Field(
        default=(), description="Public ssh keys of root, beside those of all machines."
    )

    def macs(self) -> tuple[str, ...]:
        """Return the MAC addresses."""
        return (self.mac,) if isinstance(self.mac, str) else self.mac


class PlannedNetwork(_PlanModel):
    """The network of dnsmasq."""

    interface: str = Field(
        min_length=1,
        max_length=15,
        pattern=r"^[^\s/]+$",
        description="Network card that dnsmasq answers on.",
    )
    range: tuple[ipaddress.IPv4Address, ipaddress.IPv4Address, ipaddress.IPv4Address] | None = (
        Field(default=None, description="First and last address to give, and the netmask.")
    )
    proxy: ipaddress.IPv4Network | None = Field(
        default=None,
        description="Network in which another server gives the addresses; dnsmasq adds what to boot.",
    )

    @model_validator(mode="after")
    def _one(self) -> PlannedNetwork:
        if (self.range is None) == (self.proxy is None):
            raise ValueError("a network has either `range` or `proxy` | give one of them")
        return self


class InstallPlan(_PlanModel):
    """Schema of `install.yml`."""

    install: Literal[1] = Field(description="Number of this file's format.")
    address: str = Field(
        pattern=r"^https?://[^\s]+$",
        description="Address of the published directory, as the machines reach it.",
    )
    network: PlannedNetwork = Field(description="The network of the machines.")
    valid_days: int = Field(
        default=30, ge=1, le=365, description="Days after which machines refuse these orders."
    )
    authorized_keys: tuple[str, ...] = Field(
        default=(), description="Public ssh keys of root on all machines."
    )
    machines: dict[str, PlannedMachine] = Field(
        description="Machines by the host name that they get."
    )


def load_plan(path: Path) -> InstallPlan:
    """Read and validate a plan. Raises DiskError with file and line."""
    source = yamlsource.read(path, error=DiskError)
    check_format(source, "install", 1, DiskError)
    plan = yamlsource.validate(InstallPlan, source, error=DiskError)
    seen: dict[str, str] = {}
    for name, machine in plan.machines.items():
        place = ("machines", name)
        if not _NAME.fullmatch(name) or len(name) > 64:
            raise DiskError(
                f'"{name}" is no host name',
                file=path,
                line=source.line(place),
                remedy="write letters, digits and hyphens",
            )
        for mac in machine.macs():
            if mac in seen:
                raise DiskError(
                    f"{mac} is that of {seen[mac]} too", file=path, line=source.line((*place, "mac")),
                    remedy="give each address to one machine",
                )  # fmt: skip
            seen[mac] = name
    return plan


@dataclass(frozen=True)
class RaisedOrder:
    """An order of one machine that was given since the plan was written: a repair, or a rollout, installs it again.

    `work` names what has given it, so that the same work gives it once.
    """

    erase: int
    channel: str
    work: str


def predicate(
    plan: InstallPlan, now: dt.datetime, known: Mapping[str, RaisedOrder] | None = None
) -> dict[str, Any]:
    """Return the orders of a plan, which the installer reads. A raised order with a higher number wins over the plan."""
    machines = []
    for name, machine in sorted(plan.machines.items()):
        keys = [*plan.authorized_keys, *machine.authorized_keys]
        seed = {
            "hostname": f"{name}\n",
            **({"authorized_keys": "".join(f"{key}\n" for key in keys)} if keys else {}),
        }
        row = {
            "node": name,
            "macs": list(machine.macs()),
            "class": machine.class_,
            "channel": machine.channel,
            "disk": machine.disk.given(),
            "erase": machine.erase,
            "seed": seed,
        }
        order = (known or {}).get(name)
        if order is not None and order.erase > machine.erase:
            row |= {"erase": order.erase, "channel": order.channel, "work": order.work}
        machines.append(row)
    end = now + dt.timedelta(days=plan.valid_days)
    return {"valid_until": end.strftime("%Y-%m-%dT%H:%M:%SZ"), "machines": machines}


def sign_orders(
    plan: InstallPlan,
    signer: EnvelopeSigner,
    now: dt.datetime,
    known: Mapping[str, RaisedOrder] | None = None,
) -> bytes:
    """Return the signed orders."""
    content = predicate(plan, now, known)
    return signer.sign(signatures.statement("orders", "0" * 64, orders.PREDICATE, content))


def read_orders(place: Path, signer: EnvelopeSigner) -> dict[str, RaisedOrder]:
    """Return the order of each machine in a published directory. Raises DiskError unless this key has signed them.

    Who can write the directory could otherwise choose the numbers that the next run signs.
    """
    path = place / ORDERS
    try:
        payload = signatures.open_envelope(path.read_bytes(), [signer.public]).payload
        rows = json.loads(payload)["predicate"]["machines"]
        return {
            row["node"]: RaisedOrder(row["erase"], row["channel"], row.get("work", ""))
            for row in rows
        }
    except OSError as problem:
        why = problem.strerror or "it cannot be read"
    except ImageError as problem:
        why = problem.message
    except (ValueError, KeyError, TypeError):
        why = "they have another form"
    raise DiskError(
        f"the orders cannot be continued: {why}",
        file=path,
        remedy="run `goldnode disks netboot` with this key: its installer accepts the orders of one key",
    )


def heads(place: Path, class_: str) -> dict[str, str]:
    """Return the build that each channel of a class points to in a published directory, which are not verified here."""
    builds = {}
    for path in sorted((place / class_ / "channels").glob("*.json")):
        try:
            builds[path.stem] = str(json.loads(path.read_bytes())["build_id"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return builds


@contextmanager
def _in_turn(place: Path) -> Iterator[None]:
    """Let one process at a time change the orders of a directory."""
    with (place / FOLDER / ".orders.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class InstallAgain:
    """A wish to install a machine again: for which work, and from which channel (None: that of the plan)."""

    node: str
    work: str
    channel: str | None = None


def order_again(
    plan: InstallPlan, place: Path, signer: EnvelopeSigner, wish: InstallAgain
) -> tuple[int, bool]:
    """Order a machine to be installed again: raise its `erase`, and sign the orders. Raises DiskError.

    Return the number, and whether it was raised now. An order that the same work has given is not raised again.
    """
    machine = plan.machines.get(wish.node)
    if machine is None:
        raise DiskError(
            f"the plan has no machine {wish.node}",
            remedy="add it to the plan, and run `goldnode disks netboot`",
        )
    now = dt.datetime.now(dt.UTC)
    with _in_turn(place):
        known = read_orders(place, signer)
        before = known.get(wish.node)
        raised = before is None or not wish.work or before.work != wish.work
        number = before.erase if before is not None else 0
        if raised:
            number = max(number, machine.erase) + 1
            channel = wish.channel or machine.channel
            known[wish.node] = RaisedOrder(number, channel, wish.work)
        # Signed again in any case: orders expire.
        replace_file(place / ORDERS, sign_orders(plan, signer, now, known), 0o644)
    return number, raised


@dataclass(frozen=True)
class WrittenNetboot:
    """Result of :func:`write`: files and their sizes in bytes, and what is missing."""

    sizes: Mapping[str, int]
    notes: Sequence[str]


@dataclass(frozen=True)
class ServedFolders:
    """Published directory, and the directory of `dnsmasq.conf` and `nginx.conf`."""

    place: Path
    config: Path


def write(
    plan: InstallPlan,
    served: ServedFolders,
    disk: BuiltDisk,
    signer: EnvelopeSigner,
    keys: installer.InstallerKeys,
) -> WrittenNetboot:
    """Write the installer, the signed orders and the configurations of the servers. Raises DiskError."""
    place, config = served.place, served.config
    folder = place / FOLDER
    tftp = folder / "tftp"
    tftp.mkdir(parents=True, exist_ok=True)
    settings = {"place": plan.address.rstrip("/"), "orders": ORDERS}
    sizes = installer.write(disk, folder, settings, keys)
    notes = []
    for name, source in IPXE.items():
        if source.is_file():
            shutil.copyfile(source, tftp / name)
            (tftp / name).chmod(0o644)
        elif not (tftp / name).is_file():
            notes.append(
                f"{source} is missing, so that firmware cannot boot by PXE: apt-get install ipxe"
            )
    if "goldnode-install.efi" not in sizes:
        notes.append(
            "the disk has no EFI stub, so that UEFI cannot boot by HTTP: only PXE is served"
        )
    texts = {
        folder / "boot.ipxe": script(installer.console(disk)),
        config / "dnsmasq.conf": dnsmasq(plan, tftp),
        config / "nginx.conf": nginx(plan, place),
    }
    for path, text in texts.items():
        replace_file(path, text.encode())
    # Last: a machine that reads them finds the installer of this run.
    with _in_turn(place):
        known: Mapping[str, RaisedOrder] = {}
        if (place / ORDERS).exists():
            try:
                known = read_orders(place, signer)
            except DiskError as problem:
                notes.append(f"{problem.message}: they are written as the plan has them")
        notes += ahead(plan, known)
        now = dt.datetime.now(dt.UTC)
        replace_file(place / ORDERS, sign_orders(plan, signer, now, known))
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(0o644)
    return WrittenNetboot(sizes, notes)


def ahead(plan: InstallPlan, known: Mapping[str, RaisedOrder]) -> list[str]:
    """Return a note for each machine whose number in the plan is lower than that of its order."""
    return [
        f"{name} stays at erase {known[name].erase}, which {known[name].work or 'an earlier plan'} ordered: "
        f"a higher number in the plan installs it again"
        for name, machine in sorted(plan.machines.items())
        if name in known and known[name].erase > machine.erase
    ]


def script(console: str) -> str:
    """Return the script of iPXE. It is the same for all machines: the orders say what each one becomes."""
    return (
        "#!ipxe\n"
        "# goldnode: the installer. It finds the order of this machine by its MAC addresses.\n"
        f"kernel vmlinuz initrd=initrd.img {installer.WORDS} BOOTIF=01-${{netX/mac:hexhyp}} {console}\n"
        "initrd initrd.img\n"
        "boot\n"
    )


def dnsmasq(plan: InstallPlan, tftp: Path) -> str:
    """Return the configuration of dnsmasq: DHCP, or an addition to another DHCP server, and TFTP."""
    base = f"{plan.address.rstrip('/')}/{FOLDER}"
    network = plan.network
    if network.range is not None:
        first, last, mask = network.range
        ranges = [f"dhcp-range={first},{last},{mask},1h"]
        ranges += [
            f"dhcp-host={','.join(machine.macs())},{name.split('.')[0]}"
            for name, machine in sorted(plan.machines.items())
        ]
    else:
        assert network.proxy is not None  # noqa: S101 - validated
        ranges = [f"dhcp-range={network.proxy.network_address},proxy,{network.proxy.netmask}"]
    return "\n".join(
        [
            "# goldnode: written by `goldnode disks netboot`; see docs/how-to/install-from-network.md",
            "port=0",
            f"interface={network.interface}",
            "bind-interfaces",
            *ranges,
            "# Option 175 is iPXE's own; 16 is x86-64 UEFI that boots by HTTP, 7 and 9 by PXE, 0 is a BIOS (RFC 4578 and IANA).",
            "dhcp-match=set:ipxe,175",
            "dhcp-match=set:http,option:client-arch,16",
            "dhcp-match=set:uefi,option:client-arch,7",
            "dhcp-match=set:uefi,option:client-arch,9",
            *_boots(plan, base),
            "enable-tftp",
            f"tftp-root={tftp.absolute()}",
            "",
        ]
    )


def _boots(plan: InstallPlan, base: str) -> list[str]:
    if plan.network.proxy is not None:
        # A proxy answers with `pxe-service` alone: dhcp-boot has no effect. Not for HTTP boot, which needs the address's server.
        kinds = ("X86-64_EFI", "BC_EFI")
        return [
            *(f"pxe-service=tag:ipxe,{kind},goldnode,{base}/boot.ipxe" for kind in kinds),
            *(f"pxe-service=tag:!ipxe,{kind},goldnode,snponly.efi" for kind in kinds),
        ]
    return [
        "# UEFI takes an address only from a server that answers as HTTPClient (UEFI 2.10, 24.7.3.1).",
        "dhcp-option-force=tag:http,60,HTTPClient",
        f"dhcp-boot=tag:http,tag:!ipxe,{base}/goldnode-install.efi",
        "dhcp-boot=tag:uefi,tag:!ipxe,snponly.efi",
        f"dhcp-boot=tag:ipxe,{base}/boot.ipxe",
    ]


def nginx(plan: InstallPlan, place: Path) -> str:
    """Return the configuration of nginx: a server for /etc/nginx/conf.d."""
    url = urlsplit(plan.address)
    tls = url.scheme == "https"
    port = url.port or (443 if tls else 80)
    path = url.path.rstrip("/") + "/"
    certificates = [
        "    ssl_certificate /etc/nginx/goldnode.crt;  # put the certificate of this name there",
        "    ssl_certificate_key /etc/nginx/goldnode.key;",
    ]
    return "\n".join(
        [
            "# goldnode: written by `goldnode disks netboot`; see docs/how-to/install-from-network.md",
            "server {",
            f"    listen {port}{' ssl' if tls else ''};",
            f"    server_name {url.hostname};",
            *(certificates if tls else []),
            f"    location {path} {{",
            f"        alias {place.absolute()}/;",
            "        default_type application/octet-stream;",
            "    }",
            "    # Locks of publishers, and builds that are not complete.",
            f"    location {path}.staging {{ deny all; }}",
            "}",
            "",
        ]
    )
