"""The class key `serve`: what is an address, what is a directory, and that a class without it stays what it was."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from goldnode.catalog.models import NodeClass, Serve

LEAST = {"class": "x", "backend": "cpu", "stack": "s"}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (9478, "127.0.0.1:9478"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[::1]:9478", "[::1]:9478"),
        ("127.0.0.1:0080", "127.0.0.1:80"),
    ],
)
def test_listen_address_is_normalized(given: object, found: str) -> None:
    assert Serve.model_validate({"listen": given}).listen == found


@pytest.mark.parametrize(
    "given",
    [
        0,
        70000,
        True,
        "9478\nExecStart=x",
        "host:80",
        "::1:80",
        "[127.0.0.1]:80",
        "127.0.0.1",
        "127.0.0.1:80 ",
        "",
        1.5,
    ],
)
def test_invalid_listen_address_is_refused(given: object) -> None:
    with pytest.raises(ValidationError):
        Serve.model_validate({"listen": given})


@pytest.mark.parametrize("given", ["relative", "/a/../b", "/a b", "/a\n", "/", "", "/..", "/a/."])
def test_invalid_textfile_directory_is_refused(given: str) -> None:
    with pytest.raises(ValidationError):
        Serve.model_validate({"textfile": given})


@pytest.mark.parametrize(
    "given", ["/var/lib/prometheus/node-exporter", "/a/", "/a/.hidden", "/a..b"]
)
def test_textfile_directory_is_accepted(given: str) -> None:
    assert Serve.model_validate({"textfile": given}).textfile == given


def test_nothing_is_served_unless_it_is_written() -> None:
    assert NodeClass.model_validate(LEAST).serve is None
    assert Serve().model_dump(exclude_none=True, exclude_defaults=True) == {}
    with pytest.raises(ValidationError):
        Serve.model_validate({"port": 1})
