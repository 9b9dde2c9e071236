"""Consistency checks of the facts: every row has a source, and no two rows contradict each other.

The facts must also cover every GPU model, driver branch and OS release of the catalog.

The checks read a directory of facts files, so that tests can pass in broken copies. A disagreement
between sources is not a fault if the row documents it (`conflict`, `note`). This module contains no
versions: it compares the facts with each other.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.catalog.models import AUTO
from goldnode.core import yamlsource
from goldnode.core.errors import FactsError, nearest
from goldnode.facts import host as facts
from goldnode.facts import mig, site
from goldnode.facts.models import FILES, module_build_key
from goldnode.node.ground.json_lines import as_rows
from goldnode.node.ground.optional import optional
from goldnode.node.state.debversion import compare

if TYPE_CHECKING:
    from goldnode.catalog.load import Catalog

Facts = Mapping[str, Any]

# Allowed first words of `confidence`; free text may follow.
CONFIDENCE = ("high", "medium", "low", "derived")

# Fields of a GPU whose source is stated under another key (`source: {memory_power: smi}`).
_STATED_BY = {
    "names": "names",
    "pci_ids": "pci_ids",
    "compute_capability": "cc",
    "memory_mib": ("memory_power", "memory"),
    "power_limit_default_w": ("memory_power", "power"),
    "pcie": "pcie",
    "nvlink_links": "nvlink",
    "ecc_default": "ecc",
    "min_driver": "min_driver",
    "min_driver_branch": "min_driver",
    "min_cuda_native": "min_cuda",
    "gfx": "gfx",
    "min_rocm": "min_rocm",
}


@dataclass(frozen=True)
class FactsFault:
    """One fault in the facts: file, line (from 1; 0 for the whole file), and message."""

    file: str
    line: int
    message: str
    remedy: str = "correct the row by its source"

    def error(self) -> FactsError:
        """Return the fault as the error that a command prints."""
        return FactsError(
            self.message,
            file=self.file if "/" in self.file else f"facts/{self.file}",
            line=self.line or None,
            remedy=self.remedy,
        )


@lru_cache(maxsize=32)
def _read(name: str, text: str) -> yamlsource.YamlSource:
    """Parse a facts file, cached by content.

    Parsing takes most of the time, and a directory of a test differs in few files.
    """
    return yamlsource.parse(text, Path("facts") / name, error=FactsError)


class _Folder:
    """One directory of facts files, each parsed once, with the line of every key."""

    def __init__(self, directory: Path) -> None:
        self.sources = {
            path.name: _read(path.name, facts.decoded(path.name, path.read_bytes()))
            for path in sorted(directory.glob("*.yml"))
        }
        self.faults: list[FactsFault] = []

    def __getitem__(self, name: str) -> Any:
        return self.sources[name].data

    def check_forms(self) -> None:
        """Validate each file against its model; the first fault of each is reported."""
        for name, source in self.sources.items():
            try:
                yamlsource.validate(FILES[name], source, error=FactsError)
            except FactsError as error:
                self.faults.append(
                    FactsFault(
                        name, error.line or 0, error.message, error.remedy or FactsFault.remedy
                    )
                )
            except KeyError:
                self.faults.append(
                    FactsFault(
                        name, 0, "this facts file has no model", "add one to facts/models.py, FILES"
                    )
                )

    def report(
        self, file: str, path: Iterable[str | int], message: str, remedy: str = FactsFault.remedy
    ) -> None:
        self.faults.append(FactsFault(file, self.sources[file].line(tuple(path)), message, remedy))


def faults(directory: Path = facts.FACTS) -> list[FactsFault]:
    """Return all faults of the facts files in `directory`, in order of file and line.

    Raises FactsError for a file that is not UTF-8, for invalid YAML, and for a duplicate key in a
    mapping.
    """
    folder = _Folder(directory)
    folder.check_forms()
    # The checks below rely on the form of every row.
    for check in () if folder.faults else _CHECKS:
        check(folder)
    return sorted(folder.faults, key=lambda fault: (fault.file, fault.line, fault.message))


class _Extended(_Folder):
    """goldnode's facts with the rows of catalogs; only faults of those rows are recorded."""

    def __init__(self, places: tuple[str, ...]) -> None:
        super().__init__(facts.FACTS)
        self.merged = {name: source.data for name, source in self.sources.items()}
        # Where an added row stands: by file, section and index, its own file and index.
        self.added: dict[tuple[str, str, int], tuple[yamlsource.YamlSource, int]] = {}
        for path in site.files(places):
            try:
                source = site.read(path)
                self.merged[path.name] = site.merged(self.merged[path.name], source)
            except FactsError:
                continue  # `facts.site_faults` reports it
            # A merged section has the built-in rows too: record which rows are the catalog's.
            for section, key in site.SECTIONS[path.name].items():
                rows = [key(row) for row in self.merged[path.name][section]]
                for index, row in enumerate(source.data.get(section) or ()):
                    self.added[path.name, section, rows.index(key(row))] = (source, index)

    def __getitem__(self, name: str) -> Any:
        return self.merged[name]

    def report(
        self, file: str, path: Iterable[str | int], message: str, remedy: str = FactsFault.remedy
    ) -> None:
        section, index, *rest = [*path, None, None][: max(2, len(tuple(path)))]
        added = self.added.get((file, str(section), index)) if isinstance(index, int) else None
        if added is not None:
            source, own = added
            line = source.line((str(section), own, *(part for part in rest if part is not None)))
            self.faults.append(FactsFault(str(source.file), line, message, remedy))


def site_faults() -> list[FactsFault]:
    """Return the faults of the rows that catalogs add to the facts, judged together with goldnode's own rows."""
    if not facts.site_folders():
        return []
    folder = _Extended(facts.site_folders())
    # Without added rows there is nothing to record: goldnode's own are checked by its tests.
    for check in _CHECKS if folder.added else ():
        check(folder)
    return folder.faults


def catalog_faults(catalog: Catalog) -> list[FactsError]:
    """Return one error per GPU model, driver branch and OS of `catalog` that the facts do not cover."""
    errors: list[FactsError] = []
    # The id has no dot (ubuntu2404); the name has the version ("Ubuntu 24.04 LTS").
    systems = {
        (row["id"].rstrip("0123456789"), row["name"].split()[1])
        for row in facts.load("distros.yml")["distributions"]
    }
    for name, entry in sorted(catalog.stacks.items()):
        stack = entry.item
        if (stack.os.id, stack.os.version) not in systems:
            errors.append(
                FactsError(
                    f"stack {name}: facts/distros.yml has no row for {stack.os.id} {stack.os.version}",
                    file=entry.file,
                )
            )
        if stack.driver is not None and stack.driver.branch is not None:
            errors.extend(_known(name, "stack", stack.driver.branch, facts.branch, entry.file))
            errors.extend(
                _known(name, "stack", stack.driver.branch, facts.security_floor, entry.file)
            )
    for name, klass in sorted(catalog.classes.items()):
        if klass.item.gpu is not None and klass.item.gpu.model != AUTO:
            errors.extend(_known(name, "class", klass.item.gpu.model, facts.gpu, klass.file))
    for name, platform in sorted(catalog.platforms.items()):
        for model in platform.item.gpus.models if platform.item.gpus is not None else ():
            errors.extend(_known(name, "platform", model, facts.gpu, platform.file))
    return errors


def _known(
    owner: str, kind: str, name: str, ask: Callable[[str], Any], file: Path
) -> Iterator[FactsError]:
    try:
        row = ask(name)
    except FactsError as error:
        yield FactsError(f"{kind} {owner}: {error.message}", file=file, remedy=error.remedy)
        return
    of_intel = isinstance(row, facts.GpuModel) and row.vendor == "intel"  # neither name applies
    if isinstance(row, facts.GpuModel) and not (row.compute_capability or row.gfx or of_intel):
        yield FactsError(
            f"{kind} {owner}: the facts know neither compute capability nor gfx name of {name}",
            file=file,
        )


# ---- form


def _form(folder: _Folder) -> None:
    """Check the form of each file: the dates in `meta`, dangling and unused sources, dates and doubts."""
    for file in folder.sources:
        data = folder[file]
        meta = data["meta"]
        for lists, until in meta.get("complete_until", {}).items():
            if until > meta["compiled"]:
                folder.report(
                    file,
                    ("meta", "complete_until", lists),
                    f"the list of {lists} is complete until {until}, after the file was compiled on "
                    f"{meta['compiled']}",
                    "state the day up to which it was read",
                )
        table = data["sources"]
        used: set[str] = set()
        for path, value in _mappings(data):
            for key, inner in value.items():
                if key == "source" or str(key).endswith("_source"):
                    used |= set(site.leaves(inner))
                elif key == "eol_sources":
                    used |= set(inner)
            for bad in site.stated_sources(value) - set(table):
                folder.report(
                    file,
                    path,
                    f'source "{bad}" is not in the table of sources',
                    site.source_remedy(bad, table),
                )
            _doubts(folder, file, path, value)
        for key in set(table) - used:
            folder.report(file, ("sources", key), f'source "{key}" is stated by no row')
        for name, section in data.items():
            if name not in ("meta", "sources"):
                _covered(folder, file, (name,), section, False)


def _mappings(
    value: Any, path: yamlsource.KeyPath = ()
) -> Iterator[tuple[yamlsource.KeyPath, dict[str, Any]]]:
    """Yield every mapping below `value` with its path, except `meta` and the table of sources."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            if path or key not in ("sources", "meta"):
                yield from _mappings(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _mappings(inner, (*path, index))


def _covered(folder: _Folder, file: str, path: yamlsource.KeyPath, value: Any, above: bool) -> None:
    """Report rows that have no source, neither their own nor that of an enclosing row.

    `source: null` means "nothing found". Such a row needs a note about that, or holds no value.
    """
    if isinstance(value, dict):
        if "source" in value and value["source"] is None:
            held = [
                key
                for key, inner in value.items()
                if key not in ("source", "note", "id", "see") and inner is not None
            ]
            if value.get("note") is None and held:
                folder.report(file, path, f"the row has no source but states {', '.join(held)}")
            return
        above = above or "source" in value
        rows: Iterable[tuple[str | int, Any]] = value.items()
        if not above and not any(isinstance(inner, dict | list) for inner in value.values()):
            folder.report(file, path, "the row has no source")
            return
    elif isinstance(value, list):
        rows = enumerate(value)
        if not above and any(not isinstance(inner, dict | list) for inner in value):
            folder.report(file, path, "the list has no source")
            return
    else:
        return
    for key, inner in rows:
        if isinstance(inner, dict | list) and key not in ("source", "eol_sources", "not_found"):
            _covered(folder, file, (*path, key), inner, above)


_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?(\D|$)")


def _doubts(folder: _Folder, file: str, path: yamlsource.KeyPath, row: Mapping[str, Any]) -> None:
    confidence = row.get("confidence", "high")
    if re.split(r"\W", confidence, maxsplit=1)[0] not in CONFIDENCE:
        folder.report(
            file, path, f"confidence {confidence!r} begins with none of {', '.join(CONFIDENCE)}"
        )
    for key in ("conflict", "note"):
        if key in row and not (isinstance(row[key], str) and row[key].strip()):
            folder.report(file, path, f"{key} is {row[key]!r}, not a sentence")
    for key in row.get("unverified") or ():
        if row.get(key) is not None:
            folder.report(file, path, f"{key} is stated and unverified at once")
    for key in ("date", "release_date", "eol", "released", "bulletin_date", "latest_known_date"):
        if row.get(key) is not None and not _DATE.match(str(row[key])):
            folder.report(
                file, path, f"{key} is {row[key]!r}, not a date", "write YYYY-MM-DD or YYYY-MM"
            )


# ---- the same thing twice


def _twice(folder: _Folder) -> None:
    """Check that no list has two rows for the same thing."""
    lists: list[tuple[str, yamlsource.KeyPath, Callable[[Any], Any]]] = [
        ("cuda.yml", ("releases",), lambda row: row["version"]),
        ("cuda.yml", ("driver_minimum_per_major",), lambda row: row["major"]),
        ("cuda.yml", ("forward_compat", "entries"), lambda row: row["cuda"]),
        ("nvidia_drivers.yml", ("branches",), lambda row: row["branch"]),
        ("nvidia_drivers.yml", ("kernel_build", "entries"), lambda row: row["kernel"]),
        (
            "nvidia_drivers.yml",
            ("kernel_build", "observed_builds"),
            lambda row: (row["kernel"], row["driver"], row["flavour"]),
        ),
        ("module_builds.yml", ("builds",), module_build_key),
        ("security.yml", ("floor_per_branch",), lambda row: row["branch"]),
        ("security.yml", ("bulletins",), lambda row: row["bulletin"]),
        ("known_bad.yml", ("known_bad",), lambda row: row["id"]),
        ("distros.yml", ("distributions",), lambda row: row["id"]),
        ("container_toolkit.yml", ("releases", "entries"), lambda row: row[0]),
        ("cudnn_nccl.yml", ("cudnn_matrix",), lambda row: (row["cudnn"], row.get("package"))),
        ("cudnn_nccl.yml", ("image_pairing", "entries"), lambda row: row["cuda_image"]),
        ("frameworks.yml", ("torch_wheels",), lambda row: row["version"]),
        ("frameworks.yml", ("torch_builds",), lambda row: row["release"]),
        ("frameworks.yml", ("tensorflow",), lambda row: row["version"]),
        ("frameworks.yml", ("jax_plugins",), lambda row: (row["plugin"], row["version"])),
        ("frameworks.yml", ("vllm",), lambda row: row["version"]),
        ("rocm.yml", ("releases",), lambda row: row["version"]),
        ("rocm.yml", ("amdgpu_driver", "releases"), lambda row: row[0]),
    ]
    lists += [
        ("cudnn_nccl.yml", ("wheels", key), lambda row: row[0])
        for key in folder["cudnn_nccl.yml"]["wheels"]
        if "_cu" in key
    ]
    lists += [
        ("gpus.yml", (vendor,), lambda row: row["sku"]) for vendor in ("nvidia", "amd", "intel")
    ]
    for file, path, name in lists:
        rows = folder[file]
        for key in path:
            rows = rows[key]
        seen: dict[str, int] = {}
        for index, row in enumerate(rows):
            what = str(name(row))
            if what in seen:
                folder.report(
                    file,
                    (*path, index),
                    f"{'.'.join(map(str, path))} has two rows for {what}",
                    "remove or rename one of them",
                )
            seen[what] = index
    # Two models may share a PCI id, but a note has to document it.
    owners = Counter(
        item
        for vendor in ("nvidia", "amd", "intel")
        for row in folder["gpus.yml"][vendor]
        for item in row["pci_ids"]
    )
    for vendor in ("nvidia", "amd", "intel"):
        for index, row in enumerate(folder["gpus.yml"][vendor]):
            shared = [item for item in row["pci_ids"] if owners[item] > 1]
            others = [
                other for other in folder["gpus.yml"][vendor] if set(shared) & set(other["pci_ids"])
            ]
            if shared and not any("shared" in str(other.get("note")) for other in others):
                folder.report(
                    "gpus.yml",
                    (vendor, index),
                    f"PCI id {shared[0]} is of two models, and no note explains it",
                )


# ---- CUDA


def _cuda(folder: _Folder) -> None:
    """Check each release's driver minimum, bundled drivers against branches, and forward compatibility."""
    data, branches = (
        folder["cuda.yml"],
        {str(row["branch"]): row for row in folder["nvidia_drivers.yml"]["branches"]},
    )
    majors = {str(row["major"]): row for row in data["driver_minimum_per_major"]}
    for index, row in enumerate(data["driver_minimum_per_major"]):
        if str(row["min_branch"]) != row["min_driver_minor_version_compat"].split(".")[0]:
            folder.report(
                "cuda.yml",
                ("driver_minimum_per_major", index),
                "min_branch is not the branch of the minimum driver",
            )
    native: dict[str, str] = {}
    for index, row in enumerate(data["releases"]):
        path = ("releases", index)
        major = majors.get(_minor(row["version"]).split(".")[0])
        least = row["min_driver_minor_version_compat"]
        if major is None:
            folder.report(
                "cuda.yml", path, f"CUDA {row['version']}: its major has no driver minimum"
            )
        # A minor may need more than its major, if a note explains it: the driver that it bundles.
        elif least != major["min_driver_minor_version_compat"] and not (
            "note" in row and least == _oldest_bundled(data, row["version"])
        ):
            folder.report(
                "cuda.yml",
                path,
                f"CUDA {row['version']} needs driver {least}, but its major "
                f"{major['min_driver_minor_version_compat']}",
            )
        bundled = row["bundled_driver"]
        if bundled is None:
            continue
        branch = bundled.split(".")[0]
        native.setdefault(_minor(row["version"]), branch)
        if branch not in branches:
            folder.report(
                "cuda.yml",
                path,
                f"CUDA {row['version']} bundles driver {bundled}, whose branch has no row",
            )
        elif branches[branch]["max_cuda"] != _minor(row["version"]):
            folder.report(
                "cuda.yml",
                path,
                f"CUDA {row['version']} bundles driver {bundled}, but branch {branch} knows CUDA up to "
                f"{branches[branch]['max_cuda']}",
            )
        if _below(bundled, least):
            folder.report(
                "cuda.yml",
                path,
                f"CUDA {row['version']} bundles driver {bundled}, older than its minimum {least}",
            )
    ordered = sorted(
        (row for row in branches.values() if row["max_cuda"]), key=lambda row: int(row["branch"])
    )
    # A later branch runs at least the CUDA of an earlier one, so less is a mistake.
    for older, newer in itertools.pairwise(ordered):
        if _below(newer["max_cuda"], older["max_cuda"]):
            folder.report(
                "nvidia_drivers.yml",
                ("branches", folder["nvidia_drivers.yml"]["branches"].index(newer)),
                f"branch {newer['branch']} knows less CUDA than {older['branch']}",
            )
    for index, row in enumerate(data["forward_compat"]["entries"]):
        place = ("forward_compat", "entries", index)
        least = int(majors[row["cuda"].split(".")[0]]["min_branch"])
        package, minor = (
            row["of_which_need_cuda_compat"],
            row["of_which_run_by_minor_version_compat"],
        )
        if sorted([*package, *minor]) != sorted(row["older_driver_branches_accepted_by_image"]):
            folder.report(
                "cuda.yml",
                place,
                f"CUDA {row['cuda']}: the two lists of branches are not the list of the image",
            )
        if [branch for branch in package if branch >= least] or [
            branch for branch in minor if branch < least
        ]:
            folder.report(
                "cuda.yml",
                place,
                f"CUDA {row['cuda']}: minor-version compatibility begins with branch {least}, the lists "
                "say else",
            )
        if row["compat_package"] != f"cuda-compat-{row['cuda'].replace('.', '-')}":
            folder.report(
                "cuda.yml",
                place,
                f"CUDA {row['cuda']}: the package is called {row['compat_package']}",
            )
        if native.get(row["cuda"]) != str(row["native_driver_branch_first"]):
            folder.report(
                "cuda.yml",
                place,
                f"CUDA {row['cuda']} is native from branch {row['native_driver_branch_first']}, but "
                f"bundles {native.get(row['cuda'])}",
            )


def _oldest_bundled(data: Facts, version: str) -> str | None:
    """Return the oldest driver bundled with the minor release of `version`."""
    drivers = [
        row["bundled_driver"]
        for row in data["releases"]
        if _minor(row["version"]) == _minor(version) and row["bundled_driver"]
    ]
    return min(drivers, key=_numbers, default=None)


def _architectures(folder: _Folder) -> None:
    """Check the table of architectures: unique capabilities, and agreement with GPUs, branches and rules."""
    data, drivers, gpus = folder["cuda.yml"], folder["nvidia_drivers.yml"], folder["gpus.yml"]
    order = [name.casefold() for name in drivers["rules"]["architectures"]["oldest_first"]]
    rows: dict[str, Mapping[str, Any]] = {}
    for index, row in enumerate(data["architectures"]):
        for cc in row["cc"]:
            if cc in rows:
                folder.report(
                    "cuda.yml",
                    ("architectures", index),
                    f"compute capability {cc} is of {row['arch']} and of {rows[cc]['arch']}",
                )
            rows[cc] = row
        first, last = row["first_cuda"], _first_number(row["last_cuda"])
        if first and last and _below(last, first):
            folder.report(
                "cuda.yml",
                ("architectures", index),
                f"{row['arch']}: last CUDA {last} is older than the first, {first}",
            )
    limits = drivers["rules"]["open_modules"]
    first, required = (
        order.index(limits[key].casefold())
        for key in ("first_architecture", "required_from_architecture")
    )
    for index, gpu in enumerate(gpus["nvidia"]):
        path, name, cc = ("nvidia", index), gpu["sku"], gpu["compute_capability"]
        ours = rows.get(cc)
        if ours is None:
            folder.report(
                "gpus.yml",
                path,
                f"{name}: compute capability {cc} is in no row of cuda.yml's architectures",
            )
            continue
        if ours["arch"].split(" (")[0] != gpu["architecture"]:
            folder.report(
                "gpus.yml",
                path,
                f"{name} is {gpu['architecture']}, but compute capability {cc} is of {ours['arch']} in "
                "cuda.yml",
            )
        if gpu["min_cuda_native"] != ours["first_cuda"]:
            folder.report(
                "gpus.yml",
                path,
                f"{name}: first CUDA {gpu['min_cuda_native']}, but {ours['first_cuda']} in cuda.yml",
            )
        rank = None
        if gpu["architecture"].casefold() in order:
            rank = order.index(gpu["architecture"].casefold())
        if rank is None:
            folder.report(
                "gpus.yml",
                path,
                f"{name}: architecture {gpu['architecture']} has no place in nvidia_drivers.yml's order",
            )
        else:
            if (rank >= required and gpu.get("open_modules_required") is False) or (
                rank < first and gpu.get("open_modules_required")
            ):
                folder.report(
                    "gpus.yml", path, f"{name}: open_modules_required contradicts its architecture"
                )
            if (rank >= first and gpu.get("open_modules_supported") is False) or (
                rank < first and gpu.get("open_modules_supported")
            ):
                folder.report(
                    "gpus.yml", path, f"{name}: open_modules_supported contradicts its architecture"
                )
    for index, branch in enumerate(drivers["branches"]):
        oldest = branch["architectures"]["oldest"].casefold()
        for row in data["architectures"]:
            name = row["arch"].casefold()
            if row["last_driver_branch"] is None or name not in order or oldest not in order:
                continue
            driven = order.index(name) >= order.index(oldest)
            if driven != (int(branch["branch"]) <= row["last_driver_branch"]):
                folder.report(
                    "nvidia_drivers.yml",
                    ("branches", index),
                    f"branch {branch['branch']} drives {branch['architectures']['oldest']} and later, but "
                    f"cuda.yml says that {row['last_driver_branch']} is the last for {row['arch']}",
                )
        modules = str(branch["open_kernel_modules"])
        if modules.startswith("not") != (int(branch["branch"]) < limits["first_branch"]):
            folder.report(
                "nvidia_drivers.yml",
                ("branches", index),
                f"branch {branch['branch']}: open modules contradict rules.open_modules",
            )
        if ("only" in modules) != (int(branch["branch"]) >= limits["only_flavour_from_branch"]):
            folder.report(
                "nvidia_drivers.yml",
                ("branches", index),
                f"branch {branch['branch']}: the only flavour contradicts rules.open_modules",
            )


def _gpus(folder: _Folder) -> None:
    """Check that a GPU's values have sources, and that its driver minimum agrees with the other tables."""
    data, drivers = folder["gpus.yml"], folder["nvidia_drivers.yml"]
    listed = {}
    for names, version in drivers["first_driver_listing_gpu"]["entries"].items():
        for name in re.split(r"\s*/\s*", names):
            listed[_normalised_name(name)] = str(version)
    needed = {
        _normalised_name(row["gpu"].removeprefix("HGX ")): row["min_driver"]
        for row in drivers["operator_minimum"]
    }
    for vendor in ("nvidia", "amd", "intel"):
        for index, gpu in enumerate(data[vendor]):
            path, name = (vendor, index), gpu["sku"]
            for field, by in _STATED_BY.items():
                keys = by if isinstance(by, tuple) else (by,)
                if gpu.get(field) not in (None, []) and all(
                    gpu["source"].get(key) is None for key in keys
                ):
                    folder.report("gpus.yml", path, f"{name}: {field} is stated without a source")
            support = gpu.get("mig") or {}
            if (support.get("profiles") or support.get("tables")) and not support.get("capable"):
                folder.report(
                    "gpus.yml", path, f"{name} has MIG profiles, and is not capable of MIG"
                )
            for table in support.get("tables") or ():
                if all(row["id"] != table for row in data["mig_tables"]):
                    folder.report("gpus.yml", path, f'{name}: there is no MIG table "{table}"')
            if gpu.get("memory_gib") is not None and gpu["memory_gib"] * 1024 != gpu["memory_mib"]:
                folder.report(
                    "gpus.yml",
                    path,
                    f"{name}: {gpu['memory_gib']} GiB are not {gpu['memory_mib']} MiB",
                )
            if vendor != "nvidia" or gpu["min_driver"] is None:
                continue
            least = str(gpu["min_driver"])
            if not least.startswith(str(gpu["min_driver_branch"])):
                folder.report(
                    "gpus.yml",
                    path,
                    f"{name}: driver {least} is not of branch {gpu['min_driver_branch']}",
                )
            short = _normalised_name(name)
            # operator_minimum takes precedence; the other table counts only for GPUs that it does
            # not list.
            for table, rows in (("operator_minimum", needed), ("first_driver_listing_gpu", listed)):
                alike = [key for key in rows if short.startswith(key)]
                # The longest name that fits: the tables have "H100 SXM" and "H100 SXM5 94GB".
                stated = rows[max(alike, key=len)] if alike else None
                if stated and stated in str(gpu.get("conflict")):
                    continue  # the row itself names this version as that of a source that disagrees
                if stated and table == "operator_minimum" and stated != least:
                    folder.report(
                        "gpus.yml", path, f"{name}: driver {least} here, {stated} in {table}"
                    )
                if (
                    stated
                    and table == "first_driver_listing_gpu"
                    and stated != least
                    and not any(short.startswith(key) for key in needed)
                ):
                    folder.report(
                        "gpus.yml", path, f"{name}: driver {least} here, {stated} in {table}"
                    )
    families = {
        item: gfx
        for items, gfx in folder["rocm.yml"]["gfx_of_gpu"].items()
        if items != "source"
        for item in items.split("/")
    }
    for index, gpu in enumerate(data["amd"]):
        if families.get(gpu["sku"]) != gpu["gfx"]:
            folder.report(
                "gpus.yml",
                ("amd", index),
                f"{gpu['sku']} is {gpu['gfx']} here, {families.get(gpu['sku'])} in rocm.yml",
            )


def _mig_tables(folder: _Folder) -> None:
    """Check that each MIG profile stays on its board, and that as many instances of it fit as its row says."""
    for index, row in enumerate(folder["gpus.yml"]["mig_tables"]):
        table, path = mig.table(row), ("mig_tables", index)
        for profile in table.profiles:
            name = profile.names[0]
            for start in profile.starts:
                if start + profile.size > table.memory_slices:
                    folder.report(
                        "gpus.yml",
                        path,
                        f"{table.id}: {name} from memory slice {start} on ends beyond the "
                        f"{table.memory_slices} of the board",
                    )
            if mig.placement(table, [profile] * profile.instances) is None:
                folder.report(
                    "gpus.yml",
                    path,
                    f"{table.id}: {profile.instances} instances of {name} do not fit",
                )


def _normalised_name(name: str) -> str:
    """Return a GPU's name without brand words and punctuation, to match tables that spell it differently."""
    return re.sub(
        r"[^a-z0-9]", "", re.sub(r"(?i)blackwell|geforce|hgx", "", name.split(" (")[0]).casefold()
    )


# ---- drivers


def _branches(folder: _Folder) -> None:
    """Check point releases, ends of life, and the branches that `meta` lists as supported now."""
    data = folder["nvidia_drivers.yml"]
    compiled = data["meta"]["compiled"]
    for index, row in enumerate(data["branches"]):
        name, path = str(row["branch"]), ("branches", index)
        versions = [str(item[0]) for item in row["point_releases"]]
        for version in [*versions, *([row["latest_known"]] if row["latest_known"] else [])]:
            if version.split(".")[0] != name:
                folder.report(
                    "nvidia_drivers.yml", path, f"{version} is no release of branch {name}"
                )
        if row["latest_known"] and str(row["latest_known"]) not in versions:
            folder.report(
                "nvidia_drivers.yml",
                path,
                f"branch {name}: {row['latest_known']} is not among its point releases",
            )
        for item in row["point_releases"]:
            if item[2] not in data["sources"] and "see security.yml" not in item[2]:
                folder.report(
                    "nvidia_drivers.yml",
                    path,
                    f'{item[0]}: source "{item[2]}" is not in the table of sources',
                )
        ends = {str(value) for value in row["eol_sources"].values()}
        if (row["eol"] is None) != (not ends) or (
            row["eol"] is not None and str(row["eol"]) not in ends
        ):
            folder.report(
                "nvidia_drivers.yml",
                path,
                f"branch {name}: end of life {row['eol']} is stated by none of its sources",
            )
        # Sources that name only the month agree with any day of it.
        if len({end[:7] for end in ends}) > 1 and not (row.get("conflict") or row.get("note")):
            folder.report(
                "nvidia_drivers.yml",
                path,
                f"branch {name}: sources give the ends {', '.join(sorted(ends))}, and no note explains it",
            )
    rows = {str(row["branch"]): row for row in data["branches"]}
    for kind, branch in data["meta"]["supported_now"].items():
        row = rows.get(str(branch))
        if (
            row is None
            or row["type"] != kind
            # By month, since some sources do not state the day.
            or (row["eol"] is not None and str(row["eol"])[:7] < compiled[:7])
        ):
            folder.report(
                "nvidia_drivers.yml",
                ("meta",),
                f"meta says that {kind} {branch} is supported now, its row does not",
            )


def _security(folder: _Folder) -> None:
    """Check that floors follow from the bulletins and are not above the newest known release."""
    data, drivers = folder["security.yml"], folder["nvidia_drivers.yml"]
    newest = str(max(data["bulletins"], key=lambda row: row["date"])["bulletin"])
    if not str(data["meta"]["newest_bulletin"]).startswith(newest):
        folder.report(
            "security.yml",
            ("meta",),
            f"the newest bulletin is {newest}, meta says {data['meta']['newest_bulletin']}",
        )
    branches = {str(row["branch"]): row for row in drivers["branches"]}
    floors = {str(row["branch"]): row for row in data["floor_per_branch"]}
    for name in branches:
        if name not in floors:
            folder.report(
                "security.yml", ("floor_per_branch",), f"branch {name} has no security floor"
            )
    for index, row in enumerate(data["floor_per_branch"]):
        name, path = str(row["branch"]), ("floor_per_branch", index)
        # A floor is the highest fixed version in any bulletin; recompute it from them.
        fixes = [
            (str(bulletin["fixed_linux_tesla"][name]), str(bulletin["bulletin"]), bulletin["date"])
            for bulletin in data["bulletins"]
            if name in bulletin["fixed_linux_tesla"]
        ]
        floor = optional(str, row["floor"])
        stated = (floor, row["from_bulletin"], row["bulletin_date"])
        expected = max(
            fixes, key=lambda fix: (_numbers(fix[0]), fix[2]), default=(None, None, None)
        )
        if stated != expected:
            folder.report(
                "security.yml",
                path,
                f"branch {name}: floor {stated} here, {expected} by the bulletins",
            )
        if row["covers_newest_bulletin"] != (row["from_bulletin"] == newest):
            folder.report(
                "security.yml",
                path,
                f"branch {name}: covers_newest_bulletin contradicts from_bulletin",
            )
        if row["covers_newest_bulletin"] != (row["state"] == "current"):
            folder.report(
                "security.yml",
                path,
                f'branch {name}: state "{row["state"]}" contradicts covers_newest_bulletin',
            )
        if name not in branches:
            folder.report("security.yml", path, f"branch {name} has no row in nvidia_drivers.yml")
            continue
        latest, ends = branches[name]["latest_known"], branches[name]["eol"]
        if floor and latest and _below(str(latest), floor) and not row.get("note"):
            folder.report(
                "security.yml",
                path,
                f"branch {name}: its newest release {latest} is below its floor {floor}",
            )
        reported = row["branch_eol"]
        if (
            reported
            and re.match(r"\d{4}-\d{2}$", str(reported))
            and ends
            and str(ends)[:7] != reported
        ):
            folder.report(
                "security.yml",
                path,
                f"branch {name} ends {reported} here, {ends} in nvidia_drivers.yml",
            )
    unfixed = {name for name, row in floors.items() if str(row["state"]).startswith("unfixed")}
    for index, bad in enumerate(folder["known_bad.yml"]["known_bad"]):
        if bad["id"] == "driver-eol-unfixed":
            named = {str(item) for item in bad["when"]["driver_branch"]}
            if named != unfixed:
                differs = ", ".join(sorted(named ^ unfixed))
                folder.report(
                    "known_bad.yml",
                    ("known_bad", index),
                    f"driver-eol-unfixed and the floors disagree about {differs}",
                )


def _builds(folder: _Folder) -> None:
    """Check the kernel build table against itself, observed builds, and the known-bad list."""
    table = folder["nvidia_drivers.yml"]["kernel_build"]
    rows = {str(row["kernel"]): row for row in table["entries"]}
    for index, row in enumerate(table["entries"]):
        fixed = {str(item) for item in row["first_upstream_fixed"]}
        # A driver with a part of its branch's fix may fail; the one with the last part must not.
        both = _last_parts(fixed) & {str(item) for item in row["known_to_fail"]}
        path = ("kernel_build", "entries", index)
        if both:
            folder.report(
                "nvidia_drivers.yml",
                path,
                f"kernel {row['kernel']}: {', '.join(sorted(both))} builds and fails",
            )
        for item in row["known_to_fail"]:
            # "545.x" fails as a whole branch, and has no version to compare.
            version = _first_number(str(item))
            least = [
                fix
                for fix in fixed
                if version
                and fix.split(".")[0] == version.split(".")[0]
                and _open(fix) == _open(str(item))
            ]
            if version and not str(item).split()[0].endswith(".x") and least:
                first = max((_first_number(fix) or "" for fix in least), key=_numbers)
                if not _below(version, first):
                    folder.report(
                        "nvidia_drivers.yml",
                        path,
                        f"kernel {row['kernel']}: {item} fails, but {first} of its branch builds",
                    )
    # Observed builds outrank the table, so they must not contradict it.
    seen: dict[tuple[str, str, str], bool] = {}
    for index, row in enumerate(table["observed_builds"]):
        key = (str(row["kernel"]), str(row["driver"]), row["flavour"])
        path = ("kernel_build", "observed_builds", index)
        if seen.get(key, row["builds"]) != row["builds"]:
            folder.report(
                "nvidia_drivers.yml",
                path,
                f"driver {key[1]} ({key[2]}) on kernel {key[0]} was seen to build and to fail",
            )
        seen[key] = row["builds"]
        exact = rows.get(key[0])
        if (
            exact
            and row["builds"]
            and {key[1], f"{key[1]} ({key[2]})"} & {str(item) for item in exact["known_to_fail"]}
        ):
            folder.report(
                "nvidia_drivers.yml",
                path,
                f"driver {key[1]} was seen to build on kernel {key[0]}, where the table says it fails",
            )
    for index, bad in enumerate(folder["known_bad.yml"]["known_bad"]):
        kernel = re.fullmatch(r">=(\d+\.\d+)", str(bad["when"].get("kernel")))
        row = rows.get(kernel.group(1)) if kernel else None
        if row is not None and "first_fixed" in bad:
            measured, listed = (
                {str(item) for item in items}
                for items in (bad["first_fixed"], row["first_upstream_fixed"])
            )
            if measured != listed:
                differs = ", ".join(sorted(measured ^ listed))
                folder.report(
                    "known_bad.yml",
                    ("known_bad", index),
                    f"{bad['id']}: the kernel build table differs about {differs}",
                )


def _last_parts(fixed: set[str]) -> set[str]:
    """Return the last fix of each branch and flavour."""
    last: dict[tuple[str, bool], str] = {}
    for item in sorted(fixed, key=lambda text: _numbers(_first_number(text) or "")):
        last[item.split(".")[0], _open(item)] = item
    return set(last.values())


def _open(item: str) -> bool:
    return "(open)" in item


def _known_bad(folder: _Folder) -> None:
    """Check the names of GPUs and architectures in each row, and that its driver minimum agrees with gpus.yml."""
    data = folder["known_bad.yml"]
    models = [row for vendor in ("nvidia", "amd", "intel") for row in folder["gpus.yml"][vendor]]
    architectures = {row["arch"] for row in folder["cuda.yml"]["architectures"]}
    architectures |= {row["architecture"] for row in models}
    for index, row in enumerate(data["known_bad"]):
        path = ("known_bad", index)
        for part in as_rows(row["match"]):
            for name in sorted(set(part.get("architecture") or ()) - architectures):
                folder.report(
                    "known_bad.yml",
                    (*path, "match"),
                    f'{row["id"]}: no GPU of the facts has architecture "{name}"',
                    nearest(name, architectures),
                )
            for name in part.get("gpu") or ():
                if not any(fnmatchcase(model["sku"], name) for model in models):
                    folder.report(
                        "known_bad.yml",
                        (*path, "match"),
                        f'{row["id"]}: gpus.yml has no model "{name}"',
                        (nearest(name, [model["sku"] for model in models]) or FactsFault.remedy),
                    )
        least = re.fullmatch(r"<(\d+(?:\.\d+)+)", str(row["when"].get("driver")))
        affected = row["when"].get("gpu") or []
        if least is None:
            continue
        for model in [affected] if isinstance(affected, str) else affected:
            for gpu in folder["gpus.yml"]["nvidia"]:
                if _normalised_name(gpu["sku"]).startswith(_normalised_name(model)) and gpu[
                    "min_driver"
                ] not in (
                    None,
                    least.group(1),
                ):
                    folder.report(
                        "known_bad.yml",
                        path,
                        f"{row['id']}: {model} needs {least.group(1)}, but {gpu['min_driver']} in gpus.yml",
                    )


# ---- containers, libraries, frameworks, ROCm


def _toolkit(folder: _Folder) -> None:
    """Check that the safe floor is the newest fix, and the distributions' engines against distros.yml."""
    data = folder["container_toolkit.yml"]
    floor = max((str(row["fixed"]) for row in data["security"]), key=_numbers)
    if data["meta"]["minimum_safe"] != floor:
        folder.report(
            "container_toolkit.yml",
            ("meta",),
            f"minimum_safe is {data['meta']['minimum_safe']}, the newest fix {floor}",
        )
    versions = [str(row[0]) for row in data["releases"]["entries"]]
    newest = max(versions, key=_numbers)
    if not str(data["meta"]["newest"]).startswith(newest):
        folder.report(
            "container_toolkit.yml",
            ("meta",),
            f"newest is {data['meta']['newest']}, the newest release {newest}",
        )
    for index, row in enumerate(data["security"]):
        if str(row["fixed"]) not in versions:
            folder.report(
                "container_toolkit.yml", ("security", index), f"fix {row['fixed']} is no release"
            )
        affected = _first_number(str(row["affected"]))
        if affected and not _below(affected, str(row["fixed"])):
            folder.report(
                "container_toolkit.yml",
                ("security", index),
                f"{row['fixed']} is fixed, and {row['affected']} affected",
            )
    least = data["runtime_minimum"]["toolkit_1_19_1_and_later_cdi_0_7"]
    if least["toolkit"] not in versions:
        folder.report(
            "container_toolkit.yml",
            ("runtime_minimum",),
            f"toolkit {least['toolkit']} is no release",
        )
    engines = {
        row["name"]: row.get("containers") or {} for row in folder["distros.yml"]["distributions"]
    }
    for index, row in enumerate(data["runtime_minimum"]["debian_check"]):
        path = ("runtime_minimum", "debian_check", index)
        ships = next(
            (reads for name, reads in engines.items() if name.startswith(row["distro"])), {}
        )
        for engine in ("docker.io", "containerd", "podman"):
            if str(ships.get(engine)) != str(row[engine]):
                folder.report(
                    "container_toolkit.yml",
                    path,
                    f"{row['distro']}: {engine} {row[engine]} here, {ships.get(engine)} in distros.yml",
                )
        fits = all(
            not _below(str(row[engine]), str(least[name]))
            for engine, name in (
                ("docker.io", "docker"),
                ("containerd", "containerd"),
                ("podman", "podman"),
            )
        )
        if fits != row["ok_for_cdi_0_7"]:
            folder.report(
                "container_toolkit.yml",
                path,
                f"{row['distro']}: ok_for_cdi_0_7 contradicts the minimum versions",
            )
    for index, bad in enumerate(folder["known_bad.yml"]["known_bad"]):
        if bad["id"] == "ctk-insecure" and bad["when"]["toolkit"] != f"<{floor}":
            folder.report(
                "known_bad.yml",
                ("known_bad", index),
                f"ctk-insecure says {bad['when']['toolkit']}, the newest fix is {floor}",
            )


def _libraries(folder: _Folder) -> None:
    """Check cuDNN against the driver minimum and the minors of its CUDA major."""
    minimum = {
        str(row["major"]): row["min_driver_minor_version_compat"]
        for row in folder["cuda.yml"]["driver_minimum_per_major"]
    }
    for index, row in enumerate(folder["cudnn_nccl.yml"]["cudnn_matrix"]):
        major = re.match(r"CUDA (\d+)\.x", str(row.get("package")))
        if major is None:
            continue
        path, least = ("cudnn_matrix", index), str(row["min_driver"])
        # "CUDA 12.x" alone covers the whole major; a row with a remark may demand a newer driver.
        has_major_name = row["package"] == major.group()
        if (has_major_name and least != minimum[major.group(1)]) or _below(
            least, minimum[major.group(1)]
        ):
            folder.report(
                "cudnn_nccl.yml",
                path,
                f"cuDNN {row['cudnn']}: driver {least}, but CUDA {major.group(1)} needs "
                f"{minimum[major.group(1)]}",
            )
        for minor in row["cuda"]:
            if not str(minor).startswith(f"{major.group(1)}."):
                folder.report(
                    "cudnn_nccl.yml",
                    path,
                    f"cuDNN {row['cudnn']} for CUDA {major.group(1)} lists CUDA {minor}",
                )


def _frameworks(folder: _Folder) -> None:
    """Check wheels of torch against the builds of their releases, and that the versions vLLM pins exist."""
    data = folder["frameworks.yml"]
    builds = {row["release"]: row for row in data["torch_builds"]}
    for index, wheel in enumerate(data["torch_wheels"]):
        path, release = ("torch_wheels", index), _minor(wheel["version"])
        row = builds.get(release)
        build = None if row is None else row["cuda_builds"].get(wheel["pypi_default_cuda"])
        if row is None or build is None:
            folder.report(
                "frameworks.yml",
                path,
                f"torch {wheel['version']}: {wheel['pypi_default_cuda']} is no build of {release}",
            )
            continue
        for library in ("cudnn", "nccl"):
            stated = build.get(library)
            if stated and wheel[library] and stated != wheel[library] and not row.get("conflict"):
                folder.report(
                    "frameworks.yml",
                    path,
                    f"torch {wheel['version']}: {library} {wheel[library]}, but {stated} in torch_builds",
                )
    versions = {wheel["version"] for wheel in data["torch_wheels"]}
    for index, row in enumerate(data["vllm"]):
        pinned = re.fullmatch(r"==(.+)", row["torch"])
        if pinned and pinned.group(1) not in versions:
            folder.report(
                "frameworks.yml",
                ("vllm", index),
                f"vllm {row['version']} pins torch {pinned.group(1)}, which has no row",
            )


def _rocm(folder: _Folder) -> None:
    """Check that each amdgpu driver that a release names exists."""
    data = folder["rocm.yml"]
    drivers = {str(row[0]) for row in data["amdgpu_driver"]["releases"]}
    for index, row in enumerate(data["releases"]):
        if row.get("amdgpu") and row["amdgpu"] not in drivers:
            folder.report(
                "rocm.yml",
                ("releases", index),
                f"ROCm {row['version']}: amdgpu {row['amdgpu']} is no release of the driver",
            )
        for item in row.get("compatible_amdgpu") or ():
            for version in re.findall(r"\d+\.\d+\.\d+", item):
                if version not in drivers:
                    folder.report(
                        "rocm.yml",
                        ("releases", index),
                        f"ROCm {row['version']}: amdgpu {version} is no release of the driver",
                    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split(" ")[0]))


def _below(version: str, least: str) -> bool:
    return compare(facts.release_numbers(version), facts.release_numbers(least)) < 0


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _first_number(text: str | None) -> str | None:
    """Return the first full version in `text`: "12.x (12.9)" gives 12.9."""
    return next(iter(re.findall(r"\d+(?:\.\d+)+", str(text or ""))), None)


_CHECKS: tuple[Callable[[_Folder], None], ...] = (
    _form,
    _twice,
    _cuda,
    _architectures,
    _gpus,
    _mig_tables,
    _branches,
    _security,
    _builds,
    _known_bad,
    _toolkit,
    _libraries,
    _frameworks,
    _rocm,
)
