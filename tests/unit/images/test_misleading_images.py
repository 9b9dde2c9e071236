"""Mistakes of teams that derive and publish images: what the answer names, and what it does not.

Each row was once answered with another cause, or with advice that cannot be followed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from tests.unit.images.test_derived import Team
from tests.unit.images.test_derived import team as team  # the fixture
from tests.unit.images.test_imagelock import rows as rows  # the fixture

from goldnode.channels.product import Location
from goldnode.core.errors import ImageError
from goldnode.images.declaration import load_declaration
from goldnode.images.matrix import MatrixRow
from goldnode.images.product import ImageProduct
from goldnode.images.publish import publish
from goldnode.images.resolve import NoWheelError, no_wheel
from goldnode.images.wheelindex import Index
from goldnode.oci.layout import OciImage
from goldnode.oci.registry import Registry, RegistryAddress

DERIVE = "derive: 1\nname: recsys/trainer\nversion: {version}\nbase: cpu-1-base-debian12\n"
WHEEL = "build a wheel of it (`pip wheel --no-deps DIRECTORY`)"


@pytest.mark.parametrize(
    ("text", "line", "has", "lacks"),
    [
        (
            DERIVE.format(version="'1'") + "entrypoint: python3 /app/main.py\n",
            5,
            "Write it as a list: [python3, /app/main.py].",
            "[python3 /app/main.py]",
        ),
        (
            DERIVE.format(version="'1'") + "command: run --text 'a b' 8\n",
            5,
            'Write it as a list: [run, "--text", "a b", "8"].',
            "",
        ),
        (
            DERIVE.format(version="1.10"),
            3,
            '"version" is 1.10, expected text. Write it in quotes: "1.10".',
            '"1.1"',
        ),
        (
            "{derive: 1, name: a/b, version: 1.10, base: x}\n",
            1,
            'Write it in quotes: "1.10".',
            '"1.1"',
        ),
        (
            DERIVE.format(version="'1'") + "debs: [libgomp1]\n",
            5,
            "Write packages of the distribution as packages: [NAME].",
            "unknown key",
        ),
    ],
    ids=["entrypoint", "quoted-words", "version", "version-in-a-line", "debs"],
)
def test_invalid_declaration_is_refused_at_its_line(
    tmp_path: Path, text: str, line: int, has: str, lacks: str
) -> None:
    (tmp_path / "derive.yml").write_text(text)
    with pytest.raises(ImageError) as error:
        load_declaration(tmp_path)
    assert error.value.line == line
    assert has in str(error.value)
    assert not lacks or lacks not in str(error.value)


@pytest.mark.parametrize(
    ("text", "has", "lacks"),
    [
        (
            "-e .",
            '"-e" is an option of pip. An image has no editable installation: build a wheel',
            "pip.conf",
        ),
        (
            "--editable=./src",
            '"--editable" is an option of pip. An image has no editable installation',
            "pip.conf",
        ),
        ("-c limits.txt", "Write the versions of the constraints into this file.", "pip.conf"),
        (
            "--extra-index-url https://x.example",
            "Move it to pip's configuration (pip.conf).",
            WHEEL,
        ),
        ("./src", '"./src" is a path, and goldnode installs only wheels of an index', "semicolon"),
        ("/srv/a-1-py3-none-any.whl", "is a path", "semicolon"),
        (
            "git+ssh://git@x.example/a.git",
            '"git+ssh://git@x.example/a.git" names an address',
            "semicolon",
        ),
        ("a @ git+https://x.example/a.git", "names an address", "semicolon"),
    ],
)
def test_invalid_requirement_of_an_image_is_refused_at_its_line(
    tmp_path: Path, text: str, has: str, lacks: str
) -> None:
    (tmp_path / "derive.yml").write_text(
        DERIVE.format(version="'1'") + "requirements: requirements.txt\n"
    )
    (tmp_path / "requirements.txt").write_text(f"packaging\n{text}\n")
    with pytest.raises(ImageError) as error:
        load_declaration(tmp_path)
    found = str(error.value).replace(f"{tmp_path}/", "")
    assert found.startswith("requirements.txt:2: ")
    assert has in found
    assert lacks not in found


PAGES = {
    "there": ["there-1.0-py3-none-any.whl", "there-1.10-py3-none-any.whl", "there-2.0.tar.gz"],
    "elsewhere": ["elsewhere-1.0-cp39-cp39-win_amd64.whl", "elsewhere-1.0.tar.gz"],
    "source": ["source-1.0.tar.gz"],
}


@pytest.mark.parametrize(
    ("requirement", "has"),
    [
        (
            "there==2.0",
            "no index has this version with wheels for Python 3.11 on x86_64. Use one of: 1.10, 1.0.",
        ),
        (
            "Elsewhere",
            "the index has wheels of it, and none for Python 3.11 on x86_64. Use another base, or build",
        ),
        (
            "source==1.0",
            "the index has only its source, and goldnode installs only wheels. Build its wheel in the flavour",
        ),
        ("sorce", "no index has a project of this name. Correct the name"),
    ],
)
def test_a_project_without_a_wheel(
    rows: dict[str, MatrixRow], monkeypatch: pytest.MonkeyPatch, requirement: str, has: str
) -> None:
    def get(self: Index, url: str, accept: str) -> tuple[bytes, str] | None:
        files = PAGES.get(url.rstrip("/").rpartition("/")[2])
        links = "".join(f'<a href="{file}#sha256={"a" * 64}">{file}</a>' for file in files or ())
        return (links.encode(), "text/html") if files else None

    monkeypatch.setattr(Index, "_get", get)
    error = no_wheel(
        rows["cpu-1-base-debian12"], requirement, Index("https://index.example/simple")
    )
    assert has in str(error)
    assert f'"{requirement}"' in str(error)
    assert "versions of its components" not in str(error)


def test_a_project_without_a_wheel_is_named_with_the_line_of_the_requirements(
    team: Team, rows: dict[str, MatrixRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closure(*_: object) -> None:
        raise NoWheelError(
            canonicalize_name("Pycuda"), "only source", rows["cpu-1-base-debian12"], "build it"
        )

    (team.place / "requirements.txt").write_text("tool\n\nPyCUDA\n")
    monkeypatch.setattr("goldnode.images.deriving.Resolver.closure", closure)
    with pytest.raises(ImageError) as error:
        team.prepare()
    assert str(error.value).endswith("requirements.txt:3: only source. Build it.")


def test_a_base_of_another_origin(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: object) -> None:
        raise ImageError("debian:12 is not in the store")  # of which no name is near

    monkeypatch.setattr("goldnode.images.deriving.find", find)
    (team.place / "derive.yml").write_text(
        DERIVE.format(version="'1'").replace("cpu-1-base-debian12", "debian:12")
    )
    with pytest.raises(ImageError) as error:
        team.prepare()
    assert "derive.yml:4: " in str(error.value)
    assert "name an image of the matrix (`goldnode images list`)" in str(error.value.remedy)


@pytest.mark.parametrize(
    ("base", "has", "lacks"),
    [
        ("free", "is private: its declaration has no `redistribution: free`. Publish", "licence"),
        ("private", "is private as its base cuda:12.4.1-base-debian12-", "redistribution: free"),
        (
            None,
            "its declaration has no `redistribution: free`, or its base cuda:12.4.1-base-debian12-",
            "licence",
        ),
    ],
)
def test_publication_of_a_private_image(
    team: Team, monkeypatch: pytest.MonkeyPatch, base: str | None, has: str, lacks: str
) -> None:
    ready, image = team.derive()
    labels = {image.digest: image.labels}
    other = {"io.goldnode.redistribution": base or "", "io.goldnode.licences": "NVIDIA-CUDA-EULA"}
    monkeypatch.setattr(OciImage, "labels", property(lambda self: labels.get(self.digest, other)))
    if base is None:
        has_blob = type(image.layout).has
        monkeypatch.setattr(
            type(image.layout),
            "has",
            lambda self, digest: digest == image.digest and has_blob(self, digest),
        )
    with pytest.raises(ImageError) as error:
        publish(
            image.layout,
            ready.recipe.ref,
            RegistryAddress("registry.example", ""),
            Registry("registry.example"),
        )
    assert has in str(error.value)
    assert lacks not in str(error.value)
    assert "--private" in str(error.value)


def test_gc_of_a_registry_covers_the_derived_images_of_the_store(team: Team) -> None:
    """With `--to` and without `--repository`, it looked at the backends alone and reported that nothing is there."""
    _, image = team.derive()
    location = Location(store=image.layout.root, to="registry.example")
    assert ImageProduct(location).repositories == (
        "cpu",
        "cuda",
        "oneapi",
        "rocm",
        "recsys/trainer",
    )
    assert ImageProduct(location, ["cpu"]).repositories == ("cpu",)
