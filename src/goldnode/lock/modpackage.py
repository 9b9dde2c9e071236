"""Signed modules as a Debian package. The same modules, key and goldnode version give the same bytes.

The name is DRIVER-modules-RELEASE (nvidia-current-modules-6.1.0-56-amd64). The driver comes first,
as in the driver packages of both archives, so the family globs of every stack match it and a move
to another stack also moves it. The kernel release is part of the name, as in packages from
Canonical, so packages for two kernels can be installed side by side and the previous kernel keeps
its GPUs.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from goldnode.core import secret_modes
from goldnode.core.errors import ModulesError
from goldnode.core.site import Site
from goldnode.lock.builder import ModuleBuild, ModuleBuildInputs, modinfo
from goldnode.node.ground.text import phrase

# Raised when the package changes without what is in `ModuleBuild` changing.
RECIPE = 1
MAGIC = b"~Module signature appended~\n"
# Dependencies of a DKMS package that a node without a compiler does not need.
_TOOLS = re.compile(
    r"^(dkms|make|gcc(-\d+)?|c-compiler|build-essential|dpkg-dev|libc6?-dev|linux-headers.*|linux-kbuild.*|patch|kmod)$"
)


@dataclass(frozen=True)
class Signing:
    """A key for modules. `name` is the signer in modinfo, once a module is signed; `identity` the
    SHA-256 of the certificate.
    """

    key: Path
    certificate: Path
    identity: str

    @classmethod
    def of(cls, site: Site) -> Signing:
        """Return the site's key. Raises ModulesError if there is none, if it cannot be read, or if
        certificate and key do not match.
        """
        if site.module_signing is None:
            raise ModulesError(
                "the stack says secure_boot, and the site has no key to sign modules with",
                file=site.file,
                remedy="add module_signing: {key: …, certificate: …} to the site file; the nodes' firmware must have the certificate enrolled",
            )
        key, certificate = (
            site.resolve(path)
            for path in (site.module_signing.key, site.module_signing.certificate)
        )
        for path in (key, certificate):
            if not path.is_file():
                raise ModulesError(
                    f"{path} is not there", file=site.file, remedy="correct `module_signing`"
                )
        public = _openssl(
            ["x509", "-in", str(certificate), "-noout", "-pubkey"],
            f"{certificate} is no certificate",
        )
        own = _openssl(
            ["pkey", "-in", str(key), "-pubout", *_pin()],
            f"{key} is no private key, or its passphrase is not in KBUILD_SIGN_PIN",
        )
        secret_modes.require(key, secret_modes.MODULE_KEY)
        if public.strip() != own.strip():
            raise ModulesError(
                f"the certificate {certificate} is not of the key {key}",
                file=site.file,
                remedy="give the pair",
            )
        return cls(key, certificate, hashlib.sha256(certificate_der(certificate)).hexdigest())

    def der(self) -> bytes:
        """Return the certificate as DER. Raises ModulesError."""
        return certificate_der(self.certificate)

    def begins(self) -> datetime:
        """Return from when on the certificate is valid. Raises ModulesError."""
        line = _openssl(
            ["x509", "-in", str(self.certificate), "-noout", "-startdate"],
            f"{self.certificate} is no certificate",
        )
        text = line.decode().strip().removeprefix("notBefore=")
        return datetime.strptime(text, "%b %d %H:%M:%S %Y %Z").replace(tzinfo=UTC)

    def sign(self, module: bytes) -> bytes:
        """Return `module` with a signature appended, as in the kernel's
        Documentation/admin-guide/module-signing.rst.
        """
        signature = self.cms(module)
        # struct module_signature: algorithm, hash, type of id (2: PKCS #7), two lengths, padding,
        # and the signature's length
        return module + signature + struct.pack(">BBBBB3xI", 0, 0, 2, 0, 0, len(signature)) + MAGIC

    def cms(self, content: bytes, *, certificates: bool = False) -> bytes:
        """Return a detached signature (PKCS #7, DER) of bytes, without attributes. Raises ModulesError.

        `certificates`: whether it has the certificate inside.
        """
        with tempfile.TemporaryDirectory(prefix="goldnode-sign-") as name:
            body, pem, out = (
                Path(name, "module"),
                Path(name, "certificate"),
                Path(name, "signature"),
            )
            body.write_bytes(content)
            pem.write_bytes(
                _openssl(["x509", "-in", str(self.certificate)], "the certificate cannot be read")
            )
            # As the kernel's scripts/sign-file.c signs: detached and without attributes. With a key of
            # RSA, the same content has the same signature.
            common = [
                "-binary",
                "-outform",
                "DER",
                "-md",
                "sha256",
                "-signer",
                str(pem),
                "-inkey",
                str(self.key),
                *_pin(),
            ]
            _openssl(
                [
                    "cms",
                    "-sign",
                    *common,
                    "-noattr",
                    *([] if certificates else ["-nocerts"]),
                    "-nosmimecap",
                    "-in",
                    str(body),
                    "-out",
                    str(out),
                ],
                "openssl cannot sign",
            )
            # -noverify: the certificate is trusted by enrolment, and needs no chain of authorities.
            verify = [
                "-inform",
                "DER",
                "-in",
                str(out),
                "-content",
                str(body),
                "-certfile",
                str(pem),
                "-nointern",
                "-noverify",
                "-out",
                os.devnull,
            ]
            _openssl(
                ["cms", "-verify", "-binary", *verify], "the signature just made does not hold"
            )
            return out.read_bytes()


def certificate_der(path: Path) -> bytes:
    """Return a certificate (PEM or DER) as DER. Raises ModulesError."""
    return _openssl(["x509", "-in", str(path), "-outform", "DER"], f"{path} is no certificate")


def _pin() -> list[str]:
    # The variable from which the kernel's build takes the passphrase of its key.
    return ["-passin", "env:KBUILD_SIGN_PIN"] if "KBUILD_SIGN_PIN" in os.environ else []


def _openssl(arguments: list[str], fault: str) -> bytes:
    try:
        done = subprocess.run(
            ["openssl", *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise ModulesError(
            "openssl is not on this machine", remedy="install it: apt-get install openssl"
        ) from error
    if done.returncode:
        reported = done.stderr.decode(errors="replace").strip().splitlines()
        raise ModulesError(
            f"{fault}: {reported[-1] if reported else 'openssl gives no reason'}",
            remedy="correct `module_signing` in the site file",
        )
    return done.stdout


@dataclass(frozen=True)
class ModulePackage:
    """The package of a build: a .deb and its row for a lock."""

    file: Path
    name: str
    version: str
    architecture: str
    signer: str | None


def package_name(inputs: ModuleBuildInputs) -> str:
    """Return the name of the package of a build."""
    stem = str(inputs.module or inputs.trees[0].name).lower().replace("_", "-")
    return f"{stem}{'-open' if inputs.flavour == 'open' and 'open' not in stem else ''}-modules-{inputs.release}"


def package_version(inputs: ModuleBuildInputs, signing: Signing | None) -> str:
    """Return the version of the package: those of driver and kernel, and a hash of the build.

    One version has one content.
    """
    main = inputs.trees[0].version
    if inputs.flavour is not None:
        main = next(t.version for t in inputs.trees if _is_driver(inputs, t.name))
    parts = [RECIPE, inputs.key, signing.identity if signing is not None else None]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]
    driver, kernel = (
        text.partition(":")[2] or text for text in (main, inputs.packages[inputs.image].version)
    )
    return f"{driver}+{kernel.replace('-', '.')}+{digest}"


def _is_driver(inputs: ModuleBuildInputs, tree: str) -> bool:
    return (
        tree == inputs.module
        or len(inputs.trees) == 1
        or bool(inputs.module and tree.startswith(inputs.module))
    )


def make(
    inputs: ModuleBuildInputs,
    result: ModuleBuild,
    directory: Path,
    into: Path,
    sources: Mapping[str, Path],
    *,
    signing: Signing | None,
) -> ModulePackage:
    """Make the package of the successful build in `directory`. Raises ModulesError.

    `sources` has the .deb of each DKMS package.
    """
    name, version = package_name(inputs), package_version(inputs, signing)
    place = f"{result.place}/{inputs.release}/updates/goldnode"
    signers: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="package-", dir=into) as temporary:
        root = Path(temporary, "root")
        files: dict[str, bytes] = {}
        for module in result.modules:
            body = (directory / "modules" / f"{module}.ko").read_bytes()
            if signing is not None:
                body = signing.sign(body)
                check = Path(temporary, f"{module}.ko")
                check.write_bytes(body)
                reported = modinfo(check)
                if not reported.get("signer") or reported.get("sig_hashalgo") != "sha256":
                    raise ModulesError(
                        f"modinfo does not see the signature of {module}: {reported.get('signer')!r}",
                        remedy="report this",
                    )
                signers.add(reported["signer"])
                check.unlink()
            files[f"{place}/{module}.ko{phrase('.{}', result.compression)}"] = compressed(
                body, result.compression
            )
        if len(signers) > 1:
            raise ModulesError(
                f"the modules carry several signers: {', '.join(sorted(signers))}",
                remedy="report this",
            )
        signer = next(iter(signers), None)
        files[f"/usr/share/doc/{name}/goldnode.json"] = provenance(inputs, result, signing).encode()
        files[f"/usr/share/doc/{name}/copyright"] = "\n".join(
            f"From {item}:\n\n{_copyright(path, item)}" for item, path in sources.items()
        ).encode()
        size = sum(len(content) for content in files.values()) // 1024 + 1
        scripts = {
            stage: text.format(release=inputs.release, place=result.place).encode()
            for stage, text in _SCRIPTS.items()
        }
        files |= {
            "/DEBIAN/control": control(inputs, name, version, size).encode(),
            **{f"/DEBIAN/{stage}": text for stage, text in scripts.items()},
        }
        for path, content in files.items():
            here = root / path.lstrip("/")
            here.parent.mkdir(parents=True, exist_ok=True)
            here.write_bytes(content)
            here.chmod(0o755 if path.rpartition("/")[2] in scripts else 0o644)
        for here in [root, *root.rglob("*")]:
            if here.is_dir():
                here.chmod(0o755)
            os.utime(here, (inputs.epoch, inputs.epoch))
        deb = into / f"{name}_{version}_{inputs.architecture}.deb"
        # One thread: the same bytes must come out on a machine with another number of CPUs.
        environment = {
            **os.environ,
            "SOURCE_DATE_EPOCH": str(inputs.epoch),
            "DPKG_DEB_THREADS_MAX": "1",
            "LC_ALL": "C.UTF-8",
        }
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z2", "--build", str(root), str(deb)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise ModulesError(
                f"dpkg-deb cannot make {name}: {done.stderr.strip()}", remedy="see what it says"
            )
    return ModulePackage(deb, name, version, inputs.architecture, signer)


_SCRIPTS = {
    # Only this kernel's index is rebuilt. The initramfs is not: none of these modules is in it.
    "postinst": '#!/bin/sh\nset -e\nif [ "$1" = configure ] && [ -d {place}/{release}/kernel ]; then depmod {release}; fi\nexit 0\n',
    "postrm": '#!/bin/sh\nset -e\nif [ "$1" = remove ] && [ -d {place}/{release}/kernel ]; then depmod {release}; fi\nexit 0\n',
}


def control(inputs: ModuleBuildInputs, name: str, version: str, size: int) -> str:
    """Return the control file.

    The package depends on exactly its kernel, and provides what the driver's packages require of
    the DKMS package.
    """
    sources = {tree.package: tree.version for tree in inputs.trees}
    given = [
        clause
        for source in sources
        for clause in _clauses(inputs.stanzas[source].get("Provides", ""))
    ]
    provided = {_name(clause) for clause in given}
    asked = sorted(_must_provide(inputs, provided))
    provides = sorted({*given, *(f"{item} (= {sources[item]})" for item in asked)})
    # One that is provided under its own name is kept out by goldnode's pins: a Conflicts would also
    # be with the modules of another kernel.
    conflicts = [item for item in sources if item not in asked]
    carried = []
    for source in sources:
        for field in ("Pre-Depends", "Depends"):
            for clause in _clauses(inputs.stanzas[source].get(field, "")):
                names = [_name(part) for part in clause.split("|")]
                if not any(_TOOLS.match(item) or item in sources for item in names):
                    carried.append(clause)
    depends = [
        f"{inputs.image} (= {inputs.packages[inputs.image].version})",
        "kmod",
        *dict.fromkeys(carried),
    ]
    trees = ", ".join(f"{tree.name} {tree.version}" for tree in inputs.trees)
    fields = {
        "Package": name,
        "Version": version,
        "Architecture": inputs.architecture,
        "Maintainer": "goldnode modules build <root@localhost>",
        "Installed-Size": str(size),
        "Section": "kernel",
        "Priority": "optional",
        "Depends": ", ".join(depends),
        "Provides": ", ".join(provides),
        "Conflicts": ", ".join(conflicts),
        "Replaces": ", ".join(conflicts),
        "Description": f"kernel modules of {trees} for {inputs.release}\n"
        " Built once by goldnode from the packages that its lock names; see goldnode.json.",
    }
    return "".join(f"{key}: {value}\n" for key, value in fields.items() if value)


def _must_provide(inputs: ModuleBuildInputs, provided: set[str]) -> Iterator[str]:
    """Yield the DKMS packages that a remaining package requires by name and nothing else provides."""
    sources = {tree.package for tree in inputs.trees}
    stay = {name for name in inputs.stanzas if name not in sources and name not in inputs.replaces}
    for name in stay:
        for field in ("Pre-Depends", "Depends"):
            for clause in _clauses(inputs.stanzas[name].get(field, "")):
                names = [_name(part) for part in clause.split("|")]
                wanted = [item for item in names if item in sources]
                if wanted and not any(item in provided or item in stay for item in names):
                    yield wanted[0]


def _clauses(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _name(clause: str) -> str:
    return re.split(r"[\s(:\[]", clause.strip(), maxsplit=1)[0]


def provenance(inputs: ModuleBuildInputs, result: ModuleBuild, signing: Signing | None) -> str:
    """Return the provenance of the package: key, source trees, every package of the build root with
    its hash, and the certificate's hash.
    """
    document = {
        "schema": result.schema,
        "key": result.key,
        "kernel": inputs.release,
        "driver_version": inputs.driver_version,
        "flavour": inputs.flavour,
        "trees": {tree.name: tree.version for tree in inputs.trees},
        "certificate_sha256": signing.identity if signing is not None else None,
        "builder": {name: [version, sha256] for name, version, sha256 in result.builder},
        "base": inputs.base,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def compressed(data: bytes, how: str) -> bytes:
    """Return a module compressed as the kernel's own are ("", gz, xz or zst), in a form that the
    kernel reads (CRC32 for xz).
    """
    if how == "xz":
        return lzma.compress(
            data,
            check=lzma.CHECK_CRC32,
            filters=[{"id": lzma.FILTER_LZMA2, "preset": 3, "dict_size": 1 << 20}],
        )
    tools: Mapping[str, Sequence[str]] = {
        "zst": ("zstd", "-q", "-9", "--single-thread", "-c"),
        "gz": ("gzip", "-9nc"),
    }
    if not how:
        return data
    return subprocess.run(tools[how], input=data, capture_output=True, check=True).stdout


def _copyright(deb: Path, name: str) -> str:
    process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE)
    assert process.stdout is not None  # noqa: S101
    text = "see the package that it was built from\n"
    with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
        for member in tar:
            if (
                member.name.endswith(f"/doc/{name}/copyright")
                and (opened := tar.extractfile(member)) is not None
            ):
                text = opened.read().decode("utf-8", errors="replace")
    process.communicate()
    return text
