"""A PKCS #11 token for tests: SoftHSM 2 of Debian, with one P-256 key. Skipped without softhsm2 and python-pkcs11."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from goldnode.evidence.signatures import PIN

LIBRARY = Path("/usr/lib/softhsm/libsofthsm2.so")
PLACE = "hsm:2?label=goldnode"


@functools.cache  # the library reads its settings once per process
def _made() -> Path:
    """Return a directory with a token and the file of its key."""
    place = Path(tempfile.mkdtemp(prefix="goldnode-token-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "tokens").mkdir()
    (place / "softhsm2.conf").write_text(f"directories.tokendir = {place / 'tokens'}\n")
    key, pins = place / "key.pem", ("--pin", "1234")
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SOFTHSM2_CONF", str(place / "softhsm2.conf"))
        for words in (
            f"softhsm2-util --init-token --free --label goldnode --so-pin 123456 {' '.join(pins)}",
            f"openssl genpkey {' '.join(curve)} -out {key}",
            f"softhsm2-util --import {key} --token goldnode --label k --id 02 {' '.join(pins)}",
        ):
            subprocess.run(words.split(), check=True, capture_output=True)
    key.chmod(0o600)
    return place


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the key that a token has."""
    pytest.importorskip("pkcs11", reason="optional: `pip install securesystemslib[PKCS11]`")
    if shutil.which("softhsm2-util") is None or not LIBRARY.exists():
        pytest.skip("needs softhsm2 of Debian")
    place = _made()
    monkeypatch.setenv("SOFTHSM2_CONF", str(place / "softhsm2.conf"))
    monkeypatch.setenv("PYKCS11LIB", str(LIBRARY))
    monkeypatch.setenv(PIN, "1234")
    return place / "key.pem"
