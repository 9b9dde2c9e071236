"""Merging into files that are somebody else's: what was there survives, merging twice changes nothing, and what cannot be read is located."""

from __future__ import annotations

import json
import random
import re
import sys
import tomllib
from contextlib import suppress
from typing import Any

import pytest

from goldnode.node.effective import containerd
from goldnode.node.effective import enginetext as text_of
from goldnode.node.effective.cdi import read_cdi

WANT = {"nvidia": "nvidia-container-runtime"}
DROP_IN = "/etc/containerd/conf.d/goldnode.toml"
PROGRAM = "/usr/bin/nvidia-container-runtime"
CRI = "io.containerd.grpc.v1.cri"


def dice_of(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - values for a test, the same in every run


def anything(dice: random.Random, depth: int = 0) -> Any:
    """Some JSON value."""
    kind = dice.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [anything(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind == 6:
        return table(dice, depth + 1)
    return [
        None,
        dice.random() < 0.5,
        dice.randrange(-(10**9), 10**9),
        dice.random() * 10 ** dice.randrange(-9, 9),
        word(dice),
    ][kind]


def word(dice: random.Random) -> str:
    return "".join(dice.choice('abc-./"\\ \n\té漢😀\x7f') for _ in range(dice.randrange(1, 8)))


def table(dice: random.Random, depth: int = 0) -> dict[str, Any]:
    return {word(dice): anything(dice, depth) for _ in range(dice.randrange(5))}


def covers(small: Any, large: Any) -> bool:
    """Whether every key and value of `small` is in `large`, in the same order where both are objects."""
    if isinstance(small, dict) and isinstance(large, dict):
        stored = [key for key in large if key in small]
        return stored == list(small) and all(
            covers(value, large[key]) for key, value in small.items()
        )
    return bool(small == large) and type(small) is type(large)


@pytest.mark.parametrize("seed", range(200))
def test_every_key_of_the_user_survives_in_daemon_json(seed: int) -> None:
    dice = dice_of(seed)
    users = table(dice)
    if dice.random() < 0.5:
        users["runtimes"] = {word(dice): {"path": word(dice)} for _ in range(dice.randrange(3))}
    if dice.random() < 0.5:
        users["features"] = {"buildkit": True}
    before = json.dumps(
        users, indent=dice.choice([None, 2, "\t"]), ensure_ascii=dice.random() < 0.5
    )
    cdi, default = dice.random() < 0.5, dice.choice([None, "nvidia"])
    after = text_of.merge_daemon(before, WANT, default, cdi)
    found = json.loads(after)
    assert covers(users, found)
    assert found["runtimes"]["nvidia"] == {"path": "nvidia-container-runtime"}
    assert found.get("default-runtime") == default
    assert found.get("features", {}).get("cdi", False) is cdi
    added = set(found) - set(users)
    assert added <= {"runtimes", "default-runtime", "features"}
    assert text_of.merge_daemon(after, WANT, default, cdi) == after, (
        "a second merge changes nothing"
    )


def test_merge_leaves_an_equivalent_daemon_json_unchanged() -> None:
    mine = '{ "runtimes":{"nvidia":{"path":"/usr/bin/nvidia-container-runtime"}} , "debug":true}'
    assert text_of.merge_daemon(mine, WANT, None, False) == mine


def test_runtime_of_another_directory_is_a_conflict() -> None:
    """It may be a remainder: docker reports it only when a container starts with it."""
    mine = '{"runtimes": {"nvidia": {"path": "/opt/old/nvidia-container-runtime"}}}'
    with pytest.raises(text_of.ConflictError, match="/opt/old"):
        text_of.merge_daemon(mine, WANT, None, False)


@pytest.mark.parametrize(
    ("like", "shows"),
    [
        ('{\n\t"a": 1\n}', '\n\t"runtimes"'),
        ('{\n  "a": 1\n}', '\n  "runtimes"'),
        ("", '\n    "runtimes"'),
    ],
)
def test_indented_as_the_users_file(like: str, shows: str) -> None:
    assert shows in text_of.merge_daemon(like, WANT, None, False)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('{"a": 1,}', 1, 8 if sys.version_info >= (3, 13) else 9),
        ('{\n  "a": 1\n  "b": 2\n}', 3, 3),
        ("{'a': 1}", 1, 2),
        ("[1]", 1, 1),
        ('{"a": 1} x', 1, 10),
        ('{"a":\n 1, "a": 2}', 2, 5),
    ],
)
def test_broken_json_has_a_place(text: str, line: int, column: int) -> None:
    with pytest.raises(text_of.BrokenError) as caught:
        text_of.merge_daemon(text, WANT, None, False)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    "broken", ['{"runtimes": []}', '{"runtimes": {"nvidia": "x"}}', '{"features": true}']
)
def test_a_shape_that_docker_would_not_take_is_a_conflict(broken: str) -> None:
    with pytest.raises(text_of.ConflictError):
        text_of.merge_daemon(broken, WANT, None, cdi=True)


# -- containerd


def drop_in(
    users: dict[str, Any], *others: dict[str, Any], release: str = "1.7", **wants: Any
) -> dict[str, Any]:
    """The CRI table of the drop-in for a config.toml and its imports."""
    rows = zip(
        (containerd.CONFIG, *(f"/etc/containerd/conf.d/{n}.toml" for n in range(9))),
        (users, *others),
        strict=False,
    )
    files = [containerd.ConfigFile(name, text_of.write_toml(table), table) for name, table in rows]
    settings = containerd.Wants(**{"program": PROGRAM, "default": False, "cdi": False, **wants})
    found = tomllib.loads(containerd.drop_in(files, settings, containerd.release(release)))
    ((_, table),) = found["plugins"].items()
    return dict(table)


def toml_table(dice: random.Random, depth: int = 0) -> dict[str, Any]:
    """Some TOML table: no null, and lists of one kind."""
    found: dict[str, Any] = {}
    for _ in range(dice.randrange(4)):
        value = [
            word(dice),
            dice.randrange(99),
            True,
            [word(dice), word(dice)],
            dice.random(),
            [{"a": 1}],
        ][dice.randrange(6)]
        found[word(dice)] = (
            toml_table(dice, depth + 1) if depth < 2 and dice.random() < 0.4 else value
        )
    return found


@pytest.mark.parametrize("seed", range(200))
def test_written_toml_reads_back_as_it_was(seed: int) -> None:
    wanted = toml_table(dice_of(seed))
    assert tomllib.loads(text_of.write_toml(wanted)) == wanted


@pytest.mark.parametrize("seed", range(100))
def test_the_drop_in_holds_the_users_cri_table(seed: int) -> None:
    dice = dice_of(seed)
    users: dict[str, Any] = {
        "version": 2,
        "plugins": {CRI: toml_table(dice), "other": toml_table(dice)},
    }
    table = drop_in(users, default=dice.random() < 0.5, cdi=dice.random() < 0.5)
    assert text_of.deep(table, users["plugins"][CRI]) == table
    assert table["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"] == PROGRAM
    assert table["containerd"]["runtimes"]["runc"] == {"runtime_type": "io.containerd.runc.v2"}


def test_the_users_runtimes_and_their_cgroup_driver() -> None:
    runc = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    users = {
        "version": 2,
        "plugins": {
            CRI: {"containerd": {"runtimes": {"runc": runc, "kata": {"runtime_type": "kata.v2"}}}}
        },
    }
    found = drop_in(users, default=True, cdi=True)
    assert found["containerd"]["runtimes"]["runc"] == runc
    assert found["containerd"]["runtimes"]["kata"] == {"runtime_type": "kata.v2"}
    assert found["containerd"]["runtimes"]["nvidia"]["options"] == {
        "SystemdCgroup": True,
        "BinaryName": PROGRAM,
    }
    assert (found["containerd"]["default_runtime_name"], found["enable_cdi"]) == ("nvidia", True)


def test_the_last_import_that_has_the_table_is_what_containerd_uses() -> None:
    users = {"version": 2, "plugins": {CRI: {"sandbox_image": "a"}}}
    other = {"version": 2, "plugins": {CRI: {"sandbox_image": "b"}}}
    assert drop_in(users, other, {"version": 2})["sandbox_image"] == "b"


@pytest.mark.parametrize(("release", "version"), [("2.0", 3), ("2.2", 3), ("2.3", 4)])
def test_containerd_2_merges_so_the_drop_in_has_the_settings_alone(
    release: str, version: int
) -> None:
    plugin = "io.containerd.cri.v1.runtime"
    runc = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    users = {"version": version, "plugins": {plugin: {"containerd": {"runtimes": {"runc": runc}}}}}
    other = {"version": version, "plugins": {plugin: {"enable_selinux": False}}}
    found = drop_in(users, other, release=release, default=True, cdi=True)
    options = {"SystemdCgroup": True, "BinaryName": PROGRAM}
    assert found == {
        "containerd": {
            "default_runtime_name": "nvidia",
            "runtimes": {"nvidia": {"runtime_type": "io.containerd.runc.v2", "options": options}},
        },
        "enable_cdi": True,
    }


@pytest.mark.parametrize(
    ("users", "other", "release", "why"),
    [
        ({"version": 4}, {}, "2.2", "config.toml:1: its version is 4, and containerd 2.2 reads none later than 3"),
        ({"version": 3}, {}, "1.7", "reads none later than 2"),
        ({}, {}, "1.7", "config.toml:1: its version is 1, and goldnode writes drop-ins of versions 2 to 4"),
        ({"version": 2}, {"version": 3}, "2.1", "0.toml:1: its version is 3 and that of /etc/containerd/config.toml 2"),
        ({"disabled_plugins": ["cri"]}, {}, "1.7", 'config.toml:1: disabled_plugins has "cri"'),
        ({"version": 2}, {"disabled_plugins": ["io.containerd.grpc.v1.cri"]}, "2.1", "0.toml:1: disabled_plugins"),
    ],
)  # fmt: skip
def test_files_that_containerd_does_not_read_together(
    users: dict[str, Any], other: dict[str, Any], release: str, why: str
) -> None:
    with pytest.raises(text_of.ConflictError, match=re.escape(why)):
        drop_in(users, other, release=release)


@pytest.mark.parametrize("value", [3, "x", [1], ["cri"], {"containerd": 1}, {CRI: 1}, {CRI: {"containerd": {"runtimes": [1]}}},
                                   {CRI: {"containerd": {"runtimes": {"runc": 1, "nvidia": {"options": "x"}}}}}])  # fmt: skip
@pytest.mark.parametrize("key", ["plugins", "version", "disabled_plugins", "imports"])
@pytest.mark.parametrize("release", ["1.7", "2.1"])
def test_values_of_other_types_are_no_traceback(key: str, value: Any, release: str) -> None:
    users = {"version": 2, key: value}
    with suppress(text_of.ConflictError):
        drop_in(users, release=release, default=True, cdi=True)


def test_containerd_1_6_has_no_cdi() -> None:
    with pytest.raises(text_of.ConflictError, match=re.escape("containerd 1.6 has no CDI")):
        drop_in({"version": 2}, release="1.6", program=None, cdi=True)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("version = 2\n", id="plain"),
        pytest.param("# mine\nversion = 2  # the format\n\n[plugins]\n", id="comments"),
        pytest.param("version = 2\nimports = []\n", id="empty-list"),
        pytest.param('version = 2\nimports = ["/a/*.toml"]\n[plugins]\n', id="one"),
        pytest.param(
            "version = 2\nimports = [\n  \"/a.toml\",\n  '/b].toml',\n]\n", id="many-lines"
        ),
        pytest.param('version = 2\nimports = [\n  "/a.toml"  # mine\n]\n', id="comment-at-the-end"),
        pytest.param(
            'version = 2\nimports = [ # "/b.toml"]\n  "/a.toml", # mine ]\n]\n',
            id="comments-inside",
        ),
        pytest.param("version = 2\nimports = [ # none\n]\n", id="comment-alone"),
        pytest.param("version = 2", id="no-newline"),
        pytest.param(
            'root = "/x"\nversion = 2\n[plugins."a".imports]\nb = ["x"]\n', id="imports-elsewhere"
        ),
    ],
)
def test_only_the_import_is_inserted(text: str) -> None:
    config = tomllib.loads(text)
    after = text_of.with_import(text, config, DROP_IN)
    assert tomllib.loads(after) == {**config, "imports": [*config.get("imports", ()), DROP_IN]}
    assert text_of.with_import(after, tomllib.loads(after), DROP_IN) == after
    if "imports" not in config:
        rest = [line for line in after.splitlines() if text_of.MARK not in line]
        assert rest == text.splitlines()
    else:
        assert len(after) - len(text) <= len(DROP_IN) + 4


def test_an_imports_list_of_another_spelling_is_left_to_its_owner() -> None:
    text = 'version = 2\n"imports" = ["/a.toml"]\n'
    with pytest.raises(text_of.ConflictError, match="cannot be added"):
        text_of.with_import(text, tomllib.loads(text), DROP_IN)


@pytest.mark.parametrize(
    "entry", ["/etc/containerd/conf.d/*.toml", DROP_IN, "/etc/containerd/conf.d/gold*"]
)
def test_a_pattern_that_takes_the_file_is_enough(entry: str) -> None:
    text = f'version = 2\nimports = ["{entry}"]\n'
    assert text_of.with_import(text, tomllib.loads(text), DROP_IN) == text


def test_broken_toml_has_a_place() -> None:
    with pytest.raises(text_of.BrokenError) as caught:
        text_of.read_toml("version = 2\nroot = \n")
    assert (caught.value.line, caught.value.column) == (2, 8)


# -- the toolkit's own file

TOOLKIT = '[a]\nmode = "x"\n\n[nvidia-container-runtime]\n#debug = "/x"\n%sruntimes = ["runc"]\n\n[nvidia-container-runtime.modes]\nmode = "y"\n'


@pytest.mark.parametrize("line", ['mode = "auto"\n', '#mode = "auto"\n', "  mode='auto'\n", ""])
def test_one_key_of_the_toolkit(line: str) -> None:
    before = TOOLKIT % line
    after = text_of.with_toolkit_mode(before, "legacy")
    assert text_of.toolkit_mode(after) == "legacy"
    found = tomllib.loads(after)
    assert found["nvidia-container-runtime"]["mode"] == "legacy"
    assert (found["a"]["mode"], found["nvidia-container-runtime"]["modes"]["mode"]) == ("x", "y")
    assert len(set(after.splitlines()) ^ set(before.splitlines())) <= 2
    assert text_of.with_toolkit_mode(after, "legacy") == after


@pytest.mark.parametrize("text", ["", "a = 1\n", "a = 1"])
def test_a_file_without_the_section(text: str) -> None:
    after = text_of.with_toolkit_mode(text, "cdi")
    assert tomllib.loads(after)["nvidia-container-runtime"] == {"mode": "cdi"}
    assert text_of.toolkit_mode(text) is None


# -- CDI


def test_amd_cdi_spec_has_devices_and_groups() -> None:
    nodes = [
        {"render": "/dev/dri/renderD128", "card": "/dev/dri/card0"},
        {"render": "/dev/dri/renderD129"},
    ]
    spec = json.loads(text_of.amd_cdi(nodes, [44, 992]))
    assert spec["containerEdits"] == {
        "deviceNodes": [{"path": "/dev/kfd"}],
        "additionalGids": [44, 992],
    }
    assert [device["name"] for device in spec["devices"]] == ["0", "1", "all"]
    found = read_cdi(json.dumps(spec))
    assert found.kind == "amd.com/gpu"
    assert found.paths == [
        "/dev/dri/card0",
        "/dev/dri/renderD128",
        "/dev/dri/renderD129",
        "/dev/kfd",
    ]
