"""A made-up product goes through every channel command: the protocol is all that a product needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from tests.suite import channel_lines
from tests.unit.channels import signing
from tests.unit.images.registries import make_key

from goldnode.channels import promotion
from goldnode.channels.gc import UNNEEDED, Collected, Collection, Gone, NeededContent, named_here
from goldnode.channels.lines import ChannelLine, History
from goldnode.channels.product import Location
from goldnode.channels.promotion import LocalPlace, Move, MoveResult
from goldnode.channels.requirements import Decisions, Requirement, requirements
from goldnode.channels.signed import SignedChannels
from goldnode.commands import channel_moves as shared
from goldnode.commands.output import reports
from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.core.files import replace_file

LINE = ChannelLine("boot", "netboot")


class BootStore:
    """A directory with one file per image, named after its tag, and one per channel."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def name_as(self, name: str, digest: str) -> None:
        replace_file(self.root / "names" / name, digest.encode())


class BootPlace(LocalPlace):
    """The store as the place of its channels. The digest of an image is its content."""

    command = "goldnode boots"

    def pointer(self, line: ChannelLine, channel: str) -> str | None:
        path = self.keeper.root / "names" / promotion.local_name(self.name, line, channel)
        return path.read_text() if path.is_file() else None

    def published(self, line: ChannelLine, tag: str) -> str | None:
        path = self.keeper.root / "images" / tag
        return path.read_text() if path.is_file() else None

    def whole(self, line: ChannelLine, digest: str) -> int:
        if digest not in {path.read_text() for path in (self.keeper.root / "images").iterdir()}:
            raise ImageError(f"{digest} is not there")
        return len(digest)


class BootProduct:
    """Network boot images, whose one requirement is that their content is good."""

    requirements = requirements(("good",), canary=(), stable=(), majors=())

    def __init__(self, root: Path) -> None:
        self.store, self.location = BootStore(root), Location(root)

    @contextmanager
    def place(self, signer: Any = None) -> Iterator[BootPlace]:
        yield BootPlace(self.store)

    def line(self, text: str) -> ChannelLine:
        return LINE

    def find(self, place: BootPlace, text: str) -> tuple[ChannelLine, str]:
        return LINE, text

    def promote(self, place: BootPlace, move: Move) -> MoveResult:
        def judging(
            history: History, digest: str, against: str | None
        ) -> tuple[list[Requirement], list[str]]:
            def good(name: str) -> Requirement:
                return Requirement(
                    name, "failed" if digest.startswith("bad") else "passed", f"it is {digest}"
                )

            given: Decisions = move.decisions(history)
            return self.requirements.judge(move.channel, digest, given, good, list), [
                f"after {against}"
            ]

        return promotion.promote(place, self.store, move, judging)

    def lines(self, place: BootPlace, channels: SignedChannels) -> Sequence[ChannelLine]:
        return channels.lines()

    def known(self) -> Sequence[str]:
        return ["boot:netboot"]

    def needed(self) -> NeededContent:
        return NeededContent(named_here(self.store))

    def collect(self, keeps: NeededContent, how: Collection) -> Collected:
        gone, stays = [], {}
        for path in sorted((self.store.root / "images").iterdir()):
            if (why := keeps.digests.get(path.read_text())) is not None:
                stays[path.name] = why
            else:
                gone.append(Gone(path.name, UNNEEDED))
        return gone, stays

    def locks(self) -> Mapping[str, str]:
        return {}


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BootProduct:
    monkeypatch.delenv("GOLDNODE_SITE", raising=False)
    monkeypatch.setattr("os.fsync", lambda number: None)
    (tmp_path / "images").mkdir()
    for name in ("one", "two", "bad"):
        (tmp_path / "images" / name).write_text(f"{name}-digest")
    return BootProduct(tmp_path)


@pytest.fixture
def keys(tmp_path_factory: pytest.TempPathFactory, product: BootProduct) -> shared.Keys:
    folder = tmp_path_factory.mktemp("keys")
    secret, public = make_key(folder)
    signing.make_channels(BootPlace(product.store), product.store, folder, secret)
    return shared.Keys((public,), secret, online=signing.key_of(folder, "online"))


def move(
    product: BootProduct, keys: shared.Keys, channel: str, name: str, **given: Any
) -> MoveResult:
    return shared.promote(product, channel, name, keys, shared.Decision(by="ana", **given))[1]


def printed(run: Any) -> Result:
    """Run a function that prints a document within a command, as click does."""

    @click.command()
    @reports("test")
    def command(form: str) -> None:
        run(form)

    return CliRunner().invoke(command, ["--format", "json"])


def test_product_is_promoted_rolled_back_shown_and_collected(
    product: BootProduct, keys: shared.Keys
) -> None:
    for name in ("one", "two"):
        for channel in ("candidate", "canary", "stable"):
            moved = move(product, keys, channel, name)
    assert (moved.now, moved.was) == ("two-digest", "one-digest")
    assert "after one-digest" in moved.notes
    back = shared.rollback(
        product,
        line="netboot",
        channel="stable",
        to=None,
        keys=keys,
        decision=shared.Decision(by="ana"),
    )[1]
    assert back.now == "one-digest"
    shown = printed(lambda form: shared.show_status(product, [], shared.StatusOptions(), form))
    assert shown.exit_code == 0, shown.output
    assert '"verified": true' in shown.output
    gone = printed(lambda form: shared.collect(product, Collection(dry_run=True), form))
    assert '"what": "bad"' in gone.output
    assert '"two": "' in gone.output, "the history names it"


def test_unmet_requirement_stops_the_product_unless_it_is_waived(
    product: BootProduct, keys: shared.Keys
) -> None:
    with pytest.raises(
        GoldnodeError, match="bad is not promoted to candidate: good: it is bad-digest"
    ):
        move(product, keys, "candidate", "bad")
    moved = move(product, keys, "candidate", "bad", reason="a trial", waive=("good",))
    assert [(one.name, one.state, one.by) for one in moved.requirements] == [
        ("good", "waived", "ana")
    ]


@pytest.mark.parametrize(
    ("channel", "given", "why"),
    [
        ("stabel", {}, 'there is no channel "stabel"'),
        ("publish", {}, 'there is no channel "publish"'),
        ("stable", {"waive": ("god",), "reason": "x"}, 'stable has no requirement "god"'),
        ("stable", {"waive": ("good",)}, "--waive is recorded with who decided it and why"),
        ("canary", {"approve_major": ("kernel",), "reason": "x"}, 'no approval of "kernel"'),
    ],
)
def test_wrong_word_is_refused_before_anything_is_read(
    tmp_path: Path, keys: shared.Keys, channel: str, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(ImageError, match=why):
        move(BootProduct(tmp_path / "absent"), keys, channel, "one", **given)
    assert not (tmp_path / "absent").exists()


def test_signed_channels_have_fewer_lines_than_the_protocols_they_replace() -> None:
    assert channel_lines.without_features() < channel_lines.BEFORE
