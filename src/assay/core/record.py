"""Values that are stored, shown, hashed or exported: frozen dataclasses with one codec.

A `Record` becomes finite JSON with `to_dict` and comes back with `from_dict`. Its fields are the keys of the
JSON, undefined numbers are null and arrays are lists. Reading answers what is missing, unknown or of another
type by its place. The hash of how a value came to be, less facts about the machine, is its identity.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import math
import sys
from collections.abc import Callable, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_origin, get_type_hints

import numpy as np

from assay.core.errors import FileFormatError, InputError, unknown_name


if TYPE_CHECKING:
    from matplotlib.axes import Axes

MACHINE = "machine"  # key of a provenance whose content never enters an identity

R = TypeVar("R", bound="Record")
HIDDEN: Mapping[str, Any] = {"record": "hidden"}  # metadata of a field that is never written

BRIEF: Mapping[str, Any] = {"record": "brief"}  # metadata of a field that is left out where it is empty


def same(*names: str, of: str = "") -> dict[str, str]:
    """Entries of a `record_layout` whose keys are the names of the attributes, their own or `of` a part."""
    return {name: f"{of}.{name}" if of else name for name in names}


class Record:
    """Base of frozen dataclasses that have a place in files, stores and pages.

    Attributes:
        record_kind: What it is, e.g. `calibration`, written as `kind`; empty for parts of other records.
        record_schema: Name and version of the form it is written in, e.g. `assay-calibration/1`, as `schema`.
        record_header: Further entries that are the same in every document of this kind.
        derived: Names of properties, and of methods without arguments, written after the fields. Reading
            ignores them.
        record_layout: For documents that are only written and look other than the fields: each key with the
            path of its value from the record (`circuit.n_edges`), or a mapping of such. The path `**NAME`
            puts the entries of a mapping in its place.

    Notes:
        `field(metadata=HIDDEN)` is never written and needs a default; `field(metadata=BRIEF)` is written
        where it is neither None nor empty; `field(metadata={"key": KEY})` is written under that key.
    """

    record_kind: ClassVar[str] = ""
    record_schema: ClassVar[str] = ""
    record_header: ClassVar[Mapping[str, Any]] = {}
    derived: ClassVar[tuple[str, ...]] = ()
    record_layout: ClassVar[Mapping[str, Any]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Finite JSON; undefined numbers are null."""
        entries = laid_out(self, self.record_layout) if self.record_layout else _fields_of(self)
        document: dict[str, Any] = plain(_header(type(self)) | entries)
        return document

    @classmethod
    def from_dict(cls: type[R], document: object) -> R:
        """The inverse of `to_dict`.

        Raises:
            FileFormatError: Naming each place that is missing, unknown or of another type.
        """
        import cattrs

        try:
            record: R = _converter().structure(document, cls)
        except (cattrs.BaseValidationError, TypeError, ValueError) as error:
            grouped = isinstance(error, cattrs.BaseValidationError)
            places = cattrs.transform_error(error, format_exception=_problem) if grouped else [str(error)]
            name = f"{cls.record_kind or cls.__name__} document"
            raise FileFormatError(f"this {name} cannot be read: {'; '.join(places[:4])}") from error
        return record


def _fields_of(record: Any) -> dict[str, Any]:
    """The fields of a record, which is a dataclass, then the derived values."""
    entries: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        use = field.metadata.get("record")
        if use == "brief" and (value is None or (isinstance(value, Mapping | tuple | str) and not value)):
            continue
        if use != "hidden":
            entries[field.metadata.get("key", field.name)] = value
    return entries | {name: _value(record, name) for name in record.derived}


def laid_out(record: object, layout: Mapping[str, Any]) -> dict[str, Any]:
    """The values at the places of a `record_layout`."""
    entries: dict[str, Any] = {}
    for key, place in layout.items():
        if isinstance(place, Mapping):
            entries[key] = laid_out(record, place)
        elif place.startswith("**"):
            entries |= _value(record, place.removeprefix("**"))
        else:
            entries[key] = _value(record, place)
    return entries


def _value(record: object, path: str) -> Any:
    """An attribute of the record or of its parts, or what a method returns; None for parts of None."""
    value: Any = record
    for name in path.split("."):
        value = getattr(value, name)
        value = value() if callable(value) else value
        if value is None:
            break
    return value


def _header(cls: type[Record]) -> dict[str, Any]:
    """The entries that tell what a document is."""
    header = {"kind": cls.record_kind, "schema": cls.record_schema, **cls.record_header}
    return {name: value for name, value in header.items() if value}


def _problem(error: BaseException, expected: Any) -> str:
    """One line about a value that does not fit."""
    if isinstance(error, TypeError | ValueError) and str(error):
        return str(error)
    from cattrs.errors import ForbiddenExtraKeysError
    from cattrs.v import format_exception

    if isinstance(error, ForbiddenExtraKeysError):
        shown = (field for field in dataclasses.fields(error.cl) if field.metadata.get("record") != "hidden")
        names = [field.metadata.get("key", field.name) for field in shown]
        return "; ".join(str(unknown_name("field", name, names)) for name in sorted(error.extra_fields))

    return format_exception(error, expected)


@functools.cache
def _converter() -> Any:
    """The one converter of all records."""
    import cattrs
    from cattrs.strategies import configure_union_passthrough

    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (bool, int, str):
        converter.register_structure_hook(kind, _exactly(kind))
    converter.register_structure_hook(float, _number)
    configure_union_passthrough(bool | int | float | str | None, converter)
    converter.register_structure_hook_func(_is_array, _array)
    converter.register_structure_hook_factory(_is_record, lambda cls: _record_hook(cls, converter))
    return converter


def _exactly(kind: type) -> Callable[[object, type], Any]:
    def check(value: object, _: type) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not {'an' if kind is int else 'a'} {kind.__name__}")
        return value

    return check


def _number(value: object, _: type) -> float:
    """A float; null is NaN."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _is_array(kind: Any) -> bool:
    return kind is np.ndarray or getattr(kind, "array_type", None) is np.ndarray


def _array(value: object, kind: Any) -> Any:
    """An array of the annotated dtype; null is NaN."""
    dtypes = getattr(kind, "dtypes", ("float64",))
    dtype = dtypes[0] if len(dtypes) == 1 or "bool" in dtypes else "float64"
    try:
        array = np.array(value, dtype=np.float64 if dtype.startswith("float") else None)
    except (TypeError, ValueError):
        raise TypeError("not an array of numbers") from None
    n_axes = len(getattr(kind, "dims", array.shape))
    if array.size == 0 and array.ndim < n_axes:
        array = array.reshape(array.shape + (0,) * (n_axes - array.ndim))
    if dtype == "bool" and array.size and array.dtype != np.bool_:
        raise TypeError("not an array of true and false")
    return array.astype(dtype)


def _is_record(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, Record)


def _record_hook(cls: Any, converter: Any) -> Callable[[object, type], Any]:
    """Reads one class of records: its kind and schema checked, its derived values passed over."""

    @functools.cache
    def structure() -> Callable[[Mapping[str, Any], type], Any]:
        # On first use: a record may hold records of its own class.
        from cattrs.gen import make_dict_structure_fn, override

        hints = get_type_hints(cls)
        special: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            field.type = hints[field.name]  # names in quotes resolved
            if field.metadata.get("record") == "hidden":
                special[field.name] = override(omit=True)
            elif key := field.metadata.get("key"):
                special[field.name] = override(rename=key)
        return make_dict_structure_fn(cls, converter, **special)

    def read(document: object, kind: type) -> Any:
        if cls.record_layout:
            raise TypeError("documents of this kind are only written")
        if not isinstance(document, Mapping):
            raise TypeError(f"{type(document).__name__} instead of a record")
        header = _header(cls)
        for name, wanted in header.items():
            if document.get(name) != wanted:
                raise ValueError(f"{name} is {document.get(name)!r}, this version reads {wanted!r}")
        skipped = {*cls.derived, *header}
        return structure()({key: value for key, value in document.items() if key not in skipped}, kind)

    return read


# ------------------------------------------------------------------------------------------- JSON, identity


def plain(value: Any) -> Any:
    """`value` as what JSON can say: records, arrays and tuples become lists and dicts, NaN becomes None.

    Raises:
        InputError: If it holds something else, or is nested too deeply.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise InputError("a record is nested too deeply; flatten it") from None


def _plain(value: Any) -> Any:
    if value is None or type(value) in (str, int, bool):  # most values
        return value
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Record):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | KeysView | ValuesView):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [_plain(item) for item in items]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, int | str):  # members of enumerations
        return value
    raise InputError(
        f"a record holds {value!r} of type {type(value).__name__}; only JSON values and arrays can be kept"
    )


def canonical_json(record: Any) -> str:
    """The one text of a record: keys sorted, no white space, undefined numbers null."""
    return json.dumps(
        plain(record), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def record_id(kind: str, provenance: Mapping[str, Any]) -> str:
    """Identity of a result: 16 hex digits of the SHA-256 of its kind and provenance.

    Args:
        kind: What it is, e.g. `measurement`.
        provenance: How it came to be; facts under `machine` (device, host, timing) do not count.
    """
    counted = {key: value for key, value in provenance.items() if key != MACHINE}
    return hashlib.sha256(canonical_json({"kind": kind, "provenance": counted}).encode()).hexdigest()[:16]


def library_version() -> str:
    """Version of the package that runs."""
    return str(sys.modules["assay"].__version__)  # not imported: it lies above every part


class Plotted:
    """A result that has a picture, which `plot` draws.

    Attributes:
        drawn_by: `module:function` that draws it on axes or a new figure. Named, so that results, which lie
            below pictures, load no plotting library before one is asked for.
    """

    drawn_by: ClassVar[str]

    def plot(self, ax: "Axes | None" = None) -> "Axes | np.ndarray":
        """Draw the result.

        Args:
            ax: Where to draw. Default: a new figure.

        Returns:
            The axes; an array of them where a new figure has several panels.
        """
        module, _, name = self.drawn_by.partition(":")
        drawn: Any = getattr(importlib.import_module(module), name)(self, ax)
        panels = drawn.get_figure().axes
        return drawn if ax is not None or len(panels) == 1 else np.array(panels)
