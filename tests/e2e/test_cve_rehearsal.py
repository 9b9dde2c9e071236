"""`goldnode cve rehearse` as a person runs it: Debian's packages in three containers, whose kernels are simulated."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.e2e.support import BIN, Site, environment

from goldnode.testing.rehearsal.lane import CVE

pytestmark = [pytest.mark.real, pytest.mark.long]


def test_lane_of_a_vulnerability_of_the_past(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BIN / "goldnode"), "cve", "rehearse", "--out", "rehearsal"],
        cwd=tmp_path,
        env=environment(Site()),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "SIMULATED: which kernel runs" in done.stdout
    assert "left, with the owner: [('n3', 'platform')]" in done.stdout
    folder = tmp_path / "rehearsal/vulnerabilities" / CVE
    proof = json.loads((folder / "proof.json").read_bytes())
    # The proof states that nothing of it was real hardware.
    assert (proof["proved"], proof["nodes"], proof["simulated"]) == (True, 3, 3)
    assert not (folder / "mitigation.yml").exists()
