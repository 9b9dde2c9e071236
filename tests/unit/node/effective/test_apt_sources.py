"""Sources of apt as people write them, compared with apt itself."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from goldnode.node.effective import apt
from goldnode.node.ground.host import Host

pytestmark = pytest.mark.skipif(not Path("/usr/bin/apt-get").exists(), reason="no apt here")

DEB822 = "Types: deb\nURIs: http://{0}.example/d\nSuites: s\nComponents: main\n"
A, B = DEB822.format("a"), DEB822.format("b")
LINE = "deb http://a.example/d s main\n"
# Name of a file -> its text, and the hosts whose packages apt reads.
CASES = {
    "space.list": ("deb [ arch=amd64 ] http://a.example/d s main # comment\n", "a"),
    "tab.list": ("deb\thttp://a.example/d\ts\tmain\tcontrib\n", "a"),
    "source.list": ("deb-src http://a.example/d s main\n", ""),
    "options.list": ("deb [arch=amd64  trusted=yes] http://a.example/d/ s main\n", "a"),
    "languages.list": (
        "deb [arch=amd64 lang=en,de target-=Contents-deb] http://a.example/d s main\n",
        "a",
    ),
    "crlf.list": ("deb http://a.example/d s main\r\n", "a"),
    "hash.list": ("deb http://a.example/d s main#x\n", "a"),
    "foreign.list": ("deb [arch=arm64] http://a.example/d s main\n", ""),
    "both.list": ("deb [arch=arm64,amd64] http://a.example/d s main\n", "a"),
    "my repo.list": (LINE, ""),
    "plus+x.list": (LINE, ""),
    ".hidden.list": (LINE, ""),
    "old.list.save": (LINE, ""),
    "upper.LIST": (LINE, ""),
    "bare": (LINE, ""),
    "at@x.sources": (A, ""),
    "lower.sources": (A.lower(), "a"),
    "folded.sources": (
        A.replace("URIs: http://a.example/d", "URIs:\n http://a.example/d\n http://b.example/d"),
        "a b",
    ),
    "comment.sources": ("# head\n" + A.replace("Suites", "# in between\nSuites"), "a"),
    "crlf.sources": (f"{A}\n{B}".replace("\n", "\r\n"), "a b"),
    "off.sources": ("Enabled: off\n" + A, ""),
    "without.sources": ("Enabled: without\n" + A, ""),
    "no.sources": ("Enabled: no\n" + A + "\n" + B, "b"),
    "foreign.sources": (A + "Architectures: arm64\n", ""),
    "two.sources": (f"{A}\n{B}", "a b"),
    # Two stanzas in appearance, one for apt, which takes the last values: the first archive is lost without a warning.
    "blank.sources": (f"{A} \n{B}", "b"),
    "tab.sources": (f"{A}\t\n{B}", "b"),
    "number.sources": (f"{A}#\n{B}", "b"),
    "twice.sources": (A.replace("URIs", "URIs: http://b.example/d\nURIs"), "a"),
}


@pytest.mark.parametrize("name", CASES)
def test_sources_are_those_of_apt(tmp_path: Path, name: str) -> None:
    text, hosts = CASES[name]
    for folder in ("etc/apt/sources.list.d", "lists/partial", "cache"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list.d" / name).write_bytes(text.encode())
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(tmp_path / "etc/apt/sources.list.d"),
        "Dir::State::lists": str(tmp_path / "lists"),
        "Dir::Cache": str(tmp_path / "cache"),
        "Acquire::Languages": "none",
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    done = subprocess.run(
        ["apt-get", *options, "--print-uris", "update"],
        env={**os.environ, "APT_CONFIG": "/dev/null"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(re.findall(r"//(\w+)\.example/d/\S+/binary-amd64/Packages", done.stdout)) == set(
        hosts.split()
    )
    rows = [
        row
        for row in apt.sources(Host(str(tmp_path)))
        if "amd64" in (row["architectures"] or ["amd64"])
    ]
    assert {re.sub(r"\W+", " ", row["uri"]).split()[1] for row in rows} == set(hosts.split())
