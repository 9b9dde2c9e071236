"""`goldnode facts update`: facts that were signed elsewhere are in force, or the present ones stay."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.unit.channels.test_updates import key

from goldnode.channels import updates
from goldnode.channels.keys import signers
from goldnode.cli import main
from goldnode.compat import rules_host
from goldnode.facts import host

# Dates of facts that are newer than the built-in ones.
NEXT, LATER = (str(host.built_in() + dt.timedelta(days=days)) for days in (1, 2))


class Desk:
    """A publisher's repository, and a site that trusts it, in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.online, self.targets = (
            str(key(folder, name)) for name in ("root", "online", "targets")
        )
        self.facts = folder / "facts"
        self.facts.mkdir()
        for name in (
            "health.yml",
            "known_bad.yml",
            "performance.yml",
        ):  # the other facts stay the built-in ones
            shutil.copy(host.FACTS / name, self.facts)
        self.site = folder / "goldnode-site.yml"
        self.site.write_text("facts: {source: repository, root: trusted.json}\n")

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["facts", *words])

    def publish(self, *words: str) -> Result:
        keys = ("--key", self.online, "--targets-key", self.targets)
        done = self.run("publish", "repository", *keys, "--facts", str(self.facts), *words)
        if not Path("trusted.json").exists() and done.exit_code == 0:
            shutil.copy("repository/metadata/1.root.json", "trusted.json")
        return done

    def edit(self, compiled: str, limit: str = "") -> None:
        """Give all facts another date, and one of them another text."""
        for path in self.facts.glob("*.yml"):
            text = path.read_text()
            path.write_text(
                re.sub(r"compiled: *['\"]?[\d-]+['\"]?", f'compiled: "{compiled}"', text, count=1)
            )
        if limit:
            path = self.facts / "known_bad.yml"
            path.write_text(path.read_text().replace("subject:", f"subject: {limit} -", 1))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOLDNODE_SITE", raising=False)
    return Desk(tmp_path)


def test_facts_are_published_fetched_and_in_force(desk: Desk) -> None:
    before = host.compiled()
    desk.edit(NEXT, "theirs")
    assert desk.publish("--root-key", desk.root, "--bundle", "facts.zip").exit_code == 0
    assert host.compiled() == before
    done = desk.run("update")
    assert done.exit_code == 0, done.output
    assert "update 1 of" in done.output
    assert f"installed, facts of {NEXT}" in done.output
    assert str(host.compiled()) == NEXT
    assert host.load("known_bad.yml")["meta"]["subject"].startswith("theirs")
    assert "in force already" in desk.run("update").output
    desk.edit(LATER, "newer")
    desk.publish("--bundle", "facts.zip")
    shutil.rmtree("repository")  # no network: the archive is enough
    done = desk.run("update", "--from", "facts.zip", "--format", "json")
    found = json.loads(done.output)
    assert (found["version"], found["compiled"], found["changed"]) == (2, LATER, True)
    assert str(host.compiled()) == LATER
    shutil.rmtree("facts-update")
    assert host.compiled() == before


def test_facts_that_this_version_cannot_read_are_refused(desk: Desk) -> None:
    desk.edit(NEXT)
    desk.publish("--root-key", desk.root)
    desk.run("update")
    broken = desk.facts / "health.yml"
    broken.write_text(broken.read_text().replace("limits:", "bounds:", 1))
    done = desk.publish()
    assert done.exit_code == 2
    assert "health.yml" in done.output
    assert "cannot be used by this version" in done.output
    # A publisher with another version of goldnode accepts them.
    release = updates.next_release(Path("repository"))
    for path in desk.facts.glob("*.yml"):
        updates.add_file(Path("repository"), release.signed, path.name, path.read_bytes())
    updates.accept(
        Path("repository"), "targets", updates.sign(release, signers([Path(desk.targets)]))
    )
    updates.refresh(Path("repository"), signers([Path(desk.online)]))
    done = desk.run("update")
    assert done.exit_code == 2
    assert "cannot be used by this version of goldnode" in done.output
    assert str(host.compiled()) == NEXT, "the facts in force stay"


def test_an_update_that_is_older_than_this_version_is_not_used(desk: Desk) -> None:
    before = host.compiled()
    desk.edit("2001-01-01")
    desk.publish("--root-key", desk.root)
    done = desk.run("update")
    assert done.exit_code == 2
    assert "are of 2001-01-01, and this version of goldnode has those of" in done.output
    assert not Path("facts-update/update.json").exists(), "nothing is installed"
    assert host.compiled() == before


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        ("{}\n", "does not say whose facts to trust"),
        ("facts: {root: trusted.json}\n", "no repository of updates is named"),
        ("facts: {source: nowhere, root: trusted.json}\n", "neither a directory nor a zip archive"),
        (
            "facts: {source: repository, root: absent.json}\n",
            "trusted root document cannot be read",
        ),
        ("facts: {source: repository}\n", "root"),
    ],
)
def test_a_site_file_that_does_not_fit(desk: Desk, site: str, expected: str) -> None:
    desk.publish("--root-key", desk.root)
    desk.site.write_text(site)
    done = desk.run("update")
    assert done.exit_code != 0
    assert expected in done.output
    assert "Traceback" not in done.output


def test_an_installed_update_that_was_damaged_is_an_error(desk: Desk) -> None:
    desk.edit(NEXT)
    desk.publish("--root-key", desk.root)
    desk.run("update")
    shutil.rmtree("facts-update/1")
    done = CliRunner().invoke(main, ["check", "-c", "cpu_only"])
    assert done.exit_code != 0
    assert "installed update of the facts cannot be used: its directory 1 is missing" in done.output
    assert "goldnode facts update" in done.output
    again = desk.run("update")
    assert again.exit_code == 0, again.output
    assert str(host.compiled()) == NEXT


def test_facts_beyond_the_limit_of_the_site_are_a_warning(desk: Desk) -> None:
    today = dt.datetime.now(tz=dt.UTC).date()
    old = max((today - host.built_in()).days, 0)
    warned = []
    for limit in (old + 1, old, max(old - 1, 1)):
        desk.site.write_text(f"facts: {{root: trusted.json, max_age: {limit}}}\n")
        found = rules_host.facts_age(limit, host.built_in() + dt.timedelta(days=old))
        warned.append(bool(found))
        done = CliRunner().invoke(main, ["check", "-c", "cpu_only"])
        assert ("[facts-age]" in done.output) == (old > limit)
    assert warned == [False, False, old > max(old - 1, 1)]
    (finding,) = rules_host.facts_age(90, host.built_in() + dt.timedelta(days=91))
    assert finding.severity == "warn"
    assert "91 days old; the site's limit is 90" in finding.message
    assert finding.remedy == "run `goldnode facts update`"


def test_a_rotation_is_followed(desk: Desk) -> None:
    desk.edit(NEXT)
    desk.publish("--root-key", desk.root)
    desk.run("update")
    fresh, root = (str(key(desk.folder, name)) for name in ("fresh", "fresh-root"))
    done = desk.run(
        "rotate", "repository", "--key", fresh, "--root-key", desk.root, "--new-root-key", root
    )
    assert done.exit_code == 0, done.output
    desk.online = fresh
    desk.edit(LATER)
    desk.publish()
    assert desk.run("update").exit_code == 0
    assert str(host.compiled()) == LATER


def test_a_refresh_without_the_keys_of_targets_changes_no_facts(desk: Desk) -> None:
    desk.edit(NEXT)
    desk.publish("--root-key", desk.root)
    desk.run("update")
    refused = desk.run("publish", "repository", "--key", desk.online, "--facts", str(desk.facts))
    assert "released with the keys of targets" in refused.output
    done = desk.run("publish", "repository", "--key", desk.online, "--valid", "200")
    assert done.exit_code == 0, done.output
    done = desk.run("update", "--format", "json")
    found = json.loads(done.output)
    assert (found["version"], found["changed"]) == (1, False)
    assert found["expires"] > str(dt.datetime.now(tz=dt.UTC) + dt.timedelta(days=190))
