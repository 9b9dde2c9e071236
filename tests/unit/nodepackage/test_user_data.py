"""`goldnode class user-data`: what it prints, what it refuses, and the script that cloud-init runs."""

from __future__ import annotations

import email
import gzip
import hashlib
import importlib.util
import json
from collections.abc import Iterator
from email.message import Message
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from goldnode.cli import main
from goldnode.core.data import data
from goldnode.core.errors import GoldnodeError
from goldnode.core.program_file import build
from goldnode.node.program import join_command
from goldnode.nodepackage import user_data
from goldnode.nodepackage.platforms import ANY, PLATFORMS, UserDataPlatform

ADDRESS = "https://files.example.net/goldnode-node"
SITE = "archives:\n  debian: {url: 'http://deb.example.net/debian'}\n  debian-security: {url: 'http://deb.example.net/security'}\n"
CLOUD_CONFIG = "#cloud-config\nusers: [default]\nruncmd: [[touch, /run/done]]\n"


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, with a site whose archives are public."""
    monkeypatch.chdir(tmp_path)
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_LOCKS"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "goldnode-site.yml"
    path.write_text(SITE)
    monkeypatch.setenv("GOLDNODE_SITE", str(path))
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    return path


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["class", "user-data", *words])


def printed(*words: str) -> bytes:
    done = run("cpu_only", *words)
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


def parts(content: bytes) -> list[tuple[str, str | None, str]]:
    """Return type, file name and text of each part, read as cloud-init reads them."""
    if content.startswith(b"#cloud-config-archive\n"):
        return [(row["type"], row["filename"], row["content"]) for row in yaml.safe_load(content)]
    found = email.message_from_bytes(content).get_payload()
    assert isinstance(found, list)
    return [
        (one.get_content_type(), one.get_filename(), one.get_payload(decode=True).decode())  # type: ignore[union-attr]
        for one in found
        if isinstance(one, Message)
    ]


FORMS = pytest.mark.parametrize("form", [(), ("--multipart",)], ids=["archive", "multipart"])


@FORMS
def test_user_data_is_one_part_that_runs_at_each_boot(form: tuple[str, ...]) -> None:
    content = printed("--program", ADDRESS, *form)
    ((kind, name, text),) = parts(content)
    assert (kind, name) == ("text/x-shellscript-per-boot", "50-goldnode")
    assert text.startswith("#!/usr/bin/python3 -I\n")
    assert f'"url": "{ADDRESS}"' in text
    assert hashlib.sha256(build()).hexdigest() in text
    assert content == printed("--program", ADDRESS, *form), "the same bytes each time"
    compile(text, "script", "exec")


def test_archive_is_readable() -> None:
    lines = printed("--program", ADDRESS).decode().splitlines()
    assert lines[:5] == [
        "#cloud-config-archive",
        "- type: text/x-shellscript-per-boot",
        "  filename: 50-goldnode",
        "  content: |",
        "    #!/usr/bin/python3 -I",
    ]


@FORMS
def test_parts_of_the_user_come_first_and_whole(tmp_path: Path, form: tuple[str, ...]) -> None:
    mine, hook = tmp_path / "mine.yml", tmp_path / "hook"
    mine.write_text(CLOUD_CONFIG)
    hook.write_text("#cloud-boothook\n#!/bin/sh\necho Zürich\n")
    mine_too = ("--part", str(mine), "--part", str(hook))
    found = parts(printed("--program", ADDRESS, *mine_too, *form))
    assert [kind for kind, _, _ in found] == [
        "text/cloud-config",
        "text/cloud-boothook",
        "text/x-shellscript-per-boot",
    ]
    assert yaml.safe_load(found[0][2]) == yaml.safe_load(CLOUD_CONFIG)
    assert "Zürich" in found[1][2]


def refuses_part(part: Path, text: str, why: str) -> None:
    """Fail unless a part with `text` is refused for `why`, and nothing is printed that could be used."""
    part.write_text(text)
    done = run("cpu_only", "--program", ADDRESS, "--part", part.name)
    assert done.exit_code == 2
    assert why in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("users: [default]\n", "names no type of user data"),
        ("Content-Type: multipart/mixed\n\n", "names no type of user data"),
        (
            "#cloud-config\nssh_keys:\n  rsa_private: |\n    -----BEGIN OPENSSH PRIVATE KEY-----\n",
            "mine:4: a private key does not belong",
        ),
        (
            "#!/bin/sh\ncurl https://user:word@x.example/\n",
            "mine:2: the address https://***@x.example has a login",
        ),
    ],
)
def test_part_of_unknown_type_or_with_a_secret_is_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    refuses_part(tmp_path / "mine", text, why)


def test_document_with_a_login_is_refused() -> None:
    """Site files refuse such an address themselves; a class document may have it elsewhere."""
    document: dict[str, Any] = {"site": {"archives": [{"id": "a", "uri": "http://u:p@x.example/"}]}}
    with pytest.raises(GoldnodeError, match="has a login"):
        user_data.check_document(document)


def test_archive_in_a_directory_of_this_machine_is_refused(site: Path) -> None:
    site.write_text(SITE.replace("http://deb.example.net/debian", "file:///srv/debian"))
    done = run("cpu_only", "--program", ADDRESS)
    assert done.exit_code == 2
    assert "archive debian is at file:///srv/debian, a directory of this machine" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "the site has no mirror with an address"),
        (["--program", "ftp://x.example/p"], "is no http or https address"),
        (
            ["--program", "https://u:word@x.example/p"],
            "the address https://***@x.example has a login",
        ),
        (["--program", "ftp://u:word@x.example/p"], '"ftp://***@x.example/p" is no http'),
        (["--program", ADDRESS, "--embed"], "Use either --program or --embed."),
        (["--embed"], "and the smallest limit of all platforms is 16384"),
        (["--embed", "--platform", "ec2"], "and ec2 takes 16384 (https://docs.aws.amazon.com/"),
        (["--program", ADDRESS, "--gzip"], "any takes user data as text, not as gzip"),
        (["--program", ADDRESS, "--gzip", "--platform", "gce"], "gce takes user data as text"),
    ],
)
def test_command_line_that_cannot_work_is_refused(words: list[str], why: str) -> None:
    done = run("cpu_only", *words)
    assert done.exit_code == 2
    assert why in done.stderr
    assert "word" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#cloud-config\nusers: [default\n", "mine:3: this is not valid YAML"),
        ("#cloud-config\nruncmd: [a]\nruncmd: [b]\n", "mine:3: "),
        ("#cloud-config\n- a\n", "mine: this part is no YAML with keys with values"),
        ("#cloud-config-archive\na: 1\n", "mine: this part is no YAML with a list"),
    ],
)
def test_part_that_cloud_init_would_leave_out_is_refused_with_its_line(
    tmp_path: Path, text: str, why: str
) -> None:
    refuses_part(tmp_path / "mine", text, why)


def test_template_is_no_yaml_before_cloud_init_has_filled_it(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text(
        "## template: jinja\n#cloud-config\n{% if v1 %}\na: 1\n{% endif %}\n"
    )
    assert run("cpu_only", "--program", ADDRESS, "--part", "mine").exit_code == 0


@pytest.mark.parametrize("name", [*PLATFORMS, "any"])
def test_user_data_of_a_class_keeps_each_limit(name: str) -> None:
    content = printed("--program", ADDRESS, "--platform", name)
    platform = PLATFORMS.get(name, ANY)
    assert not content.startswith(b"\x1f\x8b"), "it fits without compression"
    assert platform.limit is None or platform.size(content) < platform.limit


# UserDataPlatform, bytes of text, whether it has repetitions that gzip removes, and what comes out.
SIZES = [
    (UserDataPlatform("p", 100, "s", binary=True), b"a" * 100, "as it is"),
    (UserDataPlatform("p", 100, "s", binary=True), b"a" * 101, "gzip"),
    (UserDataPlatform("p", 100, "s"), b"a" * 100, "as it is"),
    (UserDataPlatform("p", 100, "s"), b"a" * 101, "has 101 bytes, and p takes 100 (s)"),
    (UserDataPlatform("p", 100, "s", base64=True), b"a" * 75, "as it is"),
    (
        UserDataPlatform("p", 100, "s", base64=True),
        b"a" * 76,
        "has 104 bytes in base64, and p takes 100",
    ),
    (UserDataPlatform("p", 100, "s", base64=True, binary=True), b"a" * 76, "gzip"),
    (UserDataPlatform("p", None, "s", binary=True), b"a" * 10**6, "as it is"),
    (UserDataPlatform("p", 30, "s", binary=True), bytes(range(100)), "takes 30"),
]


@pytest.mark.parametrize(("platform", "content", "want"), SIZES)
def test_limit_counts_as_the_platform_counts(
    platform: UserDataPlatform, content: bytes, want: str
) -> None:
    if want not in ("as it is", "gzip"):
        with pytest.raises(GoldnodeError, match=want.replace("(", r"\(").replace(")", r"\)")):
            user_data.fitted(content, platform)
        return
    found = user_data.fitted(content, platform)
    assert found.startswith(b"\x1f\x8b") == (want == "gzip")
    assert (gzip.decompress(found) if want == "gzip" else found) == content


def test_gzip_is_the_same_message(tmp_path: Path) -> None:
    done = run("cpu_only", "--program", ADDRESS, "--gzip", "--platform", "ec2", "--out", "u")
    assert "limit 16384 (ec2)" in done.output
    assert gzip.decompress((tmp_path / "u").read_bytes()) == printed("--program", ADDRESS)


def test_program_comes_from_the_mirror_by_its_content(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is published later does not change user data that is in use."""
    assert CliRunner().invoke(main, ["mirror", "key", "--out", "keys"]).exit_code == 0
    mirror = {
        "directory": str(tmp_path / "mirror"),
        "url": "http://mirror.example.net/gold",
        "key": str(tmp_path / "keys/mirror.asc"),
        "signing_key": str(tmp_path / "keys/mirror-signing.asc"),
    }
    site.write_text(SITE + yaml.safe_dump({"mirror": mirror}))
    with pytest.raises(GoldnodeError, match="Run `goldnode package publish`"):
        user_data.in_mirror(user_data_site(site))
    assert CliRunner().invoke(main, ["package", "publish"]).exit_code == 0
    found = user_data.in_mirror(user_data_site(site))
    assert found.url is not None
    path = tmp_path / "mirror" / found.url.removeprefix("http://mirror.example.net/gold/")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == found.sha256
    assert "/current/" not in found.url
    monkeypatch.setattr(user_data, "build", lambda: b"another program")
    with pytest.raises(GoldnodeError, match="is not the program of this goldnode"):
        user_data.in_mirror(user_data_site(site))
    path.chmod(0o644)
    path.write_bytes(b"no package")
    with pytest.raises(GoldnodeError, match="this is no package of goldnode-node"):
        user_data.in_mirror(user_data_site(site))


def user_data_site(path: Path) -> Any:
    from goldnode.core.site import load_site  # it is cached by its file

    return load_site(path)


# -- the script


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with a machine's files in a directory."""
    spec = importlib.util.spec_from_file_location("first_boot", data(user_data.SCRIPT))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.RECORD, module.INSTANCE) == (join_command.RECORD, join_command.INSTANCE)
    for name in ("RECORD", "INSTANCE", "INSTALLED", "PLACE"):
        monkeypatch.setattr(module, name, str(tmp_path / name))
    monkeypatch.setattr(module, "PAUSE", 0)
    (tmp_path / "INSTANCE").write_text("i-1\n")
    return module


class Quiet(SimpleHTTPRequestHandler):
    """A web server without a log."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A web server with a directory `www`."""
    (tmp_path / "www").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www")))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def settings(url: str, content: bytes, program: bytes) -> dict[str, Any]:
    return {
        "url": url,
        "sha256": hashlib.sha256(content).hexdigest(),
        "program": hashlib.sha256(program).hexdigest(),
        "options": ["--no-reboot"],
    }


def test_script_runs_the_verified_program(
    script: ModuleType, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "www/p").write_bytes(b"program")
    ran: list[Any] = []
    monkeypatch.setattr(script.os, "execv", lambda *words: ran.append(words))
    script.begin(
        settings(f"{served}/p", b"program", b"program"), user_data.packed(b'{"class": "a"}')
    )
    assert (tmp_path / "PLACE/goldnode-node").read_bytes() == b"program"
    assert json.loads((tmp_path / "PLACE/class.json").read_text()) == {"class": "a"}
    assert ran[0][1][3:] == [
        str(tmp_path / "PLACE/goldnode-node"),
        "join",
        "--class",
        str(tmp_path / "PLACE/class.json"),
        "--no-reboot",
    ]


def test_script_takes_the_program_out_of_the_package(
    script: ModuleType, served: str, tmp_path: Path
) -> None:
    assert CliRunner().invoke(main, ["package", "deb", "--out", "www"]).exit_code == 0
    (deb,) = (tmp_path / "www").iterdir()
    assert script.program(settings(f"{served}/{deb.name}", deb.read_bytes(), build())) == build()


def test_script_needs_no_server_for_a_program_that_is_there(
    script: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "INSTALLED").write_bytes(b"program")
    assert script.program(settings("http://127.0.0.1:1/", b"", b"program")) == b"program"
    embedded = {**settings("", b"", b"other"), "embedded": user_data.packed(b"other")}
    assert script.program(embedded) == b"other"


@pytest.mark.parametrize(
    ("name", "content", "program", "why"),
    [
        ("p", b"other", b"program", "and the user data names"),
        ("p", b"program", b"other", "expected"),
        ("missing", b"program", b"program", "404"),
    ],
)
def test_script_ends_without_the_right_program(
    script: ModuleType,
    served: str,
    tmp_path: Path,
    name: str,
    content: bytes,
    program: bytes,
    why: str,
) -> None:
    (tmp_path / "www/p").write_bytes(b"program")
    with pytest.raises(SystemExit, match=why) as ended:
        script.begin(settings(f"{served}/{name}", content, program), user_data.packed(b"{}"))
    assert str(ended.value).endswith("Nothing was changed.")
    assert not (tmp_path / "PLACE/goldnode-node").exists()


def test_script_waits_for_a_server(
    script: ModuleType,
    served: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "www/p").write_bytes(b"program")
    real, left = script.urllib.request.urlopen, [3]

    def slow(url: str, timeout: float) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("Network is unreachable")
        return real(url, timeout=timeout)

    monkeypatch.setattr(script.urllib.request, "urlopen", slow)
    assert script.fetch(f"{served}/p") == b"program"
    assert capsys.readouterr().out.count("it is tried again") == 1, "each reason once"
    monkeypatch.setattr(script, "PATIENCE", -1)
    left[0] = 1
    with pytest.raises(SystemExit, match="Network is unreachable"):
        script.fetch(f"{served}/p")


@pytest.mark.parametrize(
    ("record", "ends"),
    [
        (None, False),
        ("not JSON", False),
        ({"state": "applying", "instance": "i-1"}, False),
        ({"state": "joined", "instance": "i-0", "class": "a", "time": "t"}, False),
        ({"state": "joined", "instance": "i-1", "class": "a", "time": "t"}, True),
    ],
)
def test_script_does_nothing_on_a_member(
    script: ModuleType, tmp_path: Path, record: Any, ends: bool
) -> None:
    if record is not None:
        (tmp_path / "RECORD").write_text(record if isinstance(record, str) else json.dumps(record))
    found = script.joined()
    assert (found is not None) == ends
    if ends:
        with pytest.raises(SystemExit) as ended:
            script.begin({}, "")
        assert ended.value.code == 0
