"""The environment of commands of a site: variables by name, without the secrets of goldnode itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

# Secrets that goldnode itself takes from the environment.
SECRETS = ("GOLDNODE_PKCS11_PIN", "GOLDNODE_SIGNING_PASSWORD", "KBUILD_SIGN_PIN")
# A user's session, its language, and where the network's and the cluster's programs find their files.
NAMES = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE",
    "LC_MESSAGES", "LC_TIME", "TZ", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK",
    "SSL_CERT_DIR", "SSL_CERT_FILE", "KUBECONFIG", "SLURM_CONF", "http_proxy", "https_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip


def named(further: Iterable[str] = (), own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of :data:`NAMES` and `further` that are set."""
    have = os.environ if own is None else own
    return {name: have[name] for name in (*NAMES, *further) if name in have}


def without_secrets() -> dict[str, str]:
    """Return this process's environment without :data:`SECRETS`."""
    return {name: value for name, value in os.environ.items() if name not in SECRETS}
