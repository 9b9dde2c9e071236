"""A fleet's data in object storage, by the commands and by ClickHouse. The server is simulated: moto 5.2.5 speaks S3 over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.simulators.fleet import NOW, fleet, put, store
from tests.unit.fleet.report.test_report_clickhouse import plain

from goldnode.fleet.ingest import bucket
from goldnode.fleet.report import clickhouse, engine
from goldnode.fleet.report.frame import ReportSettings, ReportSource, views

pytestmark = [pytest.mark.real, pytest.mark.long]

MOTO = "moto[s3,server]==5.2.5"
GOLDNODE = str(Path(sys.executable).with_name("goldnode"))
AT = f"{NOW:%Y-%m-%dT%H:%MZ}"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("moto")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([folder / "venv/bin/pip", "install", "--quiet", MOTO], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [folder / "venv/bin/moto_server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
        )
    try:
        for _ in range(600):
            with socket.socket() as opened:
                if opened.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def keys(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "simulated",
        "AWS_SECRET_ACCESS_KEY": "simulated",
        "AWS_EC2_METADATA_DISABLED": "true",
        "GOLDNODE_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def storage(endpoint: str, keys: None) -> bucket.S3Storage:
    import pyarrow.fs

    host = endpoint.removeprefix("http://")
    made = pyarrow.fs.S3FileSystem(
        endpoint_override=host, scheme="http", region="us-east-1", allow_bucket_creation=True
    )
    made.create_dir("goldnode-fleet")
    return bucket.S3Storage.of(
        f"s3://goldnode-fleet/{os.getpid()}-{time.time_ns()}?endpoint={endpoint}&region=us-east-1"
    )


@pytest.fixture
def address(storage: bucket.S3Storage, endpoint: str) -> str:
    return f"{storage.address}?endpoint={endpoint}&region=us-east-1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    nodes = fleet(6, cohort_size=3)
    nodes[0].change(put("driver/loaded", "570"), NOW - timedelta(hours=30))
    for hours in (180, 50, 30, 24, 12, 1):
        store(tmp_path / "data", nodes, [NOW - timedelta(hours=hours)], gpus=2)
    return tmp_path / "data"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GOLDNODE, "fleet", *map(str, words)],
        capture_output=True,
        text=True,
    )


def test_report_and_sql_of_a_bucket_are_those_of_the_directory(data: Path, address: str) -> None:
    assert run("copy", address, "--data", data).returncode == 0
    for words in (
        ("report", "--format", "json", "--at", AT),
        (
            "diff",
            "--format",
            "json",
            "--from",
            f"{NOW - timedelta(hours=40):%Y-%m-%dT%H:%MZ}",
            "--to",
            AT,
        ),
        ("sql", "SELECT value, count(*) FROM facts GROUP BY ALL ORDER BY ALL", "--at", AT),
    ):
        there, here = run(*words, "--data", address), run(*words, "--data", data)
        assert (there.returncode, there.stdout) == (0, here.stdout), there.stderr
    # The shell of SQL reads the files of its views alone.
    other = run(
        "sql", "SELECT * FROM read_parquet('s3://goldnode-fleet/**')", "--data", address, "--at", AT
    )
    assert other.returncode == 2


def test_copy_that_is_killed_shows_nothing_and_is_repeated(
    data: Path, address: str, storage: bucket.S3Storage
) -> None:
    killed = subprocess.Popen([GOLDNODE, "fleet", "copy", address, "--data", str(data)])
    while not storage.names() and killed.poll() is None:
        pass
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert bucket.PARTS not in storage.names()
    refused = run("report", "--data", address, "--at", AT)
    assert (refused.returncode, "no captures are stored here" in refused.stderr) == (2, True)
    assert run("copy", address, "--data", data).returncode == 0
    words = ("report", "--format", "json", "--at", AT)
    assert run(*words, "--data", address).stdout == run(*words, "--data", data).stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda address: address.replace("goldnode-fleet", "another-bucket"),
            "refuses or does not answer",
        ),
        (
            lambda address: address.replace("http://127.0.0.1:", "http://127.0.0.1:1?"),
            "is no address|does not answer",
        ),
    ],
)
def test_bucket_that_is_not_there_is_named_within_a_minute(
    data: Path, address: str, change: Callable[[str], str], message: str
) -> None:
    begin = time.monotonic()
    refused = run("copy", change(address), "--data", data)
    assert refused.returncode == 2, refused.stdout
    assert "Traceback" not in refused.stderr
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("load", [False, True])
def test_clickhouse_reads_the_bucket(
    data: Path, storage: bucket.S3Storage, endpoint: str, tmp_path: Path, load: bool
) -> None:
    bucket.copy(data, storage, NOW)
    source = ReportSource(data, collection="goldnode")
    session: Any = pytest.importorskip("chdb.session").Session(str(tmp_path / "clickhouse"))
    session.query("CREATE DATABASE fleet")
    session.query("USE fleet")
    place = storage.address.removeprefix("s3://")
    session.query(
        f"CREATE NAMED COLLECTION goldnode AS url = '{endpoint}/{place}/', access_key_id = 'a', secret_access_key = 'a'"
    )
    with engine.opened(source, ReportSettings(NOW)) as connection:
        found = {view.name: plain(engine.rows(connection, view.name)) for view in views()}
        made = list(
            clickhouse.statements(
                source, ReportSettings(NOW), engine.keys_of(connection), load=load
            )
        )
    for statement in made:
        session.query(statement)
    for name, rows in found.items():
        text = session.query(f"SELECT * FROM {name}", "JSONEachRow").data()  # noqa: S608
        assert plain([json.loads(line) for line in text.splitlines()]) == rows, name
    session.query("DROP NAMED COLLECTION goldnode")
    session.close()
