"""Arguments of `goldnode-node cache`, and the request that they make."""

from __future__ import annotations

import argparse
import os

from ..ground.errors import NodeError
from ..state.domains.program import CLASS
from . import components
from .caches import CACHES, EXACT, STRENGTHS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

    from ..ground.host import Json

EXPLAIN = "Exit status: 0 the keys are equal, 1 they differ, 3 a file is no key."
VERIFY = "Exit status: 0 all may be used, 1 one may not, 3 could not check."


def arguments(parser: Any) -> None:
    """Add the arguments of the command."""
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="VERB", help="each has --help"
    )
    for verb, text, epilog in (
        ("key", "Print the keys of caches.", None),
        ("explain", "Show why two keys differ.", EXPLAIN),
        ("verify", "Verify that directories belong to their keys, and to this node.", VERIFY),
        ("path", "Make the directories of keys, and print them.", None),
    ):
        command = verbs.add_parser(verb, help=text, description=text, epilog=epilog)
        command.add_argument(
            "--format",
            choices=("text", "json"),
            default=argparse.SUPPRESS,
            help="output format (default: text)",
        )
        if verb == "explain":
            command.add_argument("first", metavar="A", help="a key (JSON), or a directory of a key")
            command.add_argument("second", metavar="B", help="the other one")
        elif verb == "verify":
            command.add_argument("directories", nargs="+", metavar="DIR", help="directory of a key")
            command.add_argument(
                "--alone", action="store_true", help="do not compare with this node"
            )
            of_node(command)
        else:
            command.add_argument(
                "caches", nargs="+", choices=tuple(CACHES), metavar="CACHE", help=", ".join(CACHES)
            )
        if verb == "path":
            command.add_argument(
                "--caches",
                dest="place",
                required=True,
                metavar="DIR",
                help="directory of all caches",
            )
            command.add_argument(
                "--export",
                action="store_true",
                help="print lines for a shell that set the tools' variables",
            )
        if verb in ("key", "path"):
            declared(command)


def declared(command: Any) -> None:
    """Add the options that describe the node and the program."""
    add = command.add_argument
    add(
        "--strength",
        choices=STRENGTHS,
        default=EXACT,
        help="exact, or portable between nodes (default: %(default)s)",
    )
    of_node(command)
    add(
        "--image",
        metavar="DIGEST",
        help="digest of the container image, which covers all its files",
    )
    add(
        "--image-json",
        metavar="FILE",
        help="description of an image of goldnode, for the versions of its libraries",
    )
    add("--libraries", metavar="DIR", help="directory site-packages of the program")
    add(
        "--library",
        action="append",
        default=[],
        metavar="NAME=VERSION",
        help="a library; NAME=@FILE reads its content",
    )
    add(
        "--glibc",
        metavar="VERSION",
        help="version of the C library, without an image (default: this machine's)",
    )
    add("--python-abi", metavar="ABI", help="SOABI of the program's Python, without an image")
    add(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the builder",
    )
    add(
        "--variable",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable whose value decides",
    )
    add(
        "--source",
        action="append",
        default=[],
        metavar="FILE",
        help="compiled program: network, weights",
    )


def of_node(command: Any) -> None:
    """Add the options that choose the node and its GPU."""
    add = command.add_argument
    add(
        "--from",
        dest="record",
        metavar="FILE",
        help="use this capture instead of the state of the node",
    )
    add(
        "--class",
        dest="document",
        metavar="FILE",
        help=f"class document (default: {CLASS}, if it is there)",
    )
    add("--gpu", metavar="GPU", help="index, PCI address or UUID, where the GPUs differ")
    add("--mig", metavar="PROFILE", help="profile of the partition, where there are several")


def request(
    options: Any, environment: Mapping[str, str], document: Optional[Mapping[str, Any]]
) -> components.KeyRequest:
    """Return the request of a command line. Reads the files that it names. Raises NodeError."""
    libraries: Dict[str, Json] = {}
    recipe = None
    if options.image_json:
        description = components.described(_data(options.image_json), options.image_json)
        libraries.update(description["libraries"])
        recipe = description["recipe"]
    if options.libraries:
        libraries.update(components.installed(options.libraries))
    for text in options.library:
        name, row = components.library(text)
        libraries[name] = row
    # Triton runs this assembler in place of the one that it comes with.
    if "TRITON_PTXAS_PATH" in environment:
        libraries["ptxas"] = {
            "version": None,
            "sha256": components.content(environment["TRITON_PTXAS_PATH"]),
        }
    image = components.image(options.image) if options.image else recipe
    variables = {name for cache in options.caches for name in CACHES[cache].environment} | set(
        options.variable
    )
    return components.KeyRequest(
        document=document,
        gpu=options.gpu,
        mig=options.mig,
        image=image,
        libraries=libraries,
        # An image has a C library of its own.
        glibc=options.glibc or (None if options.record or image else c_library()),
        python_abi=options.python_abi,
        options=components.pairs(options.option, "--option"),
        environment={name: environment[name] for name in sorted(variables) if name in environment},
        source=components.source(options.source),
    )


def c_library() -> Optional[str]:
    """Return the version of the C library of this process; None if it is not glibc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return None
    return version if name == "glibc" and version else None


def _data(name: str) -> bytes:
    try:
        with open(name, "rb") as opened:
            return opened.read(components.MOST)
    except OSError as problem:
        raise NodeError(
            f"{name} cannot be read: {problem.strerror}. Correct the name, or who may read it."
        ) from None
