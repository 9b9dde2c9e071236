"""The container engine beyond its plans: what the check says of it, what the daemon is asked, and how a file of somebody else's is changed."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.state.test_cases import CASES, document, merge, with_engine

from goldnode.node.effective import enginetext
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result
from goldnode.node.state import dockerd
from goldnode.node.state import record as records
from goldnode.node.state.apply import Applier
from goldnode.node.state.domains import runtime
from goldnode.node.state.handlers import runtime as handlers
from goldnode.node.state.model import Action, Observed

ENGINES = json.loads((CASES / "engines.json").read_text())


def dump(**changes: Any) -> dict[str, Any]:
    """The output of `containerd config dump` on a converged node."""
    runtimes = {"runc": {"cgroup": True}, "nvidia": {"cgroup": True}}
    return {"default": "runc", "cdi": True, "runtimes": runtimes, **changes}


def spec(**changes: Any) -> dict[str, Any]:
    """A CDI spec of a converged node."""
    row = {"file": "/var/run/cdi/nvidia.yaml", "devices": ["0", "1", "all"], "missing": []}
    return {**row, "driver": "535.2", **changes}


def outcomes(engine: str, seen: dict[str, Any] | None = None, **more: Any) -> dict[str, str]:
    """Outcome of each of the runtime's items on a converged node of `engine`, with `seen` over what the engine shows."""
    wanted = merge(document(), ENGINES[engine]["document"])
    found: Observed = with_engine(wanted, ENGINES[engine]["runtime"])
    found.runtime = merge(found.runtime, seen or {})
    for key, value in more.items():
        setattr(found, key, value)
    return {item.id: item.outcome for item in runtime.findings(wanted, found)}


ENGINE, CONFIG, TOOLKIT, CDI = "runtime.engine", "runtime.config", "runtime.toolkit", "runtime.cdi"


@pytest.mark.parametrize(
    ("engine", "items"),
    [
        ("docker_legacy", {ENGINE, CONFIG, TOOLKIT}),
        ("docker_cdi", {ENGINE, CONFIG, TOOLKIT, CDI}),
        ("docker_plain", {ENGINE}),
        ("containerd_cdi", {ENGINE, CONFIG, TOOLKIT, CDI}),
        ("podman_legacy", {ENGINE, CONFIG, TOOLKIT}),
        ("docker_amd", {ENGINE, CONFIG, CDI}),
    ],
)
def test_a_converged_node_matches_in_every_item(engine: str, items: set[str]) -> None:
    assert outcomes(engine) == dict.fromkeys(items, "match")


@pytest.mark.parametrize(
    ("engine", "seen", "item", "outcome"),
    [
        pytest.param(
            "docker_plain",
            {"unit": {"active": "failed"}, "info": None},
            ENGINE,
            "mismatch",
            id="down",
        ),
        pytest.param(
            "docker_plain",
            {"unit": {"active": "inactive", "job": True}, "info": None},
            ENGINE,
            "not_verified_here",
            id="boots",
        ),
        pytest.param(
            "docker_plain",
            {"unit": {"active": "inactive", "result": "exec-condition"}, "info": None},
            ENGINE,
            "not_verified_here",
            id="gate",
        ),
        pytest.param(
            "docker_plain", {"info": {"error": "timed out"}}, ENGINE, "could_not_read", id="hangs"
        ),
        pytest.param(
            "docker_plain",
            {"info": {"version": "20.10.5+dfsg1"}},
            ENGINE,
            "mismatch",
            id="another-version-runs",
        ),
        pytest.param(
            "docker_legacy",
            {"info": {"error": "timed out"}},
            CONFIG,
            "could_not_read",
            id="configuration-of-one-that-hangs",
        ),
        pytest.param(
            "docker_legacy",
            {"unit": {"active": "failed"}, "info": None},
            CONFIG,
            "not_verified_here",
            id="nobody-to-ask",
        ),
        pytest.param(
            "docker_legacy",
            {"info": {"runtimes": {"nvidia": ""}}},
            CONFIG,
            "mismatch",
            id="runtime-unknown",
        ),
        pytest.param("docker_legacy", {"daemon": "{"}, CONFIG, "mismatch", id="file-broken-since"),
        pytest.param(
            "docker_legacy", {"hook": 3000.0}, CONFIG, "mismatch", id="restart-outstanding"
        ),
        pytest.param(
            "docker_legacy", {"toolkit_config": None}, TOOLKIT, "mismatch", id="no-toolkit-file"
        ),
        pytest.param("docker_cdi", {"specs": []}, CDI, "mismatch", id="no-spec"),
        pytest.param(
            "docker_cdi", {"specs": [spec(wrong=["x"])]}, CDI, "mismatch", id="old-number"
        ),
        pytest.param("docker_cdi", {"specs": [spec(devices=[])]}, CDI, "mismatch", id="no-device"),
        pytest.param(
            "docker_cdi",
            {"specs": [{"file": "/etc/cdi/n.yaml", "error": "line 3: ! is not read"}]},
            CDI,
            "could_not_read",
            id="spec-of-an-unknown-form",
        ),
        pytest.param(
            "docker_cdi",
            {"specs": [spec(), {"file": "/etc/cdi/n.yaml", "error": "line 3: ! is not read"}]},
            CDI,
            "match",
            id="spec-of-an-unknown-form-that-another-wins-over",
        ),
        pytest.param(
            "docker_cdi",
            {"specs": [spec(), spec(file="/var/run/cdi/site.yaml")]},
            CDI,
            "mismatch",
            id="device-in-two-specs-of-one-directory",
        ),
        pytest.param(
            "docker_cdi",
            {"specs": [spec(), spec(file="/etc/cdi/site.yaml", wrong=["x"])]},
            CDI,
            "match",
            id="old-spec-that-another-wins-over",
        ),
        pytest.param(
            "docker_cdi", {"specs": [], "gpus": False}, CDI, "not_verified_here", id="no-gpu-to-ask"
        ),
        pytest.param(
            "containerd_cdi", {"config": "version = 2\n"}, CONFIG, "mismatch", id="import-lost"
        ),
        pytest.param(
            "containerd_cdi", {"written": 2500.0}, CONFIG, "mismatch", id="changed-since-start"
        ),
        pytest.param("containerd_cdi", {"dump": dump()}, CONFIG, "match", id="dump"),
        pytest.param(
            "containerd_cdi", {"dump": dump(cdi=False)}, CONFIG, "mismatch", id="dump-without-cdi"
        ),
        pytest.param(
            "containerd_cdi",
            {"dump": dump(runtimes={"runc": {}})},
            CONFIG,
            "mismatch",
            id="dump-without-nvidia",
        ),
        pytest.param(
            "containerd_cdi",
            {"dump": dump(runtimes={"runc": {"cgroup": True}, "nvidia": {"cgroup": False}})},
            CONFIG,
            "mismatch",
            id="dump-with-another-cgroup-driver",
        ),
        pytest.param(
            "containerd_cdi", {"dump": {"error": "bad"}}, CONFIG, "mismatch", id="dump-fails"
        ),
    ],
)
def test_engine_that_differs_or_hangs_gives_its_outcome(
    engine: str, seen: dict[str, Any], item: str, outcome: str
) -> None:
    assert outcomes(engine, seen)[item] == outcome


def test_an_image_is_not_judged_as_a_node() -> None:
    found = outcomes(
        "docker_cdi", {"unit": None, "info": None, "gpus": False, "specs": []}, live=False
    )
    assert found == {
        ENGINE: "not_verified_here",
        CONFIG: "not_verified_here",
        TOOLKIT: "match",
        CDI: "not_verified_here",
    }


# -- asking docker


@pytest.mark.parametrize(
    ("container", "default", "uses"),
    [
        pytest.param({"HostConfig": {"Runtime": "runc"}}, "runc", None, id="none"),
        pytest.param({"HostConfig": {"Runtime": "nvidia"}}, "runc", "runtime nvidia", id="runtime"),
        pytest.param(
            {"HostConfig": {"Runtime": "nvidia"}, "Config": {"Env": ["A=b"]}},
            "nvidia",
            None,
            id="default-runtime-and-no-wish",
        ),
        pytest.param(
            {
                "HostConfig": {"Runtime": "nvidia"},
                "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=all"]},
            },
            "nvidia",
            "runtime nvidia",
            id="wish",
        ),
        pytest.param(
            {
                "HostConfig": {"Runtime": "nvidia"},
                "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=void"]},
            },
            "nvidia",
            None,
            id="void",
        ),
        pytest.param(
            {"HostConfig": {"DeviceRequests": [{"Driver": "", "Capabilities": [["gpu"]]}]}},
            "runc",
            "--gpus",
            id="gpus",
        ),
        pytest.param(
            {"HostConfig": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["amd.com/gpu=0"]}]}},
            "runc",
            "CDI device amd.com/gpu=0",
            id="cdi",
        ),
        pytest.param(
            {
                "HostConfig": {
                    "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["other.com/nic=0"]}]
                }
            },
            "runc",
            None,
            id="cdi-other",
        ),
        pytest.param(
            {"HostConfig": {"Devices": [{"PathOnHost": "/dev/kfd"}]}},
            "runc",
            "device /dev/kfd",
            id="device",
        ),
        pytest.param(
            {"HostConfig": {"Devices": [{"PathOnHost": "/dev/fuse"}]}},
            "runc",
            None,
            id="device-other",
        ),
    ],
)
def test_container_uses_a_gpu_by_runtime_request_or_device(
    container: dict[str, Any], default: str, uses: str | None
) -> None:
    assert dockerd.uses_gpu(container, default) == uses


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A daemon on a socket that answers what the test puts into the mapping it gets: path -> body, text or a status."""
    answers: dict[str, Any] = {}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path, 404)
            body = (
                b""
                if isinstance(found, int)
                else (found if isinstance(found, str) else json.dumps(found)).encode()
            )
            self.send_response(found if isinstance(found, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "socket"

        def log_message(self, *_: Any) -> None:
            return

    # A socket's path has to be short.
    place = f"/tmp/gn-{os.getpid()}.sock"
    monkeypatch.setattr(dockerd, "SOCKET", place)
    monkeypatch.setattr(dockerd.ask, "__defaults__", (place,))
    with socketserver.ThreadingUnixStreamServer(place, Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield answers
        server.shutdown()
    Path(place).unlink()


def test_docker_api_gives_info_and_gpu_containers(daemon: dict[str, Any]) -> None:
    daemon["/info"] = {
        "ServerVersion": "26.1.5+dfsg1",
        "Runtimes": {
            "runc": {"path": "runc", "status": {}},
            "kata": {"runtimeType": "io.containerd.kata.v2"},
        },
        "DefaultRuntime": "runc",
        "CDISpecDirs": ["/etc/cdi"],
    }
    assert dockerd.info() == {
        "version": "26.1.5+dfsg1",
        "runtimes": {"runc": "runc", "kata": "io.containerd.kata.v2"},
        "default": "runc",
        "cdi": True,
    }
    daemon["/containers/json"] = [
        {"Id": "a" * 64, "Names": ["/one"]},
        {"Id": "b" * 64, "Names": ["/gone"]},
        {"Id": "c" * 64, "Names": ["/odd"]},
    ]
    daemon[f"/containers/{'a' * 64}/json"] = {"HostConfig": {"Runtime": "nvidia"}}
    daemon[f"/containers/{'c' * 64}/json"] = 500
    found = dockerd.gpu_containers("runc")
    # One that has ended meanwhile uses nothing; one that cannot be looked at may.
    assert [(item["name"], item["why"].split(":")[0]) for item in found] == [
        ("one", "runtime nvidia"),
        ("odd", f"GET /containers/{'c' * 64}/json"),
    ]


def test_docker_api_is_asked_without_the_library_for_http(daemon: dict[str, Any]) -> None:
    """It loads the e-mail parser, 18 ms of CPU at each check."""
    daemon["/info"] = {}
    code = (
        f"import sys; sys.path.insert(0, {str(Path(dockerd.__file__).parents[3])!r})\n"
        "from goldnode.node.state import dockerd\n"
        f"print(dockerd.ask('/info', {dockerd.SOCKET!r}), *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    answer, *loaded = done.stdout.split()
    assert answer == "{}"
    assert not {"http", "email", "ssl", "urllib.parse"} & set(loaded)


@pytest.mark.parametrize("answer", ["no JSON", 500])
def test_a_daemon_that_does_not_answer_is_reported(daemon: dict[str, Any], answer: Any) -> None:
    daemon["/info"] = answer
    assert "GET /info" in dockerd.info()["error"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "not HTTP"),
        (b"220 mail.example.com\r\n\r\n", "not HTTP"),
        (b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n", "not HTTP"),
        (
            b'HTTP/1.0 200 OK\r\n\r\n{"Runtimes": {"runc"',
            "Expecting",
        ),  # the daemon has ended meanwhile
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}", "503 Service Unavailable"),
        (b"HTTP/1.0 2000\r\n\r\n{}", "GET /info: 2000"),
    ],
)
def test_answer_of_a_daemon_that_is_not_whole_is_reported(
    tmp_path: Path, answer: bytes, reason: str
) -> None:
    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    place = f"/tmp/gn-{os.getpid()}-cut.sock"
    with socketserver.UnixStreamServer(place, Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(OSError, match=reason):
            dockerd.ask("/info", place)
        thread.join()
    Path(place).unlink()


def test_no_daemon_at_all(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        dockerd.ask("/info", str(tmp_path / "none.sock"))


# -- changing files


class Fake(Host):
    """A root without programs: what they would answer is given by the first words of their command line."""

    def __init__(self, root: str, answers: dict[str, Result] | None = None) -> None:
        super().__init__(root)
        self.answers = answers or {}

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        self.commands.append(argv)
        return next(
            (found for words, found in self.answers.items() if " ".join(argv).startswith(words)),
            Result(argv, 127, "", "not found"),
        )


def change(host: Host, content: str, target: str = runtime.DAEMON) -> str | None:
    applier = Applier(
        host, merge(document(), ENGINES["docker_legacy"]["document"]), {}, lambda text: None
    )
    return applier.apply(
        Action("container_runtime", "runtime.config", target, "why", data={"content": content})
    )


def test_the_owners_file_is_stored_with_its_mode(tmp_path: Path) -> None:
    host = Fake(str(tmp_path))
    host.write(runtime.DAEMON, b'{"debug": true}', 0o640)
    change(host, '{"debug": true, "a": 1}\n')
    change(host, '{"debug": true, "a": 2}\n')
    assert host.text(runtime.DAEMON) == '{"debug": true, "a": 2}\n'
    backup = handlers.BACKUPS + runtime.DAEMON
    assert host.text(backup) == '{"debug": true}', "the first one, not the one before"
    assert {host.path(name).stat().st_mode & 0o777 for name in (runtime.DAEMON, backup)} == {0o640}
    record = json.loads(host.text("/var/lib/goldnode/state.json") or "")
    assert record["originals"] == {runtime.DAEMON: {"backup": backup, "mode": 0o640}}
    assert record["merged"] == {
        runtime.DAEMON: {"before": '{"debug": true}', "after": '{"debug": true, "a": 2}\n'}
    }


def test_record_of_a_new_daemon_json_has_no_original(tmp_path: Path) -> None:
    host = Fake(str(tmp_path))
    change(host, "{}\n")
    record = json.loads(host.text("/var/lib/goldnode/state.json") or "")
    assert record["originals"] == {runtime.DAEMON: None}
    assert record["merged"] == {runtime.DAEMON: {"before": None, "after": "{}\n"}}


def test_a_link_stays_one(tmp_path: Path) -> None:
    host = Fake(str(tmp_path))
    host.write("/srv/daemon.json", b"{}", 0o600)
    host.path(runtime.DAEMON).parent.mkdir(parents=True)
    host.path(runtime.DAEMON).symlink_to("/srv/daemon.json")
    change(host, '{"a": 1}\n')
    assert host.path(runtime.DAEMON).is_symlink()
    assert host.text("/srv/daemon.json") == '{"a": 1}\n'
    assert host.path("/srv/daemon.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("before", [b'{"debug": true}', None])
def test_docker_configuration_is_restored_when_dockerd_rejects_it(
    tmp_path: Path, before: bytes | None
) -> None:
    host = Fake(
        str(tmp_path),
        {
            "dockerd --version": Result((), 0, "Docker version 26.1.5+dfsg1, build a72d7cd\n", ""),
            "dockerd --validate": Result((), 1, "", "unable to configure the Docker daemon: bad"),
        },
    )
    if before is not None:
        host.write(runtime.DAEMON, before)
    with pytest.raises(NodeError, match="is what it was before: unable to configure"):
        change(host, "{}\n")
    assert host.data(runtime.DAEMON) == before


def test_a_docker_that_cannot_validate_is_not_asked_to(tmp_path: Path) -> None:
    host = Fake(
        str(tmp_path),
        {"dockerd --version": Result((), 0, "Docker version 20.10.24+dfsg1, build 297e128\n", "")},
    )
    change(host, "{}\n")
    assert not [argv for argv in host.commands if "--validate" in argv]


def without_gpus() -> tuple[Any, dict[str, Any]]:
    """The class of a Kubernetes node without GPUs, and what its containerd shows before goldnode was there."""
    wanted = merge(document(), ENGINES["containerd_cdi"]["document"])
    wanted["runtime"] = {**wanted["runtime"], "toolkit": None, "cgroup_driver": "systemd"}
    shown = merge(
        ENGINES["containerd_cdi"]["runtime"],
        {"config": "version = 2\n", "toolkit_config": None, "dump": dump()},
    )
    return wanted, shown


def test_systemds_control_groups_need_no_toolkit() -> None:
    wanted, shown = without_gpus()
    seen = Observed(runtime=shown)
    (file,) = runtime.wanted(wanted, seen)
    assert file.path == runtime.DROP_IN
    assert "SystemdCgroup = true" in file.content
    assert "nvidia" not in file.content
    (action,) = runtime.plan(wanted, seen)[0]
    assert (action.kind, action.target) == ("runtime.config", runtime.CONTAINERD)
    assert action.reason.startswith("gives containerd systemd's control groups; merged")
    assert runtime.configured(wanted) == (runtime.CONTAINERD,)
    del wanted["runtime"]["cgroup_driver"]
    assert runtime.wanted(wanted, seen) == []
    assert runtime.plan(wanted, seen)[0] == []
    assert runtime.configured(wanted) == ()


@pytest.mark.parametrize(
    ("shown", "outcome"),
    [
        ({}, "match"),
        ({"dump": dump(runtimes={"runc": {"cgroup": False}})}, "mismatch"),
        ({"written": 2500.0}, "mismatch"),
        ({"unit": {"active": "inactive", "job": True}}, "not_verified_here"),
    ],
)
def test_control_groups_are_a_finding_of_their_own(shown: dict[str, Any], outcome: str) -> None:
    wanted, before = without_gpus()
    config = runtime.containerd_config(wanted, Observed(runtime=before))[0]
    seen = with_engine(wanted, merge(before, {"config": config, **shown}))
    (row,) = (row for row in runtime.findings(wanted, seen) if row.id == CONFIG)
    assert row.outcome == outcome
    assert row.expected == "containerd knows systemd's control groups"


def test_a_class_without_the_engine_takes_its_settings_back(tmp_path: Path) -> None:
    """An import of a file that is gone keeps containerd from starting, so config.toml is put right, and the record forgets it."""
    host = Host(str(tmp_path))
    other = merge(document(), ENGINES["containerd_cdi"]["document"])
    before = b"version = 2\n# caf\xc3\xa9\n"
    host.write(runtime.CONTAINERD, before)
    seen = Observed(runtime={"config": before.decode()})
    wanted = runtime.containerd_config(other, seen)[0]
    records.before_merge(host, runtime.CONTAINERD, wanted)
    host.write(runtime.CONTAINERD, wanted.encode())
    again = Observed()
    runtime.observe(host, document(), again)
    (action,) = runtime.given_back(document(), again)
    Applier(host, document(), {}, lambda text: None).apply(action)
    assert host.data(runtime.CONTAINERD) == before
    assert records.read(host)["merged"] == {}
    last = Observed()
    runtime.observe(host, document(), last)
    assert last.runtime == {}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('imports = ["/a/g.toml"]\n', "imports = []\n"),
        ('imports = ["/b.toml", "/a/g.toml"]\n', 'imports = ["/b.toml"]\n'),
        ('imports = ["/a/g.toml", "/b.toml"]\n', 'imports = [ "/b.toml"]\n'),
        ('imports = ["/a/g.toml.d/x"]\n', 'imports = ["/a/g.toml.d/x"]\n'),
    ],
)
def test_an_import_is_taken_out_by_its_name(text: str, want: str) -> None:
    assert enginetext.without_import(text, "/a/g.toml") == want


def test_specs_of_a_node_with_what_is_wrong_in_them(tmp_path: Path) -> None:
    for file, text in {
        "dev/nvidia0": "", "dev/nvidiactl": "", "dev/nvidia-uvm": "",
        "var/run/cdi/nvidia.yaml": "kind: \"nvidia.com/gpu\" # ours\ndevices:\n- {name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}\n",
        "etc/cdi/new.yaml": "kind: nvidia.com/gpu\ndevices: !!seq []\n",
        "etc/cdi/other.yaml": "kind: vendor.com/gpu\ndevices:\n- name: all\n",
        "etc/cdi/unread.yaml": "kind: vendor.com/gpu\ndevices: !!seq []\n",
        "etc/cdi/nvidia.yml": "kind: nvidia.com/gpu\ndevices:\n- name: all\n",
    }.items():  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert runtime._specs(Host(str(tmp_path), live=True), "nvidia.com/gpu") == [
        {
            "file": "/var/run/cdi/nvidia.yaml",
            "devices": ["all"],
            "missing": [],
            "driver": None,
            "wrong": ["/dev/nvidia-uvm is not in it, without which CUDA does not start"],
        },
        {"file": "/etc/cdi/new.yaml", "error": "line 2: ! is not read"},
    ]
