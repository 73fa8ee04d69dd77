"""`NamedTuple`: values that are quick to define, because a start of the broker defines some hundred classes of them.

`typing.NamedTuple` compiles a constructor for each class, and each annotation that is a string: an eighth of a start.
Here the constructors of all classes with so many fields are compiled once. To mypy (and mypyc, whose modules use
Python's) this is `typing.NamedTuple` itself.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 14):  # from 3.14 on, a class body does not tell its annotations
    from typing import NamedTuple as NamedTuple
else:
    from collections import _tuplegetter
    from functools import cache
    from types import FunctionType

    @cache
    def _constructor(count):
        """The code of a constructor with so many fields."""
        names = "".join(f"_{number}, " for number in range(count))
        return eval(f"lambda _cls, {names}: _new(_cls, ({names}))").__code__

    class _Fields(type):
        """Makes a class of named tuples of a body of annotations: `name: type`, or `name: type = default`."""

        def __new__(cls, name, bases, body):
            if not any(isinstance(base, _Fields) for base in bases):
                return super().__new__(cls, name, bases, body)  # NamedTuple itself
            if NamedTuple not in bases:
                raise TypeError(f"{name}: only a class right below NamedTuple has fields")
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body.pop(field) for field in fields if field in body}
            if fields[len(fields) - len(defaults) :] != tuple(defaults):
                raise TypeError(f"{name}: a field without a default follows one with a default")
            names = {"co_name": "__new__", "co_qualname": f"{name}.__new__", "co_varnames": ("_cls", *fields)}
            code = _constructor(len(fields)).replace(**names)
            body["__new__"] = FunctionType(code, {"_new": tuple.__new__}, "__new__", tuple(defaults.values()))
            body |= {field: _tuplegetter(number, "") for number, field in enumerate(fields)}
            body |= {"__slots__": (), "_fields": fields, "_field_defaults": defaults, "__match_args__": fields}
            return super().__new__(cls, name, bases, body)

    class NamedTuple(tuple, metaclass=_Fields):
        """The base of named tuples, as `typing.NamedTuple`."""

        __slots__ = ()

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changed):
            replaced = self._make(map(changed.pop, self._fields, self))
            if changed:
                kind = TypeError if sys.version_info >= (3, 13) else ValueError
                raise kind(f"Got unexpected field names: {list(changed)!r}")
            return replaced

        __replace__ = _replace  # for `copy.replace`, from 3.13 on

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            told = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({told})"
