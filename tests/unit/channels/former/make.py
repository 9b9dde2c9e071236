"""Make the histories beside this file with version 0.2.0: `git worktree add DIR d43518bd; PYTHONPATH=DIR/src python make.py`.

It runs nothing of this checkout: promotions and rollbacks of that version write and sign the histories.
"""

# mypy: ignore-errors
import datetime as dt
import subprocess
import tempfile
from pathlib import Path

from goldnode.channels.history import Line

from goldnode.channels import moves
from goldnode.channels.requirements import Approval, Gate
from goldnode.disks.lines import line_of
from goldnode.evidence.signatures import load_signer

HERE = Path(__file__).parent
LINES = {
    line_of("cpu_node"): "",
    Line("cuda", "12.4-runtime-debian12"): "12.4.1-runtime-debian12-",
}
DIGESTS = {"a" * 12: "sha256:" + "a" * 64, "b" * 12: "sha256:" + "b" * 64}
GATES = {
    "candidate": [Gate("evidence", "passed", "an SBOM", ("sha256:" + "e" * 64,))],
    "canary": [
        Gate("order", "passed", "it was candidate"),
        Gate("vulnerabilities", "waived", "missing: none", by="ana", reason="no data"),
    ],
    "stable": [],
}


class Place:
    name, command, settles, copy = "place", "goldnode disks", False, False

    def __init__(self, prefix):
        self.prefix, self.history, self.tags = prefix, b"", {}

    def text(self, line):
        return self.history

    def commit(self, line, text):
        self.history = text

    def pointer(self, line, channel):
        return self.tags.get(channel)

    def point(self, line, channel, digest):
        self.tags[channel] = digest

    def published(self, line, tag):
        return DIGESTS[tag[len(self.prefix) :]]

    def whole(self, line, digest):
        pass


class Store:
    def __init__(self, root):
        self.root = Path(root)

    def name_as(self, name, digest):
        pass


def main():
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "key.pem")
        for words in (
            f"openssl genpkey -algorithm ed25519 -out {key}",
            f"openssl pkey -in {key} -pubout -out {HERE / 'builder.pub'}",
        ):
            subprocess.run(words.split(), check=True)
        key.chmod(0o600)
        signer = load_signer(key)
        for line, prefix in LINES.items():
            name = line.repository
            place, store = Place(prefix), Store(Path(folder, name))
            day = dt.datetime(2026, 11, 21, 10, 1, tzinfo=dt.UTC)
            step = dt.timedelta(days=1, minutes=1)
            for tag in DIGESTS:
                for channel, gates in GATES.items():
                    moves.advance(
                        place,
                        store,
                        line,
                        prefix + tag,
                        channel,
                        signer,
                        judging=lambda *_, gates=gates: (gates, []),
                        by="ana",
                        now=day,
                        approvals=[Approval("driver", "bo", "new")] if channel == "stable" else (),
                    )
                    day += step
            moves.rollback(place, store, line, signer, by="ana", reason="it is slow", now=day)
            (HERE / f"{name}.jsonl").write_bytes(place.history)


if __name__ == "__main__":
    main()
