"""Plans out of TOML files and mappings; every complaint names its place."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from assay.core.errors import InputError, UnknownNameError, near_matches
from assay.core.untrusted import parse_toml, printable, read_object
from assay.pipeline.limits import Limits
from assay.pipeline.plan import (
    DEFAULT_TARGET,
    AttackChoice,
    MethodChoice,
    Plan,
    SingleJob,
)


_TABLES = ("attack", "limits")


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan of a TOML file.

    Args:
        path: The file; paths inside it start from its folder.

    Raises:
        InputError: If it cannot be read, is no TOML (with the line), or makes no plan (with the place).
        UnknownNameError: For a key, model, task, method, metric, gate, ablation or objective that there is
            not.
    """
    path = Path(path)
    content = read_object(path, "a TOML file of a plan", parse=parse_toml, error=InputError)
    content.setdefault("name", path.stem)
    return parse_plan(content, origin=path.name, folder=path.parent)


def parse_plan(
    content: Mapping[str, Any], *, origin: str = "the plan", folder: str | os.PathLike[str] = "."
) -> Plan:
    """The plan of a mapping, as a TOML file gives it.

    Args:
        content: Keys with `-` or `_`.
        origin: What messages call it.
        folder: Where relative paths start.

    Raises:
        InputError, UnknownNameError: As `read_plan`.

    Example:
        >>> plan = parse_plan({"name": "a", "models": ["mini"], "tasks": ["ioi"], "methods": ["eap"]})
        >>> plan.methods[0].label
        'eap'
    """
    try:
        settings = {**_prepared(content), "folder": Path(folder)}
        return Plan.model_validate(settings, context={"folder": folder})
    except ValidationError as error:
        raise _complaint(error, origin) from error
    except InputError as error:
        raise type(error)(f"{origin}: {error}") from error


# ---- keys and types -----------------------------------------------------------------------------


def _prepared(content: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as the fields are called, lists as tuples, methods as tables."""
    if "folder" in content:  # a field, but not of the file
        raise UnknownNameError("unknown key 'folder'; paths start from the folder of the plan")
    top = _fields(content, "")
    for key in _TABLES:
        if isinstance(top.get(key), Mapping):
            top[key] = _fields(top[key], f"[{key}] ")
    if isinstance(top.get("methods"), tuple):
        top["methods"] = tuple(_method(each) for each in top["methods"])
    if isinstance(top.get("job"), tuple):
        top["job"] = tuple(
            _fields(each, f"[[job]] {place} ") if isinstance(each, Mapping) else each
            for place, each in enumerate(top["job"], start=1)
        )
    if "sizes" not in top:
        top.setdefault("target", DEFAULT_TARGET)
    return top


def _fields(table: Mapping[str, Any], place: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in table.items():
        field = key.replace("-", "_")
        if field in fields:
            raise InputError(f"{place}{key} is given twice, once with '-' and once with '_'; give it once")
        fields[field] = tuple(value) if isinstance(value, list) else value
    return fields


def _method(given: Any) -> Any:
    """A method as a table; keys that are not of the table are options of the method."""
    if isinstance(given, str):
        return {"method": given}
    if not isinstance(given, Mapping):
        return given
    table = _fields(given, "methods ")
    own = {key: table.pop(key) for key in ("method", "steps", "quadrature") if key in table}
    return {**own, "options": table}


def _complaint(error: ValidationError, origin: str) -> InputError:
    """The first thing wrong, in our words and with its place."""
    first = error.errors()[0]
    where, kind, given = first["loc"], first["type"], first["input"]
    if kind == "extra_forbidden":
        known = [name.replace("_", "-") for name in _known_keys(where) if name != "folder"]
        key = str(where[-1]).replace("_", "-")
        near = near_matches(key, known)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        return UnknownNameError(f"{origin}: unknown key {printable(_place(where), lines=False)}; {hint}")
    if kind == "missing":
        what = "is missing"
    elif kind == "too_short":
        what = "is an empty list; list at least one, or remove the key"
    elif kind == "value_error":
        cause = first["ctx"]["error"]
        place = f"{_place(where)}: " if where else ""
        refusal = type(cause) if isinstance(cause, InputError) else InputError
        return refusal(f"{origin}: {place}{cause}")
    else:
        message = first["msg"].replace("valid tuple", "list").replace("a valid dictionary", "a table")
        message = message.partition(" or instance of")[0]
        what = f"{message[0].lower()}{message[1:]}, got {given!r:.120}"
    return InputError(f"{origin}: {_place(where)}: {what}")


def _known_keys(where: Sequence[int | str]) -> Iterable[str]:
    tables: dict[str, type[BaseModel]] = {
        "attack": AttackChoice,
        "limits": Limits,
        "job": SingleJob,
        "methods": MethodChoice,
    }
    return (Plan if len(where) == 1 else tables[str(where[0])]).model_fields


def _place(where: Sequence[int | str]) -> str:
    """`[attack] n-clen`, `[[job]] 2 circuit`, `methods 1 steps`."""
    words = []
    for depth, part in enumerate(where):
        if isinstance(part, int):
            words.append(str(part + 1))
        elif depth == 0 and part in _TABLES and len(where) > 1:
            words.append(f"[{part}]")
        elif depth == 0 and part == "job":
            words.append("[[job]]")
        elif re.fullmatch(r"[A-Za-z0-9_-]+", part):  # the others are types that were tried on a value
            words.append(part.replace("_", "-"))
    return " ".join(words)
