"""Statements verified with openssl, by the lines of the documentation. tests/images/test_statements_cosign.py has cosign."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.evidence import proof_records as records
from tests.unit.images.registries import make_ecdsa_key, make_key

from goldnode.evidence.dependencies import DETAIL
from goldnode.evidence.proofs import ProofRequest, prove
from goldnode.evidence.signatures import load_signer
from goldnode.evidence.statements import envelope

PAGE = Path(__file__).parents[3] / "docs/how-to/evidence.md"


def documented() -> list[str]:
    """Return the lines that a reader types: two extractions, the signed bytes, and one verification per sort of key."""
    block = re.search(r"```console\n(\$ sed .*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return [line.removeprefix("$ ") for line in block[1].splitlines()]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.parametrize(
    ("make", "verifier"),
    [(make_key, "pkeyutl"), (make_ecdsa_key, "dgst")],
    ids=["ed25519", "ecdsa"],
)
@pytest.mark.parametrize(("tampered", "status"), [(False, 0), (True, 1)])
def test_statement_verifies_with_the_documented_lines(
    make: Callable[..., tuple[Path, Path]],
    verifier: str,
    tampered: bool,
    status: int,
    tmp_path: Path,
) -> None:
    secret, _ = make(tmp_path, "evidence")
    document = records.case_class()
    record = records.write("canary", document, tmp_path)
    data = envelope(prove(ProofRequest("canary", record, document), DETAIL), load_signer(secret))
    if tampered:
        # One character of the payload: its base64 stays valid.
        at = data.index(b'"payload":"') + 40
        data = data[:at] + (b"A" if data[at : at + 1] != b"A" else b"B") + data[at + 1 :]
    (tmp_path / "canary.dsse.json").write_bytes(data)
    lines = documented()
    prepare = [line for line in lines if not line.startswith("openssl")]
    verify = next(line for line in lines if line.startswith(f"openssl {verifier}"))
    assert len(prepare) == 3
    script = "\n".join(["set -e", *prepare, verify])
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    if not tampered:
        assert (
            '"_type":"https://in-toto.io/Statement/v1"' in (tmp_path / "statement.json").read_text()
        )
