"""Rows: tuples whose elements have names, as typing.NamedTuple makes them. Every training that is watched creates the
classes in `import torch`. A class of typing.NamedTuple takes a quarter of a millisecond, one of Row a tenth of that."""

from __future__ import annotations

from operator import itemgetter
from typing import Any


class Row(tuple):
    """The annotations of a subclass are the fields, in their order; a value beside an annotation is the default."""

    _fields: Any = ()
    _defaults: Any = {}

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)
        cls._defaults = {field: value for field, value in vars(cls).items() if field in cls._fields}
        for n, field in enumerate(cls._fields):
            setattr(cls, field, property(itemgetter(n)))

    def __new__(cls, *values: Any, **named: Any) -> Any:
        missing = cls._fields[len(values) :]
        if missing:
            given = {**cls._defaults, **named}
            values += tuple([given[field] for field in missing])
        if not named.keys() <= set(missing) or len(values) != len(cls._fields):
            raise TypeError(f"{cls.__name__} has the fields {cls._fields}")
        return tuple.__new__(cls, values)

    def _replace(self, **changes: Any) -> Any:
        """A copy with other values in the named fields."""
        return type(self)(**{**self._asdict(), **changes})

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self))
