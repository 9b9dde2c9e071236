"""Frozen classes without compiled methods behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any

import pytest

from goldnode.core.dataclass import dataclass


@dataclass(frozen=True)
class FastModel:
    """A model."""

    name: str
    memory: int | None = None
    names: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        return f"{self.name} {self.memory}"


@dataclasses.dataclass(frozen=True)
class UsualModel:
    """A model."""

    name: str
    memory: int | None = None
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FastAlone:
    """One field, and work after the constructor."""

    value: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.value:
            raise ValueError("empty")


class FastChild(FastModel):
    """Not a dataclass itself."""


ARGUMENTS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    (("h100",), {}),
    (("h100", 80), {}),
    (("h100", 80, ["a"]), {}),
    (("h100",), {"names": ["a"], "memory": 80}),
    ((), {"memory": 80, "name": "h100"}),
)
WRONG: tuple[tuple[tuple[Any, ...], dict[str, Any], str], ...] = (
    ((), {}, "name"),
    ((), {"memory": 80}, "name"),
    (("h100",), {"name": "h100"}, "multiple values for argument 'name'"),
    (("h100",), {"sku": "h100"}, "unexpected keyword argument 'sku'"),
    (("h100", 80, [], 1), {}, "takes .*4 positional arguments but 5 were given"),
)


@pytest.mark.parametrize(("args", "given"), ARGUMENTS)
def test_dataclass_is_made_as_the_usual_one(args: tuple[Any, ...], given: dict[str, Any]) -> None:
    fast, usual = FastModel(*args, **given), UsualModel(*args, **given)
    assert dataclasses.asdict(fast) == dataclasses.asdict(usual)
    assert list(vars(fast)) == list(vars(usual))
    assert repr(fast) == repr(usual).replace("UsualModel", "FastModel")
    assert FastModel(*args, **given) == fast
    assert pickle.loads(pickle.dumps(fast)) == fast == copy.deepcopy(fast)  # noqa: S301 - its own
    assert dataclasses.replace(fast, memory=1) == FastModel(fast.name, 1, fast.names)


@pytest.mark.parametrize(("args", "given", "message"), WRONG)
@pytest.mark.parametrize("made", [FastModel, UsualModel])
def test_dataclass_refuses_wrong_arguments_as_the_usual_one(
    made: type[Any], args: tuple[Any, ...], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        made(*args, **given)


def test_dataclass_cannot_be_changed() -> None:
    model: Any = FastModel("h100")
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.name = "a100"
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.other = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        del model.name
    child: Any = FastChild("h100")
    child.note = "its own"
    with pytest.raises(dataclasses.FrozenInstanceError):
        child.name = "a100"


def test_dataclass_is_equal_only_to_its_own_class() -> None:
    assert FastModel("h100") == FastModel("h100") != FastModel("a100")
    assert FastModel("h100") != FastChild("h100")
    usual: object = UsualModel("h100")
    assert FastModel("h100") != usual
    assert FastModel.__eq__(FastModel("h100"), "h100") is NotImplemented


def test_dataclass_is_hashed_by_its_values() -> None:
    assert len({FastAlone((1,)), FastAlone((1,)), FastAlone((2,))}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(FastModel("h100"))  # it has a list


def test_dataclass_gives_each_object_its_own_default() -> None:
    assert FastModel("h100").names is not FastModel("h100").names


def test_dataclass_runs_post_init() -> None:
    with pytest.raises(ValueError, match="empty"):
        FastAlone(())


def test_dataclass_matches_by_position() -> None:
    match FastModel("h100", 80):
        case FastModel(name, memory):
            assert (name, memory) == ("h100", 80)


def test_dataclass_repeats_no_object_within_itself() -> None:
    model = FastModel("h100")
    model.names.append(model)  # type: ignore[arg-type]
    assert repr(model) == "FastModel(name='h100', memory=None, names=[...])"


@pytest.mark.parametrize(
    "odd",
    [
        field(default=1, compare=False),
        field(default=1, repr=False),
        field(default=1, init=False),
        field(default=1, kw_only=True),
        field(default=1, hash=False),
    ],
)
def test_dataclass_refuses_fields_that_it_does_not_know(odd: Any) -> None:
    declared = type("Odd", (), {"__annotations__": {"value": "int"}, "value": odd})
    with pytest.raises(TypeError, match=r"Odd: use dataclasses\.dataclass"):
        dataclass(frozen=True)(declared)


def test_dataclass_refuses_a_class_that_is_not_frozen() -> None:
    with pytest.raises(TypeError, match="only for frozen"):
        dataclass(frozen=False)
