"""Options of commands: how they are declared, and those that several commands share, each written once.

`grouped` hands a command one frozen dataclass instead of many values. An option that only the commands of one group
share is in the `__init__` of the group; those of channels, for images and disks, are in `channel_moves`. Nothing here
imports more than click: every command imports this module at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click

from goldnode.core.dataclass import dataclass

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

# Values of options and arguments.
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)
OLD_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)


class RenamedOption(click.Option):
    """An option that accepts former spellings too, which neither help nor completion shows.

    `former` maps a spelling to the value it sets; None if the value follows on the command line.
    """

    def __init__(
        self, *args: Any, former: Mapping[str, str | None] | None = None, **given: Any
    ) -> None:
        super().__init__(*args, **given)
        self.former = former or {}

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register the option and its former spellings."""
        super().add_to_parser(parser, ctx)
        for name, value in self.former.items():
            # click has no hidden spellings of an option, so they go to its parser.
            action: dict[str, Any] = {"action": "append" if self.multiple else "store"}
            if value is not None:
                action = {"action": "store_const", "const": value, "nargs": 0}
            parser.add_option(obj=self, opts=[name], dest=self.name, **action)


def options(*decorators: Decorator) -> Decorator:
    """Combine several options into one decorator."""

    def apply(command: Command) -> Command:
        # The last decorator is the innermost: help lists options in the order they are given here.
        for option in reversed(decorators):
            command = option(command)
        return command

    return apply


def grouped(name: str, kind: type[Any], *decorators: Decorator) -> Decorator:
    """Combine options whose values the command gets as one argument `name`: a frozen dataclass `kind`.

    The fields of `kind` are named after the options. A field without an option has its default.
    """
    # click names the parameters, so ask it.
    names = [
        str(param.name) for param in click.command()(options(*decorators)(lambda: None)).params
    ]

    def apply(command: Command) -> Command:
        @wraps(command)
        def call(**given: Any) -> Any:
            own = {one: given.pop(one) for one in names}
            return command(**given, **{name: kind(**own)})

        return options(*decorators)(call)

    return apply


OFFLINE_INDEXES = click.option(
    "--offline", is_flag=True, help="Use the cached archive indexes without refreshing them."
)
DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)
# Sentence that follows the error of a wrong --format, of commands that have --image-format too.
IMAGE_FORMAT = " The format of a disk image is given with --image-format."

KEEP_DAYS = click.option(
    "--keep-days",
    "days",
    cls=RenamedOption,
    former={"--days": None},
    type=click.FloatRange(0),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Do not remove anything younger than this.",
)
LIMIT = click.option(
    "-l",
    "--limit",
    metavar="PATTERN",
    help="Select only the hosts that match this Ansible pattern.",
)
BECOME = click.option("-b", "--become", is_flag=True, help="Become root on the host.")
WAIT = click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0,
    show_default=True,
    metavar="SECONDS",
    help="Time to wait for another process that uses the mirror; 0 fails at once.",
)
REGISTRY = click.option(
    "--to",
    "to",
    metavar="HOST[:PORT][/PREFIX]",
    envvar="GOLDNODE_REGISTRY",
    show_default="$GOLDNODE_REGISTRY",
    help="Registry to use.",
)
CERTIFICATE = click.option(
    "--ca",
    type=FILE,
    metavar="FILE",
    help="PEM certificate of the authority that signed the server's certificate.",
)


def out_directory(default: str) -> Decorator:
    """Return the option `--out` for a directory. `default` is the directory used without it."""
    return click.option(
        "--out",
        type=DIRECTORY,
        metavar="DIR",
        show_default=default,
        help="Directory to write to.",
    )


def store(name: str, variable: str, directory: str) -> Decorator:
    """Return the option `--store`; its parameter is called `name`."""
    return click.option(
        "--store",
        name,
        type=DIRECTORY,
        metavar="DIR",
        show_default=f"${variable}, else {directory}",
        help="Image store.",
    )


def image_store(name: str = "store") -> Decorator:
    """Return the option `--store` of `goldnode images`."""
    return store(name, "GOLDNODE_IMAGES", ".goldnode/images")


def disk_store(name: str = "store") -> Decorator:
    """Return the option `--store` of `goldnode disks`."""
    return store(name, "GOLDNODE_DISKS", ".goldnode/disks")


def published_disks(*, exists: bool = False) -> Decorator:
    """Return the option `--to` of the commands for published disks. `exists`: the directory must be there."""
    return click.option(
        "--to",
        type=click.Path(file_okay=False, exists=exists),
        envvar="GOLDNODE_DISKS_PLACE",
        metavar="DIR",
        show_default="$GOLDNODE_DISKS_PLACE",
        help="Published directory.",
    )


@dataclass(frozen=True)
class LockOptions:
    """How to lock: only check the locks, upgrade packages, use cached indexes alone."""

    only_check: bool = False
    upgrade: bool = False
    offline: bool = False

    def check(self) -> None:
        """Refuse options that exclude each other."""
        if self.only_check and self.upgrade:
            raise click.UsageError("--check and --upgrade exclude each other")


def lock_options(upgrade: str, offline: Decorator) -> Decorator:
    """Return the options of a command that writes locks. `upgrade` is the help of `--upgrade`."""
    return grouped(
        "how",
        LockOptions,
        click.option(
            "--check",
            "only_check",
            is_flag=True,
            help="Write nothing. Report vanished and changed packages; exit with 1 if a lock is unusable.",
        ),
        click.option("--upgrade", is_flag=True, help=upgrade),
        offline,
    )


@dataclass(frozen=True)
class BuildOptions:
    """How to build: without downloads, twice to compare the results, or not at all."""

    offline: bool = False
    twice: bool = False
    dry_run: bool = False


def build_options(compared: str) -> Decorator:
    """Return the options of a command that builds. `compared` are the results that `--twice` compares."""
    return grouped(
        "how",
        BuildOptions,
        click.option(
            "--offline",
            is_flag=True,
            help="Download nothing; all packages must be in the pool already.",
        ),
        click.option(
            "--twice",
            is_flag=True,
            help=f"Build a second time, in another directory from the pool alone, and compare the {compared}.",
        ),
        DRY_RUN,
    )


MATRIX = click.option(
    "--matrix",
    "matrix_file",
    type=NEW_FILE,
    metavar="FILE",
    show_default="$GOLDNODE_MATRIX, else goldnode's own",
    help="Image matrix.",
)
DEFINITION = click.option(
    "--definition",
    "definition_file",
    type=NEW_FILE,
    metavar="FILE",
    show_default="$GOLDNODE_DISK_DEFINITION, else goldnode's own",
    help="Disk definition.",
)
BACKEND = click.option(
    "--backend",
    metavar="NAME",
    show_default="as the image declares",
    help="Backend to inspect for.",
)
POLICY = click.option(
    "--policy",
    type=FILE,
    metavar="FILE",
    show_default="goldnode's own",
    help="Purity policy (purity.yml), with the waivers of the site.",
)


# Keys of a published directory: a repository of facts, or a channel of rollouts.


class KeyParameter(click.ParamType[Any]):
    """A key: a file, or the URI of a key in a PKCS #11 token (`hsm:KEYID?label=TOKEN`)."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path, or the URI as it is."""
        if isinstance(value, str) and not value.startswith("hsm:"):
            return FILE.convert(value, param, ctx)
        return value


KEY = KeyParameter()


def key_option(
    name: str, parameter: str, help_: str, *, required: bool = False, default: str | None = None
) -> Decorator:
    """Return a repeatable option for keys. `default` says in words which keys count without it."""
    return click.option(
        name,
        parameter,
        multiple=True,
        required=required,
        type=KEY,
        metavar="KEY",
        show_default=default,
        help=f"{help_} Repeatable.",
    )


def number_of_keys(name: str, parameter: str, default: str, help_: str) -> Decorator:
    """Return the option for a threshold of keys."""
    return click.option(
        name,
        parameter,
        type=click.IntRange(min=1),
        metavar="N",
        show_default=default,
        help=help_,
    )


@dataclass(frozen=True)
class KeyOptions:
    """Keys of a publication, as `goldnode.channels.keys.RepositoryKeys` has them."""

    keys: tuple[Any, ...]
    targets_keys: tuple[Any, ...] = ()
    root_keys: tuple[Any, ...] = ()
    threshold: int | None = None
    targets_threshold: int | None = None
    order_keys: tuple[Any, ...] = ()

    def given(self) -> dict[str, Any]:
        """Return the fields of `RepositoryKeys`."""
        return {
            "online": self.keys,
            "targets": self.targets_keys,
            "root": self.root_keys,
            "root_threshold": self.threshold,
            "targets_threshold": self.targets_threshold,
        }


@dataclass(frozen=True)
class TwoMachines:
    """Files of a release that is signed on another machine: the one to write, or the signed one."""

    prepare: Path | None = None
    signed: Path | None = None


def key_options(published: str, *more: Decorator) -> Decorator:
    """Return the options for the keys of a publication: `published` is `channel` or `repository`."""
    return grouped(
        "keys",
        KeyOptions,
        key_option(
            "--key",
            "keys",
            "Online key, which signs that a state is the newest: a file (PEM, ed25519 or ECDSA) or a key of a PKCS #11 "
            "token (hsm:KEYID?label=TOKEN).",
            required=True,
        ),
        key_option(
            "--targets-key",
            "targets_keys",
            "Offline key of targets, which signs a release. Without it, only what the online keys may sign is published.",
        ),
        *more,
        key_option("--root-key", "root_keys", f"Offline key of the root, for a new {published}."),
        number_of_keys(
            "--threshold",
            "threshold",
            "1",
            f"Keys of the root that must sign, for a new {published}.",
        ),
        number_of_keys(
            "--targets-threshold",
            "targets_threshold",
            "1",
            f"Keys of targets that must sign, for a new {published}.",
        ),
    )


TWO_MACHINES = grouped(
    "machines",
    TwoMachines,
    click.option(
        "--prepare",
        type=NEW_FILE,
        metavar="FILE",
        help="Write the release without signatures to FILE, and publish nothing. `sign-metadata` signs it on another "
        "machine.",
    ),
    click.option(
        "--signed",
        type=FILE,
        metavar="FILE",
        help="Publish the release of --prepare, which enough keys have signed.",
    ),
)


@dataclass(frozen=True)
class RotationKeys:
    """Keys of a rotation: of the present root, and those of each role from now on, with thresholds."""

    root_keys: tuple[Any, ...]
    new_keys: tuple[Any, ...]
    targets_keys: tuple[Any, ...]
    keys: tuple[Any, ...]
    threshold: int | None
    targets_threshold: int | None


def valid_options(days: int, release_days: int = 90) -> Decorator:
    """Return the options `--valid` and `--release-valid`, with these defaults."""
    kinds = [
        ("--valid", "days", days, "of the online keys"),
        ("--release-valid", "release_days", release_days, "of a release"),
    ]
    return options(
        *(
            click.option(
                option,
                name,
                type=click.IntRange(min=1),
                default=default,
                show_default=True,
                metavar="DAYS",
                help=f"Days until the signatures {signed} expire.",
            )
            for option, name, default, signed in kinds
        )
    )


ROTATION = options(
    grouped(
        "change",
        RotationKeys,
        key_option("--root-key", "root_keys", "Secret key of the present root."),
        key_option(
            "--new-root-key",
            "new_keys",
            "Key of the next root, secret or public. Without it the keys of the root stay.",
        ),
        key_option(
            "--targets-key",
            "targets_keys",
            "Key of targets from now on, secret or public. Without it they stay.",
        ),
        key_option(
            "--key",
            "keys",
            "Online key from now on, secret or public. Without it they stay.",
        ),
        number_of_keys(
            "--threshold",
            "threshold",
            "that of the present root",
            "Keys of the next root that must sign.",
        ),
        number_of_keys(
            "--targets-threshold",
            "targets_threshold",
            "that of the present root",
            "Keys of targets that must sign.",
        ),
    ),
    TWO_MACHINES,
)


# Containers and GPUs of a run.


def engine_option(help_: str = "Program that runs the container.") -> Decorator:
    """Return the option `--engine` of a command that runs a container."""
    return click.option(
        "--engine",
        type=click.Choice(["docker", "podman"]),
        default="docker",
        show_default=True,
        help=help_,
    )


def gpus_option(more: str = "") -> Decorator:
    """Return the option `--gpus`. `more` continues its help."""
    return click.option("--gpus", metavar="all|N", help=f"Pass NVIDIA GPUs to the container{more}.")


AS_DOCKER = ", as `docker run --gpus` does"  # for `gpus_option`
DEVICES = click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="FILE",
    help="Pass a device file and its group to the container (/dev/kfd, /dev/dri/renderD128). Repeatable.",
)


def timeout_option(seconds: float, help_: str, least: float = 1, **more: Any) -> Decorator:
    """Return the option `--timeout`, passed as `limit`. `seconds` is its default."""
    return click.option(
        "--timeout",
        "limit",
        type=click.FloatRange(least),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help=help_,
        **more,
    )


# Options of commands that follow something.


def every_option(sources: str, flag: str, least: float = 0.1) -> Decorator:
    """Return the option `--every` of a command that reads `sources` again and again with `flag`."""
    return click.option(
        "--every",
        type=click.FloatRange(min=least),
        default=2,
        show_default=True,
        metavar="SECONDS",
        help=f"Time between two looks at the {sources}, with {flag}.",
    )


LINES = click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="Number of lines, the last ones.",
)


def inventory_option(help_: str) -> Decorator:
    """Return the option `--inventory`."""
    return click.option("-i", "--inventory", metavar="PATH", help=help_)


def unverified_option(place: str) -> Decorator:
    """Return the option `--unverified` for a disk image. `place` is where its reason is recorded."""
    return click.option(
        "--unverified",
        metavar="REASON",
        help=f"Allow an image that was never booted for verification. The reason is recorded on {place}.",
    )


def unsigned_option(place: str) -> Decorator:
    """Return the option `--unsigned` for an image. `place` is where its reason is recorded."""
    return click.option(
        "--unsigned",
        metavar="REASON",
        help="Allow an image that nothing verifies, where the site names no key of a builder. The reason is recorded "
        f"{place}.",
    )


def program_file() -> Decorator:
    """Return the option `--out` of a command that writes a program."""
    return click.option(
        "--out", type=NEW_FILE, required=True, metavar="FILE", help="File to write."
    )


REQUIRE_LOCK = click.option(
    "--require-lock",
    is_flag=True,
    help="Exit with 1 if a class cannot be applied because its stack has no lock.",
)
