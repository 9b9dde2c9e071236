"""Typed access to `facts/*.yml`. Files are read on first use and cached.

Every answer includes its source (`Origin`), so that an error can name the document that states the
fact.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import field
from functools import cache, lru_cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal

from goldnode.core import files
from goldnode.core.dataclass import dataclass
from goldnode.core.errors import (
    FactsError,
    GoldnodeError,
    begins,
    candidates,
    nearest,
    quoted,
    squeezed,
)
from goldnode.node.ground.json_lines import as_rows
from goldnode.node.ground.optional import optional

FACTS = Path(__file__).parent

ModuleFlavour = Literal["open", "proprietary"]

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_CACHED_FILES = (
    100  # parsed files in the cache: about ten per version of the facts, so several versions fit
)


@dataclass(frozen=True)
class Origin:
    """One source of a fact: the facts file, its key there, its title, and its address if it has one.

    `file` is the name of a built-in facts file, or the path of a file of a catalog.
    """

    file: str
    key: str
    title: str
    where: str | None

    def __str__(self) -> str:
        return f"{self.title} ({self.place}, {self.key})"

    @property
    def place(self) -> str:
        """Return the path of the facts file for messages."""
        return self.file if "/" in self.file else f"facts/{self.file}"


@dataclass(frozen=True)
class GpuModel:
    """One GPU model.

    None means that no source was found, never "not supported". Power is in watts, memory in MiB.
    """

    sku: str
    vendor: Literal["nvidia", "amd", "intel"]
    names: tuple[str, ...]  # product names as nvidia-smi or amd-smi prints them
    pci_ids: tuple[str, ...]
    architecture: str
    compute_capability: str | None
    gfx: str | None
    memory_mib: int | None
    power_limit_default_w: int | None
    mig_capable: bool | None
    mig_profiles: tuple[str, ...] | None  # of all its tables
    open_modules_required: bool | None
    open_modules_supported: bool | None
    source: Mapping[str, Any]
    # First versions that list it; one per branch if several added it at once.
    min_driver: tuple[str, ...] = ()
    min_driver_branch: str | None = None
    min_rocm: str | None = None
    min_amdgpu: str | None = None
    doubt: str | None = None
    data_centre: bool | None = None
    mig_tables: tuple[str, ...] = ()
    min_driver_date: str | None = None
    possible_from: str | None = (
        None  # a driver older than the first known one, which may support it already
    )
    # Intel: the kernel's own driver, and the first kernel in which it binds the GPU without a parameter.
    kernel_driver: str | None = None
    min_kernel: str | None = None
    kernel_listed: str | None = None
    kernel_unlisted: str | None = None
    in_kernel: bool | None = None
    compute_runtime: str | None = None  # the first release of Intel's OpenCL that lists it

    def origins(self, name: str) -> tuple[Origin, ...]:
        """Return the sources of field `name` (the keys of `source`: pci_ids, memory_power, power, mig …)."""
        return origins("gpus.yml", self.source.get(name))


@dataclass(frozen=True)
class Branch:
    """One NVIDIA driver branch. `end_of_life` is YYYY-MM-DD or YYYY-MM, None if no source was found."""

    name: str
    kind: str | None
    end_of_life: str | None
    end_of_life_sources: tuple[tuple[Origin, str], ...]
    latest_known: str | None
    max_cuda: str | None
    open_kernel_modules: str
    point_releases: tuple[str, ...]
    note: str | None
    conflict: str | None
    oldest_architecture: str | None = None
    newest_architecture: str | None = None
    architecture_origins: tuple[Origin, ...] = ()
    confidence: str | None = None
    kind_origins: tuple[Origin, ...] = ()
    released: Mapping[str, str] = field(
        default_factory=dict
    )  # day of each version, as far as known


@dataclass(frozen=True)
class SecurityFloor:
    """The oldest version of a branch without known vulnerabilities.

    `fixed` is False if every version has some.
    """

    branch: str
    floor: str | None
    fixed: bool
    state: str
    bulletin: str | None
    bulletin_date: str | None
    origins: tuple[Origin, ...]


@dataclass(frozen=True)
class KernelBuild:
    """Result for a driver version on a kernel: builds `ok`, `fails` or `unknown`, with reason and sources.

    `confidence` is `seen` (a build was observed), `stated` (a source states it) or `derived`.
    """

    outcome: Literal["ok", "fails", "unknown"]
    reason: str
    confidence: Literal["seen", "stated", "derived"]
    origins: tuple[Origin, ...]

    @property
    def doubt(self) -> str | None:
        """Return the reservations about this result as a sentence, or None."""
        patched = (
            "the table covers NVIDIA's own sources; a distribution's patched package may build"
        )
        derived = "derived from the versions that are known to build"
        reported = [patched] if self.outcome == "fails" and self.confidence != "seen" else []
        if self.confidence == "derived" and self.outcome != "unknown":
            reported.append(derived)
        return "; ".join(reported) or None


def load(name: str) -> dict[str, Any]:
    """Return facts file `name` ("gpus.yml") with the rows that catalogs add. Raises FactsError for an unknown one."""
    return _loaded(name, *in_force())


_FORCE: ContextVar[tuple[Path, tuple[str, ...]] | None] = ContextVar("facts in force", default=None)


def in_force() -> tuple[Path, tuple[str, ...]]:
    """Return the directory of the facts in force, and those of catalogs: what the facts depend on."""
    return _FORCE.get() or (folder(), site_folders())


@contextlib.contextmanager
def unchanged() -> Iterator[object]:
    """Look for changes of the site file and of updates once, at the beginning of one judgement, and not in it.

    Return a value that is equal as long as the facts are the same.
    """
    state = in_force()
    token = _FORCE.set(state)
    try:
        yield state, generation()
    finally:
        _FORCE.reset(token)


@cache
def _loaded(name: str, folder: Path, places: tuple[str, ...]) -> dict[str, Any]:
    data = _own(name, folder)
    if any((Path(place) / name).is_file() for place in places):
        from goldnode.facts import site  # parses YAML: only where a catalog adds facts

        return site.extended(name, data, places)
    return data


def own_file(name: str) -> dict[str, Any]:
    """Return facts file `name` without the rows of catalogs. Raises FactsError for an unknown one."""
    return _own(name, folder())


def _path(name: str, folder: Path) -> Path:
    # An update may lack a newer file.
    return folder / name if (folder / name).is_file() else FACTS / name


@cache
def _own(name: str, folder: Path) -> dict[str, Any]:
    path = _path(name, folder)
    if not path.is_file():
        raise FactsError(
            f'there is no facts file "{name}"',
            remedy=nearest(name, [item.name for item in folder.glob("*.yml")]),
        )
    content = path.read_bytes()
    cached = cache_directory() / f"{hashlib.sha256(content).hexdigest()}.json"
    data = _read_cache(cached)
    if data is None:
        data = _parsed(name, content)
        _write_cache(cached, data)
    return data


def site_folders() -> tuple[str, ...]:
    """Return the folders `facts` of the catalogs of $GOLDNODE_CATALOG and the site file, whose rows are added."""
    return _site_folders(os.environ.get("GOLDNODE_CATALOG", ""), _site_state())


_SITE_FILES = ("goldnode-site.yml", "/etc/goldnode/site.yml")
_State = tuple[tuple[str, int, int], ...]


def _site_state() -> _State:
    """Return path, time and size of the site file in force; empty without one."""
    named = os.environ.get("GOLDNODE_SITE")
    # The first file that exists decides, as in `core.site.find_site`.
    for file in (os.path.expanduser(named),) if named else _SITE_FILES:  # noqa: PTH111 - as below
        try:
            state = os.stat(file)  # noqa: PTH116 - called for each lookup of a fact
        except OSError:
            continue
        return ((os.path.abspath(file), state.st_mtime_ns, state.st_size),)  # noqa: PTH100 - as above
    return ()


@dataclass(frozen=True)
class InstalledUpdate:
    """An update of the facts that `goldnode facts update` has verified: UPDATE of its directory.

    `compiled` is the date of its newest facts, `folder` the directory of its files below that of
    UPDATE.
    """

    version: int
    source: str
    compiled: str
    fetched: str
    expires: str
    folder: str


UPDATE = "update.json"


def folder() -> Path:
    """Return the directory of the facts in force: those of an update of the site, or the built-in ones.

    An update with older facts than the built-in ones is not used. Raises FactsError if it cannot be
    read.
    """
    directory = _update_directory(_site_state())
    if directory is None:
        return FACTS
    try:
        state = os.stat(f"{directory}/{UPDATE}")  # noqa: PTH116 - called for each lookup of a fact
    except OSError:
        return FACTS
    update = _installed(directory, state.st_mtime_ns, state.st_size)
    # ISO dates have the same order as text.
    return FACTS if update.compiled < str(_compiled(FACTS)) else Path(directory, update.folder)


@lru_cache(maxsize=8)
def _update_directory(states: _State) -> str | None:
    for name, _, _ in states:
        from goldnode.core.site import load_site  # parses YAML: only where there is a site file

        with contextlib.suppress(GoldnodeError):  # the command that reads the site file reports it
            site = load_site(Path(name))
            if site.facts is not None:
                return str(site.resolve(site.facts.directory))
    return None


# Time and size are for the cache alone: a file that was replaced is read again.
@lru_cache(maxsize=8)
def _installed(directory: str, _time: int, _size: int) -> InstalledUpdate:
    path = Path(directory, UPDATE)
    try:
        update = InstalledUpdate(**json.loads(path.read_text(encoding="utf-8")))
        if not (path.parent / update.folder).is_dir():
            raise ValueError(f"its directory {update.folder} is missing")
    except (OSError, ValueError, TypeError) as problem:
        raise FactsError(
            f"the installed update of the facts cannot be used: {problem}",
            file=path,
            remedy=f"run `goldnode facts update` again, or remove {directory} for the facts of this version",
        ) from None
    return update


@lru_cache(maxsize=8)
def _site_folders(variable: str, states: tuple[tuple[str, int, int], ...]) -> tuple[str, ...]:
    places = [Path(part).expanduser() for part in variable.split(os.pathsep) if part]
    for name, _, _ in states:
        from goldnode.core.site import load_site  # parses YAML: only where there is a site file

        with contextlib.suppress(GoldnodeError):  # the command that reads the site file reports it
            catalog = load_site(Path(name)).catalog_directory()
            places += [catalog] if catalog is not None else []
    own = {
        place.resolve(): str(place / "facts")
        for place in reversed(places)
        if (place / "facts").is_dir()
    }
    return tuple(reversed(own.values()))


def site_faults() -> list[FactsError]:
    """Return the errors in facts files of catalogs. The rows of a file with an error are not used."""
    if not site_folders():
        return []
    from goldnode.facts import site  # parses YAML: only where a catalog adds facts

    return site.faults(site_folders(), own_file)


def decoded(name: str, content: bytes) -> str:
    """Return the text of a facts file. Raises FactsError with the line of the first byte that is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise FactsError(
            "the file is not UTF-8", file=f"facts/{name}", line=line, remedy="save it as UTF-8"
        ) from None


def _parsed(name: str, content: bytes) -> dict[str, Any]:
    """Parse a facts file and validate it against its model. Raises FactsError with file and line."""
    # Parsing costs thirty times what reading the cached copy costs, and these imports are only
    # needed for it.
    import yaml
    from pydantic import ValidationError

    from goldnode.core import yamlsource
    from goldnode.facts.models import FILES

    place = f"facts/{name}"
    if name not in FILES:
        raise FactsError(
            "this facts file has no model", file=place, remedy="add one to FILES of facts/models.py"
        )
    text = decoded(name, content)
    try:
        data: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
        FILES[name].model_validate(data)
    except (yaml.YAMLError, ValidationError):
        # Read it again with the parser that knows the lines, which is slower.
        yamlsource.validate(
            FILES[name], yamlsource.parse(text, Path(place), error=FactsError), error=FactsError
        )
        raise
    return data


def cache_directory() -> Path:
    """Return the directory of parsed facts; each file is named after the digest of its source."""
    return files.cache_directory() / "facts"


def _read_cache(path: Path) -> dict[str, Any] | None:
    """Return cached parsed facts; `None` on a cache miss, or if another user could have written the file."""
    try:
        with path.open("rb") as opened:
            owner = os.fstat(opened.fileno())
            if owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
                return None
            cached: dict[str, Any] = json.load(opened)
            for keys in cached.pop(_NUMBERED, ()):
                *way, last = keys
                table = reduce(getitem, way, cached)
                table[last] = {int(key): value for key, value in table[last].items()}
            return cached
    except (OSError, ValueError):
        return None


_NUMBERED = "tables with numbers as keys"


def _numbered(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the keys that lead to each mapping with numbers as keys, which JSON writes as text."""
    if isinstance(value, dict):
        if value and all(type(key) is int for key in value):
            yield keys
        for key, item in value.items():
            yield from _numbered(item, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbered(item, (*keys, index))


def _write_cache(path: Path, data: dict[str, Any]) -> None:
    """Cache parsed facts if JSON preserves them exactly. Write errors are ignored: the cache is optional."""
    import tempfile  # start-up time: cached facts are only read

    try:
        numbered = [list(keys) for keys in _numbered(data)]
        text = json.dumps({**data, _NUMBERED: numbered} if numbered else data)
        # Only this user may write here: `_read_cache` refuses the files of others.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8"
        ) as out:
            out.write(text)
        Path(out.name).replace(path)
        if _read_cache(path) != data:  # JSON does not have all of YAML's values
            path.unlink(missing_ok=True)
        for old in sorted(path.parent.iterdir(), key=lambda item: item.stat().st_mtime)[
            :-_CACHED_FILES
        ]:
            old.unlink(missing_ok=True)
    except (OSError, TypeError):
        return


def origins(file: str, keys: object) -> tuple[Origin, ...]:
    """Return the sources that `keys` (one key, a list of keys, or None) names in facts file `file`."""
    if keys is None:
        return ()
    table = load(file)["sources"]
    rows = []
    for key in as_rows(keys):
        entry = table[key]
        rows.append(
            Origin(
                str(entry.get("stated_in") or file),
                str(key),
                entry["title"],
                entry.get("url") or entry.get("repo"),
            )
        )
    return tuple(rows)


def doubt(row: Mapping[str, Any]) -> str | None:
    """Return a row's own reservations (`conflict`, a `confidence` that is not high), or None."""
    reported = [f"sources disagree: {row['conflict']}"] if row.get("conflict") else []
    confidence = str(row.get("confidence") or "high")
    if confidence != "high":
        reported.append(f"confidence: {confidence}")
    inferred = row.get("inferred_from_architecture")
    if inferred:
        reported.append(f"inferred from the architecture: {', '.join(inferred)}")
    return "; ".join(reported) or None


def read_until(file: str, lists: str) -> str:
    """Return the words for the end of a list: "the driver releases were read up to 2026-09-09".

    `lists` is a key of `complete_until` in the head of `file`. An update of the facts made by an
    older version of goldnode has none; then the day on which the file was compiled counts.
    """
    meta = load(file)["meta"]
    day = meta.get("complete_until", {}).get(lists, meta["compiled"])
    return f"the {lists} were read up to {day}"


def compiled() -> dt.date:
    """Return the date of the most recently compiled facts."""
    return _compiled(folder())


def built_in() -> dt.date:
    """Return the date of the most recently compiled facts of this version."""
    return _compiled(FACTS)


@cache
def _compiled(folder: Path) -> dt.date:
    return max(_day_of_file(path.name, folder) for path in FACTS.glob("*.yml"))


# `compiled` in the mapping `meta`, whose further lines are indented.
_DAY = re.compile(rb"^meta:(?:[^\n]|\n )*?\bcompiled: '(\d{4}-\d\d-\d\d)'", re.MULTILINE)


def _day_of_file(name: str, folder: Path) -> dt.date:
    """Return the day on which a file was compiled, from its first lines: a check needs few of the files whole."""
    with _path(name, folder).open("rb") as file:
        day = _DAY.search(file.read(4096))
    text = day[1].decode() if day is not None else str(_own(name, folder)["meta"]["compiled"])
    return dt.date.fromisoformat(text)


def gpus() -> dict[str, GpuModel]:
    """Return every GPU model of the facts by its name (`sku`)."""
    return _gpus(in_force()[1])


@cache
def _gpus(_places: tuple[str, ...]) -> dict[str, GpuModel]:
    data = load("gpus.yml")
    return {row["sku"]: _gpu(row) for vendor in ("nvidia", "amd", "intel") for row in data[vendor]}


def gpu(name: str) -> GpuModel:
    """Return one GPU model by its name in the facts or by its product name. Raises FactsError with near names."""
    known = gpus()
    sku = name if name in known else gpu_of_product(name)
    if sku is None:
        unsupported = _unsupported(name)
        if unsupported is not None:
            raise unsupported
        broken = f"; not read: {site_faults()[0]}" if site_faults() else ""
        raise FactsError(f'GPU model "{name}" is not in the facts{broken}', remedy=_gpu_hint(name))
    return known[sku]


def gpu_of_product(name: str) -> str | None:
    """Return the model whose product name is `name`, as nvidia-smi prints it; None for an unknown one.

    Older drivers print the name without "NVIDIA" before it, and people leave the vendor out.
    """
    return _products(site_folders()).get(_without_vendor(name))


def _without_vendor(name: str) -> str:
    first, _, rest = name.partition(" ")
    return rest if first in ("NVIDIA", "AMD", "Intel") else name


@cache
def _products(_places: tuple[str, ...]) -> dict[str, str]:
    return {_without_vendor(name): sku for sku, row in gpus().items() for name in row.names}


_NEAR = 3  # models that a hint names
# Words of product names that do not tell models apart. "Quadro" does: Quadro RTX 6000 and RTX 6000 Ada.
_BRANDS = frozenset({"nvidia", "amd", "intel", "tesla", "geforce", "instinct", "gpu"})
# Brands of which each has models of its own with a number of the others: Quadro RTX 6000 and RTX
# 6000 Ada.
_SERIES = frozenset({"geforce", "quadro"})
# Words that make another model of a name, as a single letter does: RTX 4090 D.
_VARIANTS = frozenset({"ti", "super", "max", "laptop", "mobile"})


def near_gpus(name: str) -> list[str]:
    """Return up to three models with a name near `name`, all of one architecture; empty if none is near.

    Vendor and brand are left out of the comparison, and the models must share the number in the
    name: H100 and GH200 have most letters in common and nothing else. A name of the same letters is
    the only one. A letter or word that makes another model is never taken off: L40G, and RTX 4090
    Laptop.
    """
    spelt = _spelt(name)
    own = _spelling(name)
    equal = {text: skus for text, skus in spelt.items() if squeezed(text) == squeezed(own)}
    number = _number(own)
    alike = {
        text: skus for text, skus in spelt.items() if number is not None and _number(text) == number
    }
    if number is not None and not alike:  # cut off ("A10" of "A100")
        alike = {
            text: skus for text, skus in spelt.items() if (_number(text) or "").startswith(number)
        }
    if not alike and number is not None and not equal:
        return []
    if not alike:
        alike = {text: spelt[text] for text in candidates(own, spelt)}
    begun = {
        text: skus for text, skus in alike.items() if begins(own, text) and len(text) > len(own)
    }
    begun = begun or {
        text: skus for text, skus in alike.items() if squeezed(text).startswith(squeezed(own))
    }
    same = {text: skus for text, skus in alike.items() if _variant(text) == _variant(own)}
    within = [text for text in same if begins(own, text) and len(text) < len(own)]
    whole = {text: same[text] for text in within if len(text) == max(map(len, within))}
    nearness: dict[str, float] = {}
    for text, skus in (equal or begun or whole or same).items():
        ratio = difflib.SequenceMatcher(None, own, text).ratio()
        nearness |= {sku: max(ratio, nearness.get(sku, 0)) for sku in skus}
    best = max(nearness.values(), default=0)
    least = 0 if begun and not equal else best - 0.1
    models = sorted(
        (sku for sku in nearness if nearness[sku] > least), key=lambda sku: -nearness[sku]
    )
    first = {gpus()[sku].architecture for sku in models if nearness[sku] == best}
    if len(first) != 1:
        return []
    return [sku for sku in models if gpus()[sku].architecture in first][:_NEAR]


def _spelt(name: str) -> dict[str, set[str]]:
    """Return the models by the spellings of their names, without those of another series than `name`."""
    letters, series = squeezed(_spelling(name)), _SERIES & {*_WORD.findall(name.casefold())}
    spellings: dict[str, set[str]] = {}
    for sku, row in gpus().items():
        for known in (sku, *row.names):
            spelling = _spelling(known)
            if series <= {*_WORD.findall(known.casefold())} or squeezed(spelling) == letters:
                spellings.setdefault(spelling, set()).add(sku)
    return spellings


_WORD = re.compile(r"rtx|[a-z]+\d*[a-z]*|\d+[a-z]*")


def _spelling(name: str) -> str:
    return " ".join(word for word in _WORD.findall(name.casefold()) if word not in _BRANDS)


def _variant(spelling: str) -> tuple[str, ...]:
    """Return what makes a model of several with one number: letters after it (s of "l40s"), and words."""
    words, number = spelling.split(), _number(spelling) or " "
    suffix = next((word.removeprefix(number) for word in words if word.startswith(number)), "")
    return suffix, *sorted(word for word in words if word in _VARIANTS or len(word) == 1)


def _number(spelling: str) -> str | None:
    """Return the digits of the first word with a digit that is no size, socket or revision: 100 of "h100 sxm5 80gb"."""
    for word in spelling.split():
        digits = re.fullmatch(r"[a-z]*?(\d+)[a-z]*", word)
        if digits and not re.fullmatch(r"sxm\d|\d+gb?|hbm\d[a-z]*|rev\d", word):
            return f"{word[: digits.start(1)]}{digits.group(1)}"
    return None


def _unsupported(name: str) -> FactsError | None:
    """Return the error of a product that goldnode does not support, None for another name."""
    words = set(_WORD.findall(name.casefold()))
    for row in load("gpus.yml")["not_supported"]:
        if words & {word.casefold() for word in row["names"]}:
            sources = "; ".join(str(origin) for origin in origins("gpus.yml", row["source"]))
            return FactsError(
                f"{name} is not supported: {row['reason']} ({sources})",
                remedy="keep such nodes out of the inventory of goldnode",
            )
    return None


def _gpu_hint(name: str) -> str:
    near = near_gpus(name)
    if near:
        return f"use {quoted(near)}"
    return "use a model of facts/gpus.yml or its product name, or add it to facts/gpus.yml of your catalog"


def _gpu(row: Mapping[str, Any]) -> GpuModel:
    mig = row.get("mig") or {}
    tables = tuple(mig.get("tables") or ())
    first = tuple(
        part.strip() for part in str(row.get("min_driver") or "").split("/") if part.strip()
    )
    return GpuModel(
        sku=row["sku"],
        vendor=row["vendor"],
        names=tuple(row.get("names") or ()),
        pci_ids=tuple(row["pci_ids"]),
        architecture=row["architecture"],
        compute_capability=row.get("compute_capability"),
        gfx=row.get("gfx"),
        memory_mib=row.get("memory_mib"),
        power_limit_default_w=row.get("power_limit_default_w"),
        mig_capable=mig.get("capable"),
        mig_profiles=_mig_profiles(mig, tables),
        mig_tables=tables,
        open_modules_required=row.get("open_modules_required"),
        open_modules_supported=row.get("open_modules_supported"),
        source=row["source"],
        min_driver=first,
        min_driver_date=row.get("min_driver_date"),
        possible_from=row.get("possible_from"),
        kernel_driver=row.get("kernel_driver"),
        min_kernel=row.get("min_kernel"),
        kernel_listed=row.get("kernel_listed"),
        kernel_unlisted=row.get("kernel_unlisted"),
        in_kernel=row.get("in_kernel"),
        compute_runtime=row.get("compute_runtime"),
        min_driver_branch=optional(str, row.get("min_driver_branch")),
        min_rocm=row.get("min_rocm"),
        min_amdgpu=row.get("min_amdgpu"),
        doubt=doubt(row),
        data_centre=row.get("data_centre"),
    )


def _mig_profiles(mig: Mapping[str, Any], tables: tuple[str, ...]) -> tuple[str, ...] | None:
    names = list(mig.get("profiles") or ())
    for table in load("gpus.yml")["mig_tables"] if tables else ():
        if table["id"] in tables:
            names += [row["name"] for row in table["profiles"]]
    if not names and mig.get("tables") is None and mig.get("profiles") is None:
        return None
    # "3g.93gb|3g.95gb": the sources have two spellings of one profile.
    return tuple(dict.fromkeys(part for name in names for part in name.split("|")))


@cache
def branch(name: str) -> Branch:
    """Return one NVIDIA driver branch ("535"). Raises FactsError with the nearest known one."""
    rows = {str(row["branch"]): row for row in load("nvidia_drivers.yml")["branches"]}
    if name not in rows:
        raise FactsError(
            f'NVIDIA driver branch "{name}" is not in the facts', remedy=nearest(name, rows)
        )
    row = rows[name]
    ends = tuple(
        (origins("nvidia_drivers.yml", key)[0], str(value))
        for key, value in (row.get("eol_sources") or {}).items()
    )
    return Branch(
        name=name,
        kind=row.get("type"),
        kind_origins=origins("nvidia_drivers.yml", _sources_of_kind(row["source"])),
        end_of_life=None if row.get("eol") is None else str(row["eol"]),
        end_of_life_sources=ends,
        latest_known=row.get("latest_known"),
        max_cuda=row.get("max_cuda"),
        open_kernel_modules=row["open_kernel_modules"],
        point_releases=tuple(str(item[0]) for item in row["point_releases"]),
        released={item[0]: item[1] for item in row["point_releases"] if item[1]},
        note=row.get("note"),
        conflict=row.get("conflict"),
        oldest_architecture=row["architectures"]["oldest"],
        newest_architecture=row["architectures"]["newest"],
        architecture_origins=origins("nvidia_drivers.yml", row["architectures"]["source"]),
        confidence=row.get("confidence"),
    )


def _sources_of_kind(keys: Any) -> list[str]:
    """Return the sources of a branch that name its kind: NVIDIA's lifecycle pages and endoflife.date, else all."""
    stated = [keys] if isinstance(keys, str) else list(keys)
    return [key for key in stated if key == "eol" or key.startswith("dds")] or stated


@cache
def branches() -> tuple[str, ...]:
    """Return the names of all NVIDIA driver branches, oldest first."""
    return tuple(str(row["branch"]) for row in load("nvidia_drivers.yml")["branches"])


@cache
def fixed_branches() -> tuple[str, ...]:
    """Return the branches that the newest security bulletin has fixes for, oldest first."""
    return tuple(
        str(row["branch"])
        for row in load("security.yml")["floor_per_branch"]
        if row["covers_newest_bulletin"]
    )


@cache
def security_floor(name: str) -> SecurityFloor:
    """Return the security floor of driver branch `name`. Raises FactsError for an unknown branch."""
    rows = {str(row["branch"]): row for row in load("security.yml")["floor_per_branch"]}
    if name not in rows:
        raise FactsError(
            f'NVIDIA driver branch "{name}" has no security facts', remedy=nearest(name, rows)
        )
    row = rows[name]
    return SecurityFloor(
        branch=name,
        floor=row["floor"],
        fixed=bool(row["covers_newest_bulletin"]),
        state=row["state"],
        bulletin=row["from_bulletin"],
        bulletin_date=row["bulletin_date"],
        origins=origins("security.yml", row["source"]),
    )


@cache
def floor_of(name: str) -> str | None:
    """Return the version of :func:`security_floor`, or None also for an unknown branch: no error with a hint is made."""
    rows = load("security.yml")["floor_per_branch"]
    return next((row["floor"] for row in rows if str(row["branch"]) == name), None)


def distribution(os: str) -> dict[str, Any] | None:
    """Return the row of an OS ("debian 12") in distros.yml, or None."""
    name = re.sub(r"[ .]", "", os)
    known: dict[str, Any] | None = next(
        (row for row in load("distros.yml")["distributions"] if row["id"] == name), None
    )
    return known


def release_of(codename: str) -> tuple[str, str]:
    """Return (``ubuntu``, ``24.04``) for the codename of a release. One without facts is Debian's: forky, sid."""
    rows = load("distros.yml")["distributions"]
    name = next((str(row["id"]) for row in rows if row.get("codename") == codename), "")
    parts = re.fullmatch(r"([a-z]+)(\d+)", name)
    if parts is None:
        return "debian", codename
    kind, number = parts.groups()
    return kind, f"{number[:2]}.{number[2:]}" if kind == "ubuntu" else number


@cache
def kernels_built() -> tuple[str, ...]:
    """Return every kernel in the build table, mainline series and exact versions, oldest first."""
    table = load("nvidia_drivers.yml")["kernel_build"]
    named = {part.strip() for row in table["entries"] for part in str(row["kernel"]).split("/")}
    return tuple(
        sorted(named | {str(row["kernel"]) for row in table["observed_builds"]}, key=numbers)
    )


@cache
def kernel_build(
    kernel: str,
    driver: str,
    flavour: ModuleFlavour = "proprietary",
    package: str | None = None,
    *,
    by_age: bool = True,
) -> KernelBuild:
    """Return whether NVIDIA driver version `driver` is known to build on `kernel` ("6.12.94+deb13-amd64").

    An observed build decides. Otherwise the driver fails if a change up to this kernel is known to
    break it, or if it predates the last part of its branch's fix. It builds if it has the whole fix
    for this series or a later one. The table covers upstream's sources: a distribution's patched
    package may build where this returns `fails`. `package` is the version of the Debian package of
    the proprietary module, revision included. The table lists the versions with patches. `by_age`:
    whether the age of a branch is a proof; what moves a node's kernel wants a better one.
    """
    table = load("nvidia_drivers.yml")["kernel_build"]
    wanted, version = numbers(kernel), numbers(driver)
    where = f"driver {driver} ({flavour}) on kernel {kernel}"
    for row in table["observed_builds"]:
        if (
            numbers(row["kernel"]) == wanted
            and row["driver"] == driver
            and row["flavour"] == flavour
        ):
            seen: Literal["ok", "fails"] = "ok" if row["builds"] else "fails"
            outcome = "was seen to build" if row["builds"] else "was seen to fail"
            return KernelBuild(
                seen, f"{where} {outcome}", "seen", origins("nvidia_drivers.yml", row["source"])
            )
    failure: KernelBuild | None = None
    proof: KernelBuild | None = None
    # Oldest change first: the reason names the earliest change that breaks the build.
    for row in sorted(table["entries"], key=lambda item: _points(item["kernel"])[-1]):
        reached = [point for point in _points(row["kernel"]) if _reaches(wanted, point)]
        source = origins("nvidia_drivers.yml", row["source"])
        patched = flavour == "proprietary" and package is not None
        if reached and patched and _patched(table["entries"], row, str(package)):
            reason = f"{where}: Debian's package {package} is patched for it"
            proof = KernelBuild("ok", reason, "stated", source)
            continue
        if reached and any(_names(item, driver, flavour) for item in row["known_to_fail"]):
            reason = f"{where} is known to fail since {_text(reached[0])}"
            return KernelBuild("fails", reason, "stated", source)
        if reached and failure is None:
            older = _older_than(row, version, flavour, _text(reached[0]))
            if older is not None:
                failure = KernelBuild("fails", f"{where} is older than {older}", "derived", source)
        proof = proof or _proof(row, wanted, version, flavour, where)
        if by_age:
            proof = proof or _proof_of_older(row, wanted, version, flavour, where)
    reason = f"no source says whether {where} builds"
    if wanted[:2] > max(_points(row["kernel"])[-1][:2] for row in table["entries"]):
        reason += f"; {read_until('nvidia_drivers.yml', 'kernels that drivers build on')}"
    return failure or proof or KernelBuild("unknown", reason, "derived", ())


def _older_than(
    row: Mapping[str, Any], version: tuple[int, ...], flavour: str, since: str
) -> str | None:
    """Return the version of the same branch that proves a failure on the kernel of `row`, and why; or None."""
    newer = [numbers(str(item)) for item in row["known_to_fail"] if _applies(str(item), flavour)]
    newer = [item for item in newer if item[:1] == version[:1] and item > version]
    if newer:
        return f"{_text(min(newer))}, which is known to fail since {since}"
    fixes = _fixes(row, version, flavour)
    # Several fixes of a branch are one fix in parts: the driver that has the last part is the first
    # that builds.
    if fixes and version < max(fixes):
        part = " and has a part of the fix only" if version >= min(fixes) else ""
        return f"{_text(max(fixes))}, the first of its branch that builds{part}"
    return None


def _proof(
    row: Mapping[str, Any],
    wanted: tuple[int, ...],
    version: tuple[int, ...],
    flavour: str,
    where: str,
) -> KernelBuild | None:
    """Return that the driver builds on kernel `wanted`, if its branch was changed for this series or a later one.

    A part of the fix for a later series is enough: the driver was made after the series before it.
    """
    series = _points(row["kernel"])[-1][:2]
    fixes = _fixes(row, version, flavour)
    own = series == wanted[:2]
    if series < wanted[:2] or not fixes or version < (max(fixes) if own else min(fixes)):
        return None
    since = max(fixes) if own else min(fixes)
    how = f"its branch was changed for {_text(series)}, a later kernel, in {_text(since)}"
    if own:
        how = f"its branch builds on {_text(series)} since {_text(since)}"
    return KernelBuild(
        "ok",
        f"{where}: {how}",
        "stated" if own else "derived",
        origins("nvidia_drivers.yml", row["source"]),
    )


# A branch is cut from the development tree this long before its first release at most.
_BEFORE_RELEASE = dt.timedelta(days=60)


def _proof_of_older(
    row: Mapping[str, Any],
    wanted: tuple[int, ...],
    version: tuple[int, ...],
    flavour: str,
    where: str,
) -> KernelBuild | None:
    """Return that the driver builds on kernel `wanted`, if its branch began after an older one had the change for it.

    A change reaches an older branch from the development tree, from which later branches start: some time before
    their first release, hence the margin.
    """
    series = _points(row["kernel"])[-1][:2]
    dates = _release_dates()
    start = dates.get(version[0], {}).get("first")
    if series < wanted[:2] or start is None:
        return None
    cut = start - _BEFORE_RELEASE
    for text in row["first_upstream_fixed"]:
        older = numbers(str(text))
        fixes = _fixes(row, older, flavour)
        if not fixes or older[0] >= version[0]:
            continue
        fixed = dates.get(older[0], {}).get(_text(max(fixes)))
        if fixed is not None and fixed < cut:
            reason = f"{where}: branch {version[0]} began on {start}, after {_text(max(fixes))} ({fixed}) was changed for {_text(series)}"
            return KernelBuild(
                "ok", reason, "derived", origins("nvidia_drivers.yml", row["source"])
            )
    return None


@cache
def _release_dates() -> dict[int, dict[str, dt.date]]:
    """Return the days of releases by branch and version, and that of each branch's first release, where they are known."""
    dates: dict[int, dict[str, dt.date]] = {}
    for row in load("nvidia_drivers.yml")["branches"]:
        releases = row.get("point_releases") or ()
        known = {
            _text(numbers(version)): dt.date.fromisoformat(date)
            for version, date, *_ in releases
            if date
        }
        # Without the day of its first release, a branch may have begun before any of the others.
        if releases and releases[0][1]:
            known["first"] = min(known.values())
        dates[int(row["branch"])] = known
    return dates


def _patched(entries: list[dict[str, Any]], row: Mapping[str, Any], package: str) -> bool:
    """Return whether Debian's `package` is patched for the series of `row` or a later one.

    A change that arrived in a stable update is not covered by patches of other rows, only by those
    of its own.
    """
    # A backport (~bpo) carries the patches of the revision that it is made from.
    release, _, revision = re.sub(r"~bpo.*$", "", package).partition("-")
    series = _points(row["kernel"])[-1]
    for other in entries:
        if other is not row and (len(series) > 2 or _points(other["kernel"])[-1][:2] < series[:2]):
            continue
        for listed in other.get("debian_patched", ()):
            version, _, first = str(listed).partition("-")
            if version == release and (not first or numbers(revision) >= numbers(first)):
                return True
    return False


@lru_cache(maxsize=8192)
def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparison: 535.309.01 gives (535, 309, 1)."""
    match = _NUMBERS.match(version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _text(version: tuple[int, ...]) -> str:
    first, *rest = version
    # Driver versions write two digits after the second dot (535.309.01); kernels do not.
    if first >= 100 and len(rest) == 2:
        return f"{first}.{rest[0]}.{rest[1]:02d}"
    return ".".join(str(part) for part in version)


def _points(text: str) -> list[tuple[int, ...]]:
    """Return every kernel a change arrived in, its mainline series last ("6.1.76 / 6.6.15 / 6.8")."""
    return [numbers(part.strip()) for part in str(text).split("/")]


def _reaches(kernel: tuple[int, ...], point: tuple[int, ...]) -> bool:
    """Return whether `kernel` has the change of `point`: a stable update counts for its own series only."""
    if len(point) > 2:
        return kernel[:2] == point[:2] and kernel >= point
    return kernel[:2] >= point


def _applies(item: str, flavour: str) -> bool:
    named = re.search(r"\((open|proprietary)\)", item)
    return named is None or named.group(1) == flavour


def _names(item: str, driver: str, flavour: str) -> bool:
    text = str(item)
    listed = text.split()[0]
    # "390.x" names every version of a branch.
    if listed.endswith(".x"):
        return driver.startswith(listed[:-1])
    return listed == driver and _applies(text, flavour)


def _fixes(row: Mapping[str, Any], version: tuple[int, ...], flavour: str) -> list[tuple[int, ...]]:
    """Return the versions of the branch of `version` that brought a part of the fix."""
    listed = [
        numbers(str(item)) for item in row["first_upstream_fixed"] if _applies(str(item), flavour)
    ]
    return [fix for fix in listed if fix[:1] == version[:1]]


def forget() -> None:
    """Clear values derived from the facts files, for callers that replace the facts (tests)."""
    for derived in (
        _gpus,
        _products,
        branch,
        branches,
        fixed_branches,
        security_floor,
        floor_of,
        kernels_built,
        kernel_build,
        _release_dates,
        generation,
    ):
        derived.cache_clear()


@cache
def generation() -> object:
    """Return a token of the facts that are derived now: another one after `forget`."""
    return object()


def release_numbers(version: str) -> str:
    """Return the leading numbers of a package version: ``5:26.1.5+dfsg1-9`` gives ``26.1.5``, and ``2.3b-1`` gives ``2.3``."""
    leading = re.match(r"(?:\d+:)?([0-9]+(?:\.[0-9]+)*)", version)
    return leading.group(1) if leading else version
