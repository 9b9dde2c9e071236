"""Files that look like secrets, by name and by content. An image gets one only if its declaration allows it.

A finding states the form and the line, never the content. Names are those of the programs that write the files, forms
those that their documentation states. Archives and compressed files are not opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

_PART = 16 << 20  # bytes of a file that are searched at once
_REACH = 4096  # bytes after an anchor that its pattern may need
_BEFORE = 512  # bytes before it, in its line
_BLOCK = rb"(?:[A-Za-z0-9+/=]|\\n|\s)"
_VALUE = rb"[^\s\"'#<>${}]"  # of a value that is no placeholder: <PASSWORD>, ${PASSWORD}


@dataclass(frozen=True)
class SecretFile:
    """A finding: the form of the secret, and its line; 0 if the name alone shows it."""

    form: str
    line: int = 0

    def text(self) -> str:
        """Return it as a clause."""
        return f"line {self.line}: {self.form}" if self.line else self.form


# Globs of the last parts of a path, with the form. Public halves and examples are taken out first.
_NAMES = (
    ("id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk", "a private key of SSH"),
    ("ssh_host_*_key", "a host key of SSH"),
    ("*.ppk", "a private key of PuTTY"),
    ("*.p12 *.pfx *.jks *.keystore *.kdbx", "a store of keys"),
    (".netrc _netrc", "logins of netrc"),
    (".git-credentials .git/credentials", "logins of Git"),
    (".aws/credentials", "credentials of AWS"),
    (".azure/accessTokens.json .azure/msal_token_cache.*", "credentials of Azure"),
    ("gcloud/credentials.db gcloud/access_tokens.db", "credentials of Google Cloud"),
    ("application_default_credentials.json", "credentials of Google Cloud"),
    (".kube/config kubeconfig *.kubeconfig", "a configuration of kubectl"),
    (".docker/config.json .dockercfg", "logins of Docker"),
    (".pgpass .my.cnf .vault-token .s3cfg .boto rclone.conf kaggle.json", "credentials"),
    ("huggingface/token .huggingface/token", "a token of Hugging Face"),
    ("*.tfstate", "a state of Terraform, which has secrets in plain text"),
)
_GLOBS = tuple((glob, form) for globs, form in _NAMES for glob in globs.split())
_ENV = re.compile(r"\.env(?:\..+)?|.+\.env")
_EXAMPLE = re.compile(r".*\.(?:example|sample|template|dist|defaults?)|example\.env")


@dataclass(frozen=True)
class _Form:
    """A form of content. A file without `anchor` is not searched further: most files end there."""

    anchor: bytes
    pattern: re.Pattern[bytes]
    form: str


def _form(anchor: bytes, pattern: bytes, form: str, flags: int = re.MULTILINE) -> _Form:
    return _Form(anchor, re.compile(pattern, flags), form)


_TOKENS = (
    (b"ghp_", rb"\bghp_[A-Za-z0-9]{36}", "a token of GitHub"),
    (b"gho_", rb"\bgho_[A-Za-z0-9]{36}", "a token of GitHub"),
    (b"ghs_", rb"\bghs_[A-Za-z0-9]{36}", "a token of GitHub"),
    (b"github_pat_", rb"\bgithub_pat_\w{40,}", "a token of GitHub"),
    (b"glpat-", rb"\bglpat-[\w-]{20,}", "a token of GitLab"),
    (b"hf_", rb"\bhf_[A-Za-z0-9]{34,}\b", "a token of Hugging Face"),
    (b"xox", rb"\bxox[abprs]-\d+-[\w-]{10,}", "a token of Slack"),
    (b"pypi-AgE", rb"\bpypi-AgE[\w-]{50,}", "a token of PyPI"),
    (b"sk-ant-", rb"\bsk-ant-[\w-]{40,}", "a token of Anthropic"),
    (b"AIza", rb"\bAIza[\w-]{35}\b", "a key of Google"),
    (b"nvapi-", rb"\bnvapi-[\w-]{40,}", "a key of NVIDIA"),
    (b"AGE-SECRET-KEY-1", rb"\bAGE-SECRET-KEY-1[0-9A-Z]{58}", "a private key of age"),
)
_FORMS = (
    _form(
        b"PRIVATE KEY",
        rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\n)*(?:[\w-]+: .*\n)*(?:\s|\\n)*"
        + _BLOCK
        + rb"{40,}",
        "a private key",
    ),
    _form(b"PuTTY-User-Key-File-", rb"^PuTTY-User-Key-File-\d: ", "a private key of PuTTY"),
    _form(
        b"aws_secret_access_key",
        rb"aws_secret_access_key\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}\b",
        "a secret key of AWS",
    ),
    _form(
        b"AWS_SECRET_ACCESS_KEY",
        rb"AWS_SECRET_ACCESS_KEY\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}\b",
        "a secret key of AWS",
    ),
    _form(b"machine", rb"^\s*machine\s+\S+\s+login\s+\S+\s+password\s+\S+", "a login of netrc"),
    _form(
        b"://",
        rb"^(?:(?:extra-)?index-url\s*=\s*)?https?://[^\s:/@]+:" + _VALUE + rb"+@[\w.-]+\S*$",
        "a login in an address",
    ),
    _form(
        b"client-key-data",
        rb"^\s*client-key-data:\s*[A-Za-z0-9+/=]{40,}",
        "a key of a configuration of kubectl",
    ),
    _form(b"AccountKey=", rb"\bAccountKey=[A-Za-z0-9+/]{80,}={0,2}", "a key of Azure Storage"),
    _form(b'"auth"', rb'"auth"\s*:\s*"[A-Za-z0-9+/]{8,}={0,2}"', "a login of a registry"),
    _form(b"_authToken", rb":_authToken\s*=\s*" + _VALUE + rb"{8,}", "a token of npm"),
    *(_form(anchor, pattern, form) for anchor, pattern, form in _TOKENS),
)
_FORMS_OF_DATA = _FORMS[:2]
# kubectl's bearer token has no form of its own, so the file around it decides.
_KUBECTL = re.compile(rb"^\s*token:\s*[\"']?[\w.-]{16,}", re.MULTILINE)
_KUBE_CONFIG = re.compile(rb"^kind:\s*Config\s*$", re.MULTILINE)
_ASSIGNED = re.compile(
    rb"^[ \t]*(?:export[ \t]+)?\w+[ \t]*=[ \t]*(?![\"']{2}\s*$)[^\s#]", re.MULTILINE
)


def secret_name(path: str) -> str | None:
    """Return the form of secret that a path, relative to the declaration, is named after; None for any other."""
    parts = path.split("/")
    if parts[-1].endswith(".pub") or _EXAMPLE.fullmatch(parts[-1]):
        return None
    for glob, form in _GLOBS:
        if fnmatchcase("/".join(parts[-1 - glob.count("/") :]), glob):
            return form
    return None


def secret_file(path: str, file: Path) -> SecretFile | None:
    """Return why a file looks like a secret, by its path in the declaration's directory or its content; None if not.

    Raises OSError.
    """
    named = secret_name(path)
    if named is not None:
        return SecretFile(f"by its name {named}")
    with file.open("rb") as handle:
        return _content(path.rpartition("/")[2], handle)


def secret_text(text: str) -> str | None:
    """Return the form of secret in a text of a declaration; None without one."""
    data = text.encode()
    return next((form.form for form in _FORMS if form.pattern.search(data)), None)


def _content(name: str, file: IO[bytes]) -> SecretFile | None:
    data, lines, end = b"", 0, False
    forms: Sequence[_Form] = _FORMS
    while not end:
        # A secret on the edge of two parts is whole in the second one.
        keep = data[-_REACH:]
        lines += data.count(b"\n", 0, len(data) - len(keep))
        more = file.read(_PART)
        end = len(more) < _PART
        # All forms take 30 s for a gigabyte, which is too long for the weights of a model.
        if not data and not end and b"\0" in more[:8192]:
            forms = _FORMS_OF_DATA
        data = keep + more
        for form, place in _places(name, data, forms):
            return SecretFile(form, lines + data.count(b"\n", 0, place) + 1)
        name = ""  # the forms of whole files are searched in the first part
    return None


def _places(name: str, data: bytes, forms: Sequence[_Form]) -> Iterator[tuple[str, int]]:
    """Yield form and place of each secret in a part of a file; `name` is that of the file, if the part is its first."""
    for form in forms:
        hit = data.find(form.anchor)
        while hit >= 0:
            # From the beginning of its line: a search of the whole part is a hundred times slower.
            start = max(data.rfind(b"\n", max(0, hit - _BEFORE), hit) + 1, hit - _BEFORE, 0)
            if match := form.pattern.search(data[start : hit + _REACH]):
                yield form.form, start + _begin(match)
                return
            hit = data.find(form.anchor, hit + len(form.anchor))
    if name and b"token:" in data and _KUBE_CONFIG.search(data):
        yield from _of_file(_KUBECTL, data, "a token of a configuration of kubectl")
    if _ENV.fullmatch(name) and not _EXAMPLE.fullmatch(name):
        yield from _of_file(_ASSIGNED, data, "a value in a file of environment variables")


def _of_file(pattern: re.Pattern[bytes], data: bytes, form: str) -> Iterator[tuple[str, int]]:
    if match := pattern.search(data):
        yield form, _begin(match)


def _begin(match: re.Match[bytes]) -> int:
    # A pattern may begin with the space before its line.
    return match.start() + len(match[0]) - len(match[0].lstrip())
