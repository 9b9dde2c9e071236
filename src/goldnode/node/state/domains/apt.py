"""Domain of apt: sources with pinned keys, version pins, and protection from unattended upgrades."""

from __future__ import annotations

import base64

from ...effective.apt import FENCE as FENCE_LIST
from ...effective.apt import AptPin, agrees, covers
from ..finding import Finding, judge_item
from ..model import Observed, Refusal
from ..names import in_family, printable
from ..observe import FENCE
from ..remedy import COMMAND, SITE, Remedy
from .files import Wanted
from .packages import driver_family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Sequence

    from ...ground.document import ClassDocument


PINS = "/etc/apt/preferences.d/goldnode-stack"
# URI parts that occur only in a GPU vendor's package repository (layout: compat facts,
# distros.yml, repositories).
VENDOR_PATHS = ("/compute/cuda/repos/", "repo.radeon")


def archives(document: ClassDocument) -> List[Mapping[str, Any]]:
    """Return the archives of the stack as this site serves them."""
    return list(document.get("site", {}).get("archives", ()))


def only(document: ClassDocument) -> List[str]:
    """Return options that restrict apt to the site's mirror, if the site file sets `only`.

    The indexes of the node's own sources are not deleted.
    """
    return from_file(_file(archives(document)[0])) if document.get("site", {}).get("only") else []


def from_file(name: str) -> List[str]:
    """Return options that restrict apt to the sources in one file."""
    settings = {
        "Dir::Etc::sourcelist": name,
        "Dir::Etc::sourceparts": "/dev/null",
        # Otherwise `apt-get update` deletes the indexes of all other sources.
        "APT::Get::List-Cleanup": "0",
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _file(archive: Mapping[str, Any]) -> str:
    # The id of the site's own mirror begins with the prefix of our files.
    name = archive["id"].removeprefix("goldnode-")
    return f"/etc/apt/sources.list.d/goldnode-{name}.sources"


def sources(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return one deb822 file per archive, with the components that the node's own sources lack.

    apt refuses two entries for the same URI and suite with different values of Signed-By and of some other options
    (:data:`...effective.apt.OF_RELEASE`). An existing entry of the node therefore determines them for goldnode's entry.
    """
    wanted = []
    for archive in archives(document):
        peers = _peers(archive, seen, document["os"]["architecture"])
        given = {component for peer in peers for component in peer["components"]}
        # If apt may use nothing but the mirror, it must be in a file by itself.
        missing = [
            component
            for component in archive["components"]
            if component not in given or only(document)
        ]
        if peers and not missing:
            continue
        signed_by = peers[0]["signed_by"] if peers else archive["signed_by"]
        options = {"Check-Valid-Until": "no"} if archive.get("accept_expired") else {}
        if peers:
            options = peers[0].get("release") or {}
        lines = [
            f"# goldnode: {archive['id']}, an archive of stack {document['stack']['name']}",
            "Types: deb",
            f"URIs: {archive['uri']}",
            f"Suites: {archive['suite']}",
            *([f"Components: {' '.join(missing)}"] if missing else []),
            # An entry may have the key itself, on lines of its own.
            *(["Signed-By: " + signed_by.replace("\n", "\n ")] if signed_by else []),
            *(f"{key}: {value}" for key, value in options.items()),
        ]
        wanted.append(
            Wanted(
                _file(archive),
                "\n".join(lines) + "\n",
                "node_class",
                f"archive {archive['id']} of the stack",
            )
        )
    return wanted


def keys(document: ClassDocument) -> List[Wanted]:
    """Return the signing keys that the site provides, each at its Signed-By path."""
    wanted = []
    for archive in archives(document):
        if archive["key"]:
            content = printable(base64.b64decode(archive["key"]))
            why = f"signing key of archive {archive['id']}"
            wanted.append(
                Wanted(
                    archive["signed_by"],
                    content,
                    "node_class",
                    why,
                    show=f"key {', '.join(archive['fingerprints'])}\n",
                    base64=archive["key"],
                )
            )
    return wanted


def pins(document: ClassDocument) -> Wanted:
    """Return apt_preferences(5) for the stack.

    Locked versions get priority 1001, which allows downgrades. Metapackages get no version at all
    (-1).
    """
    lines = [f"# goldnode: the locked packages of stack {document['stack']['name']}"]
    for package in document["packages"]:
        lines += [
            f"Package: {package['name']}",
            f"Pin: version {package['version']}",
            "Pin-Priority: 1001",
            "",
        ]
    if document["fence"]:
        lines += [
            "# These would upgrade the stack.",
            f"Package: {' '.join(document['fence'])}",
            "Pin: release *",
            "Pin-Priority: -1",
            "",
        ]
    return Wanted(
        PINS,
        "\n".join(lines),
        "node_class",
        "pins of the stack set",
    )


def fence(document: ClassDocument) -> Wanted:
    """Return Unattended-Upgrade::Package-Blacklist for the stack.

    It lists complete names, since a pattern such as ``^nvidia-`` misses libnvidia-*.
    """
    names = sorted({package["name"] for package in document["packages"]} | set(document["fence"]))
    # The entries are Python regular expressions, matched at the start of a name. Of their special characters,
    # package names may contain only + and .
    items = "".join(
        '  "' + name.replace("+", "\\+").replace(".", "\\.") + '$";\n' for name in names
    )
    text = (
        "// goldnode: packages of the stack change only with its lock\nUnattended-Upgrade::Package-Blacklist "
        f"{{\n{items}}};\n"
    )
    return Wanted(
        FENCE,
        text,
        "node_class",
        "unattended upgrades keep off the stack set",
    )


def refusals(document: ClassDocument, seen: Observed) -> List[Refusal]:
    """Refuse foreign sources, pins and keys that contradict the class.

    goldnode names them, but never removes them.
    """
    refused: List[Refusal] = []
    own = {(archive["uri"].rstrip("/"), archive["suite"]) for archive in archives(document)}
    versions = {package["name"]: package["version"] for package in document["packages"]}
    names = set(versions)
    family = driver_family(document)
    whose, instead = (
        f"an archive of stack {document['stack']['name']}",
        ", or declare that archive in the stack",
    )
    if only(document):
        whose, instead = "the site's mirror, from which alone the stack comes", ""
    for row in seen.sources:
        if _is_own(row) or (row["uri"].rstrip("/"), row["suite"]) in own:
            continue
        if any(mark in row["uri"] for mark in VENDOR_PATHS):
            where = f"{row['file']}:{row['line']}"
            refused.append(
                Refusal(
                    "foreign-source",
                    f"{where}: apt source {row['uri']} offers GPU packages and is not {whose}.",
                    f"Remove the file if nothing else needs it{instead}; goldnode removes only "
                    "what it wrote.",
                )
            )
    for pin in seen.pins:
        if (
            pin.get("owner") in names
        ):  # from a package of the stack; the pins of the lock outrank it
            continue
        if _contradicts(pin, versions, family) or _unfences(pin, document["fence"]):
            refused.append(
                Refusal(
                    "foreign-pin",
                    f"{pin['file']}:{pin['line']}: pins {pin['package']}, which is of the stack set.",
                    "Remove that entry: the lock pins the stack set.",
                )
            )
    for archive in archives(document):
        path, wanted = archive["signed_by"], archive["fingerprints"]
        have = seen.keyrings.get(path)
        if archive["key"] or not wanted:
            continue  # a key from the site was verified when the class was compiled
        if have is None:
            refused.append(
                Refusal(
                    "missing-key",
                    f"{path}: the keyring of archive {archive['id']} is not there.",
                    "Install the OS's archive keyring, or give `key:` in the site file.",
                )
            )
        elif not set(wanted) & set(have):
            refused.append(
                Refusal(
                    "wrong-key",
                    f"{path}: holds none of the keys pinned for archive {archive['id']} (want one "
                    f"of {', '.join(wanted)}; have {', '.join(have) or 'no key'}).",
                    "If the archive changed its key, update the fingerprints in the catalog or the "
                    "site file after checking them with its owner.",
                )
            )
    return refused


def _contradicts(
    pin: Mapping[str, Any], versions: Mapping[str, str], family: Sequence[str]
) -> bool:
    """Return whether a foreign pin concerns the stack, and prefers another version than the locked one.

    A pin of every package is of apt's general form, which the lock's pins outrank.
    """
    word = str(pin["package"])
    if word == "*":
        return False
    meant = [version for name, version in versions.items() if covers(word, name)]
    if word.startswith(
        "src:"
    ):  # its binary packages are not known; drivers of a source are named after it
        return in_family(word[4:], family) or word[4:].startswith("nvidia-graphics-drivers")
    row = AptPin(pin["file"], pin["line"], word, pin.get("pin", ""), pin.get("priority", 0))
    if meant and agrees(row, meant):
        return False
    return bool(meant) or in_family(word, family)


def _unfences(pin: Mapping[str, Any], fence: Sequence[str]) -> bool:
    """Return whether a foreign pin lets apt install a metapackage that the lock's pins keep away.

    Of two pins of a package by its name or a pattern, apt takes the first.
    """
    named = pin["package"] != "*" and any(covers(pin["package"], name) for name in fence)
    return named and pin.get("priority", 0) > 0 and pin["file"] < PINS


WANTED = "the stack's packages are left alone"
BACK = "Remove that line; to upgrade other packages of the list, add none of the stack to it."


def unfenced(document: ClassDocument, seen: Observed) -> List[Refusal]:
    """Refuse a node on which another file clears apt's list of packages to leave alone, or lets it ignore holds.

    apt does nothing at all with a configuration that it cannot read.
    """
    refused = []
    if seen.apt_error and document["packages"]:
        text = f"{seen.apt_error}. apt refuses its configuration, and all work with it."
        remedy = "Correct that line until `apt-config dump` prints no error, then run site.yml."
        refused.append(Refusal("apt-configuration", text, remedy))
    if seen.unfenced and seen.files.get(FENCE) is not None:
        where = ", ".join(seen.unfenced)
        text = f"{where} clears {FENCE_LIST}: unattended upgrades may change the stack."
        refused.append(Refusal("fence-cleared", text, BACK))
    if seen.loosened and seen.files.get(PINS) is not None:
        where = ", ".join(seen.loosened)
        text = f"{where} makes apt ignore holds or pins: an upgrade may change the stack."
        refused.append(Refusal("apt-options", text, "Remove that line, then run site.yml."))
    return refused


def fence_finding(document: ClassDocument, seen: Observed) -> Finding:
    """Report whether unattended upgrades leave the stack alone."""
    rows = unfenced(document, seen)
    texts, remedy = [row.message for row in rows], " ".join(row.remedy for row in rows)
    return judge_item(
        "apt.fence", WANTED, "; ".join(texts) or WANTED, Remedy(remedy, COMMAND, SITE)
    )


def _is_own(row: Mapping[str, Any]) -> bool:
    return str(row["file"]).rpartition("/")[2].startswith("goldnode-")


def _peers(
    archive: Mapping[str, Any], seen: Observed, architecture: str
) -> List[Mapping[str, Any]]:
    """Return the node's own entries for the archive's URI and suite, without those for another architecture alone."""
    return [
        row
        for row in seen.sources
        if not _is_own(row)
        and row["uri"] == archive["uri"].rstrip("/")
        and row["suite"] == archive["suite"]
        and architecture in (row.get("architectures") or [architecture])
    ]
