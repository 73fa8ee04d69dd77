"""`protocol/named_tuple.py` makes the same values as `typing.NamedTuple`."""

import copy
import pickle
import sys
import typing
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
from barnabas.protocol.named_tuple import NamedTuple

T = TypeVar("T")


class Ours(NamedTuple):
    """Its words."""

    first: int
    second: "str | None"
    third: int = 3
    fourth: "tuple[int, ...]" = ()

    @property
    def total(self) -> int:
        """A property."""
        return self.first + self.third

    def more(self) -> int:
        """A method that asks its base."""
        return len(self) + super().__len__()


class Pythons(typing.NamedTuple):
    """Its words."""

    first: int
    second: "str | None"
    third: int = 3
    fourth: "tuple[int, ...]" = ()

    @property
    def total(self) -> int:
        """A property."""
        return self.first + self.third


class Boxed(NamedTuple, Generic[T]):
    """One of something."""

    content: T


class Nothing(NamedTuple):
    """Has no fields."""


def told(act: Callable[[], Any]) -> str:
    """What an act gives, or how it fails, without the name of the class."""
    try:
        outcome = repr(act())
    except (TypeError, ValueError, AttributeError) as error:
        outcome = f"{type(error).__name__}: {error}"
    return outcome.replace("Ours", "Pythons")


ACTS: dict[str, Callable[[Any], Any]] = {
    "values": lambda kind: kind(1, "a", 5, (6,)),
    "defaults": lambda kind: kind(1, "a"),
    "names": lambda kind: kind(second=None, first=2, fourth=(1,)),
    "one is missing": lambda kind: kind(1),
    "one too many": lambda kind: kind(1, "a", 3, (), 5),
    "an odd name": lambda kind: kind(1, "a", fifth=5),
    "twice": lambda kind: kind(1, "a", first=2),
    "changed": lambda kind: kind(1, "a")._replace(second="b", third=9),
    "changed oddly": lambda kind: kind(1, "a")._replace(fifth=5),
    "made": lambda kind: kind._make([1, "a", 3, ()]),
    "made of too few": lambda kind: kind._make([1]),
    "as a mapping": lambda kind: kind(1, "a")._asdict(),
    "fields": lambda kind: (kind._fields, kind._field_defaults, kind.__match_args__, kind.__doc__, kind.__slots__),
    "property": lambda kind: kind(1, "a").total,
    "equal": lambda kind: (kind(1, "a") == (1, "a", 3, ()), hash(kind(1, "a")) == hash((1, "a", 3, ()))),
    "order": lambda kind: sorted([kind(2, "a"), kind(1, "b")]),
    "unpacked": lambda kind: [*kind(1, "a")],
    "a field is set": lambda kind: setattr(kind(1, "a"), "first", 2),
    "another is set": lambda kind: setattr(kind(1, "a"), "fifth", 2),
    "pickled": lambda kind: pickle.loads(pickle.dumps(kind(1, "a"))),
    "changed by copy": lambda kind: copy.replace(kind(1, "a"), first=2) if sys.version_info >= (3, 13) else None,
    "copied": lambda kind: copy.deepcopy(kind(1, "a", 3, (4,))),
}


@pytest.mark.parametrize("name", ACTS)
def test_it_does_what_pythons_does(name: str) -> None:
    told_of_pythons = told(lambda: ACTS[name](Pythons))
    assert told(lambda: ACTS[name](Ours)) == told_of_pythons


def test_it_is_matched_by_place() -> None:
    match Ours(1, "a", 7):
        case Ours(first, _, third):
            assert (first, third) == (1, 7)
        case _:
            pytest.fail("it is not matched")


def test_a_method_may_ask_the_base() -> None:
    assert Ours(1, "a").more() == 8


def test_it_may_have_no_fields() -> None:
    assert Nothing() == ()
    assert repr(Nothing()) == "Nothing()"


def test_it_may_be_of_a_type() -> None:
    assert Boxed[int](5).content == 5
    assert Boxed("a") == ("a",)


@pytest.mark.parametrize("body", ["a: int = 1\n    b: int", "a: int\n    c = 3\n    b: int = 1\n    d: int"])
def test_a_field_without_a_default_comes_first(body: str) -> None:
    for module in ("typing", "barnabas.protocol.named_tuple"):
        with pytest.raises(TypeError, match="default"):
            exec(f"from {module} import NamedTuple\nclass Wrong(NamedTuple):\n    {body}\n", {"__name__": __name__})
