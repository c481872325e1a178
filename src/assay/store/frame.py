"""Documents as columns of a table."""

from typing import Any


class Spread:
    """Columns of the scalars inside nested dicts, by their dotted names, filled row by row.

    Names are put together once per column, not once per value: a frame is mostly this.
    """

    def __init__(self, columns: dict[str, list[object]], prefix: str, length: int) -> None:
        self._columns, self._prefix, self._length = columns, prefix, length
        self._values: dict[str, list[object]] = {}
        self._inside: dict[str, Spread] = {}

    def row(self, record: dict[str, Any], place: int) -> None:
        """Put one record into its row."""
        values = self._values
        for key, value in record.items():
            kind = type(value)  # of what the JSON parser made, so no subclasses
            if kind is dict:
                if key not in self._inside:
                    self._inside[key] = Spread(self._columns, f"{self._prefix}.{key}", self._length)
                self._inside[key].row(value, place)
            elif kind is not list:
                if key not in values:
                    name = f"{self._prefix}.{key}"
                    values[key] = self._columns.setdefault(name, [None] * self._length)
                values[key][place] = value
