"""Compiler from a class to the class document, the JSON that defines the class for nodes, images and checks.

The document is a pure function of the catalog, the facts and the lock: same inputs, same bytes,
same digest. Values that depend on the site alone (addresses and keys of archives) are not part of
the digest. Two sites with one lock therefore agree.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from goldnode.catalog import models
from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.classdoc import mitigations
from goldnode.classdoc.findings import check_use
from goldnode.classdoc.gpu_facts import by_pci_id, health_facts, shared_facts
from goldnode.classdoc.view import ClassView, StackView, read_class
from goldnode.compat import parts, rules
from goldnode.compat.check import fatal_of_models
from goldnode.compat.model import CompatHost
from goldnode.core import keys
from goldnode.core.errors import LockError, MirrorError, SiteError
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.facts import xid
from goldnode.lock import publication
from goldnode.lock.archive_keys import judge_keys
from goldnode.lock.archives import ArchivePlaces, KeyAccess, archives_of, key_stores
from goldnode.lock.model import Lock, LockedPackage, digest_of
from goldnode.lock.modules import BuiltModules, find_modules
from goldnode.node.gate.return_tests import CAUSES
from goldnode.node.ground import openpgp

SCHEMA = "goldnode.class/1"

# In-tree and competing drivers that would bind the GPU before the vendor's module does.
_BLACKLIST: Mapping[str, list[str]] = {
    "nvidia": ["nouveau", "nova_core", "nova_drm"],
    "amd": [],
    "intel": [],
}

_DRIVER_MODULES: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("nvidia", "nvidia_uvm", "nvidia_modeset"),
    "amd": ("amdgpu",),
    "intel": ("i915", "xe"),
}

# Fields of a locked package that a node needs to install and verify it.
_PACKAGE = ("name", "version", "architecture", "sha256", "size", "part", "requested")

__all__ = ["SCHEMA", "class_document", "digest_of", "document_digest", "site_archives"]


def class_document(
    name: str,
    catalog: Catalog,
    site: Site,
    locks: Mapping[str, Lock] | None = None,
    *,
    on: dt.date | None = None,
    modules: BuiltModules | None = None,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Return the class document of class `name` (schema goldnode.class/1).

    `locks` gives locks by stack name; by default `lock.model.find_lock` finds the stack's lock.
    `on` is the day for ends of life, today by default. `modules` and `without` are as for
    `compile_class`. Raises GoldnodeError for an unknown class, one that must not be used, and as
    `compile_class`.
    """
    entry = catalog.node_class(name)
    lock = locks.get(entry.item.stack) if locks is not None else None
    view = read_class(name, catalog, site, lock, on=on)
    check_use(view)
    return compile_class(view, modules=modules, without=without)


def compile_class(
    view: ClassView, *, modules: BuiltModules | None = None, without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the class document of a class that may be used (`findings.check_use`).

    `modules` and `without` are for disk images, which have no compiler. `modules` overrides the
    site's choice of prebuilt modules. `without` names packages of the stack set to leave out.
    Raises GoldnodeError for a facts file of a catalog with an error, a missing or stale lock, and
    an archive whose address or key is unknown.
    """
    # Rows of such a file are not used: the document would have goldnode's instead.
    for fault in facts.site_faults():
        raise fault
    # The check reports a missing lock as a finding; a document cannot be without one.
    lock = view.stack.lock
    if lock is None:
        assert view.stack.fault is not None  # noqa: S101 - `read_stack` sets one of the two
        raise view.stack.fault
    built = modules or _built(view.stack.entry, lock, view.site)
    gpus = None
    if view.entry.item.gpu is not None:
        count = view.entry.item.gpu.count
        gpus = (
            _gpus_of_node(count, view.host) if view.gpu is None else _gpus_of_model(count, view.gpu)
        )
    _require_options(view.entry, view.stack.entry, lock)
    document = {
        **_identity(view, lock),
        **_software(view, lock, gpus, built=built, without=without),
        "policy": mitigations.with_settings(_policy(view.entry.item.policy), view.mitigations),
        "baseline": _stated(view.entry.item.baseline),
        "site": _site(view, lock, built),
    }
    document["health"] = _health(view.entry.item, gpus, document["baseline"])
    document |= _optional_sections(view, gpus)
    # Last, because it covers all other keys.
    document["digest"] = document_digest(document)
    return document


def _identity(view: ClassView, lock: Lock) -> dict[str, Any]:
    """Return which class, stack and lock the document is of."""
    item, stack = view.entry.item, view.stack.entry.item
    return {
        "schema": SCHEMA,
        "class": view.entry.name,
        "backend": item.backend,
        "simulated": item.simulated,
        "gate": item.gate,
        "os": stack.os.model_dump(),
        "stack": {
            "name": stack.stack,
            "exercised": stack.exercised,
            "end_of_life": stack.end_of_life.date.isoformat(),
            "limits": stack.limits,
            "waiver": _waiver(stack.waiver, view.entry.name) or _excepted(view),
        },
        "lock": {"digest": lock.digest, "resolved": lock.resolved},
    }


def _software(
    view: ClassView,
    lock: Lock,
    gpus: dict[str, Any] | None,
    *,
    built: BuiltModules | None,
    without: Collection[str],
) -> dict[str, Any]:
    """Return the sections from the GPUs to the packages: what is on a node, in the order of the stack."""
    stack = view.stack.entry.item
    image, headers = view.stack.kernel_packages[:2]
    rows = lock.stack_set(nvswitch=view.host.nvswitch, options=view.entry.item.options)
    return {
        "gpu": gpus,
        "platform": {"name": view.entry.item.platform, "nvswitch": view.host.nvswitch},
        "kernel": {
            "release": lock.kernel_release,
            "image": image,
            # A class without modules to build has none.
            "headers": headers if any(row.name == headers for row in rows) else "",
            **({} if stack.kernel.page_kib is None else {"page_kib": stack.kernel.page_kib}),
        },
        "driver": None if gpus is None else _driver(view, lock, built),
        "runtime": _runtime(stack.runtime, view.stack),
        "modules": [_module(module, lock, built) for module in stack.modules],
        "blacklist": _blacklist(view),
        "fence": sorted({*stack.fence, *(built.sources if built is not None else ())}),
        "packages": [
            {key: getattr(package, key) for key in _PACKAGE}
            for package in _packages(view, lock, built, without)
        ],
    }


def _blacklist(view: ClassView) -> list[str]:
    """Return the modules that are kept out: those that compete with the driver, and those of mitigations."""
    stack = view.stack.entry.item
    own = list(_BLACKLIST[stack.driver.vendor]) if stack.driver is not None else []
    denied = {name for row in view.mitigations for name in row.modules}
    mitigations.check_needed(view.mitigations, view.entry.name, _needed_modules(view))
    return own + sorted(denied.difference(own))


def _needed_modules(view: ClassView) -> set[str]:
    """Return the modules that the class runs with, with underscores."""
    stack = view.stack.entry.item
    names = {module.name for module in stack.modules}
    if stack.driver is not None:
        names.update(_DRIVER_MODULES[stack.driver.vendor])
    return {name.replace("-", "_") for name in names}


def _packages(
    view: ClassView, lock: Lock, built: BuiltModules | None, without: Collection[str]
) -> list[LockedPackage]:
    """Return the packages of a node by name. Prebuilt modules replace others, such as their DKMS source."""
    packages = lock.stack_set(nvswitch=view.host.nvswitch, options=view.entry.item.options)
    replaced = {*(built.replaces if built is not None else ()), *without}
    packages = [row for row in packages if row.name not in replaced]
    if built is not None:
        packages.append(built.package)
    return sorted(packages, key=lambda row: row.name)


def _optional_sections(view: ClassView, gpus: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the sections that only some classes have: a new one changes no digest of the others."""
    item = view.entry.item
    sections: dict[str, Any] = {}
    if item.suppressions:
        sections["suppressions"] = _suppressions(item)
    sections |= _xid(gpus)
    # Decisions of the class's owner are part of the class, so they are stored on each of its nodes.
    if item.compat != models.Compat():
        sections["compat"] = item.compat.model_dump(mode="json", exclude_none=True)
    if view.exceptions:
        sections["exceptions"] = [
            row.model_dump(mode="json", exclude_none=True, by_alias=True) for row in view.exceptions
        ]
    if view.mitigations:
        sections["mitigations"] = [row.content() for row in view.mitigations]
    if item.serve is not None:
        sections["serve"] = _stated(item.serve)
    if enforced := _enforced_tests(item.return_tests):
        sections["return_tests"] = enforced
    if item.follow is not None:
        sections["follow"] = _stated(item.follow)
        if item.evidence is not None and item.evidence.follow:
            wanted = {"kinds": item.evidence.follow, "max_age_days": item.evidence.max_age_days}
            sections["follow"]["evidence"] = wanted
    if rows := _declared_parts(view.host):
        sections["parts"] = rows
    if item.scratch:
        sections["scratch"] = {
            name: row.model_dump(mode="json", exclude_none=True)
            for name, row in item.scratch.items()
        }
    return sections


def _declared_parts(host: CompatHost) -> list[dict[str, Any]]:
    """Return the parts that class and stack declare and the lock does not hold, in the order of the facts."""
    if not host.parts:
        return []
    # The node compares modules of the stack as such.
    present = parts.of_host(dataclasses.replace(host, modules={}))
    return [
        declared_part(name, present[name])
        for name in facts.load(parts.FILE)["parts"]
        if present.get(name) and name not in host.locked_parts
    ]


def declared_part(name: str, version: str) -> dict[str, Any]:
    """Return a declared part with what shows its version on a node (schema: `parts` of the class document)."""
    row = facts.load(parts.FILE)["parts"][name]
    shows = row.get("node") or {}
    loaded = shows.get("when") in (None, version)
    return {
        "name": name,
        "title": row["title"],
        "version": version,
        "packages": list(shows.get("packages", row["packages"])),
        "module": shows.get("module") if loaded else None,
        "program": shows.get("program"),
        "shown": shows.get("shown", {}).get(version),
    }


def _stated(part: models.Strict) -> dict[str, Any]:
    """Return the values that a part of a class states, without those that equal the default."""
    return part.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


def _suppressions(item: models.NodeClass) -> list[dict[str, Any]]:
    return [row.model_dump(mode="json", exclude_none=True) for row in item.suppressions]


def _enforced_tests(tests: models.ReturnTests | None) -> dict[str, Any]:
    """Return the tests that the gate on the node enforces. Those after a rollout are the controller's."""
    if tests is None:
        return {}
    enforced: dict[str, Any] = {
        key: jobs for key in (f"after_{cause}" for cause in CAUSES) if (jobs := getattr(tests, key))
    }
    if "after_absence" in enforced:
        enforced["absence_days"] = tests.absence_days
    return enforced


def declaration(name: str, catalog: Catalog, site: Site | None = None) -> dict[str, Any]:
    """Return the parts of the class document of class `name` that need no lock: os, GPUs, platform,
    policy, baseline and suppressions. Raises CatalogError for an unknown class.
    """
    item = catalog.node_class(name).item
    platform = catalog.platforms[item.platform].item if item.platform is not None else None
    gpus = shown = None
    if item.gpu is not None:
        if item.gpu.model == models.AUTO:
            gpus = _gpus_of_node(item.gpu.count, read_class(name, catalog, site or Site()).host)
        else:
            gpus = _gpus_of_model(item.gpu.count, facts.gpu(item.gpu.model))
        shown = {key: value for key, value in gpus.items() if key != "architecture"}
    sections: dict[str, Any] = {
        "class": name,
        "os": catalog.stacks[item.stack].item.os.model_dump(),
        "simulated": item.simulated,
        "gpu": shown,
        "platform": {"name": item.platform, "nvswitch": platform is not None and platform.nvswitch},
        "policy": _policy(item.policy),
        "baseline": _stated(item.baseline),
        "suppressions": _suppressions(item),
    }
    sections["health"] = _health(item, gpus, sections["baseline"])
    return sections


def _gpus_of_model(count: int, gpu: facts.GpuModel) -> dict[str, Any]:
    """Return the GPUs of a class that names their model."""
    return {
        "vendor": gpu.vendor,
        "model": gpu.sku,
        "count": count,
        "pci_ids": list(gpu.pci_ids),
        "architecture": gpu.architecture,
    }


def _gpus_of_node(count: int, host: CompatHost) -> dict[str, Any]:
    """Return the GPUs of a class with `model: auto`.

    `models` has the models that fit the stack by PCI id, and `unfit` the others with the reason. A
    node compares its PCI bus with both.
    """
    judged = fatal_of_models(host)
    fitting: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for pci_id, row in by_pci_id(judged).items():
        # One PCI id may be of several models: what fits one of them is not refused.
        fatal = [judged[sku][0].message for sku in row["models"] if judged[sku]]
        if len(fatal) < len(row["models"]):
            fitting[pci_id] = " or ".join(row["models"])
        else:
            unfit[pci_id] = fatal[0]
    return {
        "vendor": host.vendor,
        "model": models.AUTO,
        "count": count,
        "pci_ids": list(fitting),
        "architecture": None,
        "models": fitting,
        "unfit": unfit,
    }


def document_digest(document: Mapping[str, Any]) -> str:
    """Return the digest that a class document must have: of all keys except `digest` and `site`."""
    # Addresses and keys of a site change without a change of its nodes.
    return digest_of(
        {key: value for key, value in document.items() if key not in ("digest", "site")}
    )


def _waiver(waiver: models.Waiver | None, name: str) -> dict[str, str] | None:
    """Return the stack's waiver if it covers class `name`."""
    if waiver is None or (waiver.classes and name not in waiver.classes):
        return None
    return {"reason": waiver.reason, "owner": waiver.owner, "expires": waiver.expires.isoformat()}


def _excepted(view: ClassView) -> dict[str, str] | None:
    """Return the site's exception for the end of life of the stack in the form of a waiver."""
    for row in view.exceptions:
        if row.rule == "end-of-life":
            return {"reason": row.reason, "owner": row.owner, "expires": row.expires.isoformat()}
    return None


def _built(stack: CatalogEntry[models.Stack], lock: Lock, site: Site) -> BuiltModules | None:
    """Return the prebuilt modules of a stack, or None if modules are built on the nodes or not at all."""
    if site.modules != "prebuilt" or stack.item.driver is None or stack.item.driver.dkms is None:
        return None
    if site.mirror is None or site.mirror.url is None:
        raise SiteError(
            "modules: prebuilt needs a mirror that nodes can reach, since no other archive has the package "
            "of the modules",
            file=site.file,
            remedy="add `url` to `mirror`, or write modules: dkms",
        )
    return find_modules(stack, lock, site)


def check_installable(
    entry: CatalogEntry[models.NodeClass], stack: CatalogEntry[models.Stack], lock: Lock, site: Site
) -> None:
    """Refuse a lock that the nodes of a class could not install from this site. Nothing is fetched.

    Raises GoldnodeError: the lock lacks an optional part of the class, prebuilt modules are
    missing, or the mirror of the site does not have the packages.
    """
    _require_options(entry, stack, lock)
    built = _built(stack, lock, site)
    if site.mirror is not None and site.mirror.url is not None:
        _published(stack, lock, site, built)


def _driver(view: ClassView, lock: Lock, built: BuiltModules | None) -> dict[str, Any] | None:
    driver = view.stack.entry.item.driver
    if driver is None:
        return None
    # auto: the packages contain both flavours. The GPU and the branch decide which one is used.
    flavour: str | None = driver.flavour
    if view.gpu is not None and driver.flavour == "auto" and driver.branch is not None:
        flavour = rules.module_flavour(view.gpu, driver.branch)[0]
    # Only prebuilt modules add these keys: documents, and thus digests, of other sites stay the
    # same.
    prebuilt: dict[str, Any] = {}
    if built is not None:
        prebuilt = {
            "built": "prebuilt",
            "package": built.package.name,
            "replaces": list(built.replaces),
            "dkms": None,
        }
        prebuilt |= {"signed": built.signer is not None, "signer": built.signer}
    return {
        "vendor": driver.vendor,
        "branch": driver.branch,
        "version": lock.driver_version,
        "flavour": flavour,
        "module": driver.module,
        "in_tree": driver.in_tree,
        "dkms": None if driver.dkms is None else driver.dkms.model_dump(),
        "family": list(driver.family),
        "library": driver.library,
        "options": dict(sorted(view.entry.item.policy.module_options.items())),
        **prebuilt,
    }


def _health(
    item: models.NodeClass, gpus: Mapping[str, Any] | None, baseline: dict[str, Any]
) -> dict[str, Any]:
    """Return the reference values for the node's rules, including the class's baseline.

    With `model: auto`, `models` has the facts of each model by PCI id, as for a node without a
    class.
    """
    if gpus is None or gpus["model"] != models.AUTO:
        health = health_facts(item.gpu.model if item.gpu is not None else None)
    else:
        names = [name for text in gpus["models"].values() for name in text.split(" or ")]
        rows = {pci_id: row["health"] for pci_id, row in by_pci_id(names).items()}
        health = {**health_facts(None), **shared_facts(names), "gpu": {}, "models": rows}
    if baseline:
        health["baseline"] = baseline
    return health


def _xid(gpus: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the meaning of Xids and SXids, for classes with an NVIDIA driver."""
    if gpus is None or gpus["vendor"] != "nvidia":
        return {}
    return {"xid": xid.table()}


def _policy(policy: models.Policy) -> dict[str, Any]:
    """Return the policy without unset values.

    A node identifies GPUs by PCI id, so an override for a model includes its ids.
    """
    stated_policy: dict[str, Any] = policy.model_dump(
        mode="json", exclude_none=True, exclude_defaults=True
    )
    for override, stated in zip(stated_policy.get("overrides", ()), policy.overrides, strict=False):
        # `exclude_defaults` drops a mode that equals the default, but the class may have the other
        # mode.
        if stated.clocks is not None and "mode" in stated.clocks.model_fields_set:
            override["clocks"]["mode"] = stated.clocks.mode
        if "model" in override:
            override["pci_ids"] = list(facts.gpu(override["model"]).pci_ids)
    return stated_policy


def _runtime(runtime: models.Runtime | None, stack: StackView) -> dict[str, Any] | None:
    if runtime is None:
        return None
    toolkit = None
    if runtime.toolkit is not None and (mode := stack.toolkit_mode) is not None:
        toolkit = {"vendor": runtime.toolkit.vendor, "version": stack.toolkit}
        toolkit |= {"mode": mode.mode, "why": mode.reason}
    return {
        "engine": runtime.engine,
        "package": runtime.package,
        "version": stack.versions[runtime.package],
        "default": runtime.default,
        "toolkit": toolkit,
        **({"cgroup_driver": runtime.cgroup_driver} if runtime.cgroup_driver else {}),
    }


def _module(module: models.KernelModule, lock: Lock, built: BuiltModules | None) -> dict[str, Any]:
    if built is not None and module.package in built.sources:
        return {
            **module.model_dump(),
            "package": built.package.name,
            "dkms": None,
            "version": built.package.version,
        }
    versions = {package.name: package.version for package in lock.packages}
    return {
        **module.model_dump(),
        "version": lock.driver_version if module.package is None else versions[module.package],
    }


def _site(view: ClassView, lock: Lock, built: BuiltModules | None) -> dict[str, Any]:
    """Return the site's part of the document.

    `only`: packages of the stack come from these archives and no others.
    """
    stack, site = view.stack.entry, view.site
    part: dict[str, Any]
    if site.mirror is not None and site.mirror.url is not None:
        part = {"archives": [_published(stack, lock, site, built)], "only": True}
    else:
        part = {"archives": site_archives(stack, view.catalog, site, view.entry.item.options)}
    if site.gate is not None:
        part["gate"] = site.gate.model_dump(mode="json")
    return part


def _published(
    stack: CatalogEntry[models.Stack], lock: Lock, site: Site, built: BuiltModules | None
) -> dict[str, Any]:
    """Return the mirror's publication of a lock with its modules. See `mirror_archive`."""
    packages = [*lock.packages, *([built.package] if built is not None else [])]
    return mirror_archive(
        stack.name, packages, site, "modules build" if built is not None else "mirror"
    )


def mirror_archive(
    stack: str, packages: Iterable[LockedPackage], site: Site, command: str = "mirror"
) -> dict[str, Any]:
    """Return the site's mirror as the one archive of a stack: the publication of exactly these packages.

    Raises MirrorError if there is no such publication, or if `mirror.key` is not the key that
    signed it.
    """
    assert site.mirror is not None  # noqa: S101 - asked by the caller
    assert site.mirror.url is not None  # noqa: S101
    directory = site.resolve(site.mirror.directory)
    where = publication.place(directory, stack, (item.sha256 for item in packages))
    again = f"run `goldnode {command} {stack}`"
    if not (where / publication.RECORD).is_file():
        raise MirrorError(
            f'the mirror has no publication "{where.name}" of the lock of stack "{stack}"',
            file=directory,
            remedy=again,
        )
    published = publication.Publication.read(where)
    path = directory / publication.PUBLIC_KEY
    if site.mirror.key is not None:
        path = site.resolve(site.mirror.key)
    try:
        key = openpgp.dearmor(path.read_bytes())
        fingerprints = openpgp.primary_fingerprints(key)
    except (OSError, openpgp.OpenPGPError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise MirrorError(
            f"the mirror's public key cannot be read: {why}",
            file=path,
            remedy="correct `mirror.key`",
        ) from error
    if published.fingerprint not in fingerprints:
        raise MirrorError(
            f"the publication is signed with {published.fingerprint}, and nodes would be given "
            f"{', '.join(fingerprints)}",
            file=path,
            remedy=f"let `mirror.key` and `mirror.signing_key` name one key pair, and {again}",
        )
    return {
        "id": publication.ARCHIVE,
        "uri": f"{site.mirror.url.rstrip('/')}/stacks/{stack}/{where.name}",
        "suite": publication.SUITE,
        "components": [publication.COMPONENT],
        "signed_by": "/etc/apt/keyrings/goldnode-mirror.asc",
        "fingerprints": list(fingerprints),
        "key": base64.b64encode(keys.armor(key)).decode(),
    }


def site_archives(
    stack: CatalogEntry[models.Stack], catalog: Catalog, site: Site, options: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the archives of `stack` and of optional parts, with this site's addresses and keys.

    `key` is base64 of the armoured key if it is to be installed at `signed_by`. It is null if the
    node's OS provides the keyring. Raises SiteError and SigningKeyError, and LockError for a key
    that has to be fetched and cannot be.
    """
    places = ArchivePlaces(catalog, site, stack.item.os, KeyAccess(key_stores(stack, site)))
    names, rows = archives_of(stack.item, options), []
    # Raises for a key that the nodes' apt refuses; its warnings are those of `goldnode lock`.
    judge_keys(names, places, dt.datetime.now(tz=dt.UTC).date())
    for name in names:
        archive = catalog.archives[name].item
        key, fingerprints = places.key(name)
        # Without a key the node's OS provides the keyring.
        keyring = f"/etc/apt/keyrings/goldnode-{name}.asc" if key is not None else archive.keyring
        rows.append(
            {
                "id": name,
                "uri": places.address(name),
                "suite": archive.suite.format(codename=stack.item.os.codename),
                "components": list(archive.components),
                "signed_by": keyring,
                "fingerprints": fingerprints,
                "key": None if key is None else base64.b64encode(keys.armor(key)).decode(),
                **({"accept_expired": True} if places.accepts_expired(name) else {}),
            }
        )
    return rows


def _require_options(
    entry: CatalogEntry[models.NodeClass], stack: CatalogEntry[models.Stack], lock: Lock
) -> None:
    """Refuse a class whose optional parts the lock does not hold. Raises LockError."""
    missing = lock.lacks(entry.item.options)
    if missing:
        raise LockError(
            f'class "{entry.name}" asks for {", ".join(missing)}, which the lock of stack "{stack.name}" does not hold',
            file=entry.file,
            line=entry.source.line(("options",)),
            remedy=f"run `goldnode lock {stack.name}`",
        )
