"""The rows of the helper behave as those of typing.NamedTuple."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations" / "torch" / "python"))
from foreshock_torch.rows import Row  # noqa: E402

pytestmark = pytest.mark.quick


class Point(Row):
    x: int
    y: int
    name: str = "origin"

    @property
    def total(self) -> int:
        return self.x + self.y


def test_fields_are_read_by_name_and_in_order():
    point = Point(1, 2)
    x, y, name = point
    assert (x, y, name) == (point.x, point.y, point.name) == point == (1, 2, "origin")
    assert point.total == 3
    assert point._asdict() == {"x": 1, "y": 2, "name": "origin"}


def test_values_are_given_by_place_or_by_name():
    assert Point(1, y=2, name="p") == Point(y=2, x=1, name="p") == Point(1, 2, "p")
    assert type(Point(1, 2)._replace(y=5)) is Point
    assert Point(1, 2)._replace(y=5, name="q") == (1, 5, "q")


@pytest.mark.parametrize(
    ("values", "named"),
    [((1,), {}), ((1, 2, "p", 4), {}), ((1, 2), {"z": 3}), ((1, 2), {"x": 3}), ((), {"y": 1})],
)
def test_other_arguments_are_refused(values, named):
    with pytest.raises((TypeError, KeyError)):
        Point(*values, **named)


def test_a_field_is_not_assigned():
    with pytest.raises(AttributeError):
        Point(1, 2).x = 3
