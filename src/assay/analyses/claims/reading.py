"""Claims from TOML, checked before any model is loaded; every complaint names its place."""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.analyses.claims.claim import (
    CIRCUIT,
    DRAWN,
    EACH_HEAD,
    MAGNITUDE,
    RELATIONS,
    RUNS,
    SCHEMA,
    UNITS,
    Claim,
    ClaimedRole,
    Control,
    Prediction,
    Rival,
    head_name,
)
from assay.circuits.heads import Head, load_head_circuit
from assay.core.errors import FileFormatError, InputError, UnknownNameError, unknown_name
from assay.core.untrusted import parse_toml, read_object
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.tasks import TASKS, is_task_file


DRAWS = 5  # random sets of a drawn control
_HEAD = re.compile(r"a(\d+)\.h(\d+)")
_LARGEST_SHARE = 5  # of the model's margin; more is a percentage or another unit
_FEWEST_PROMPTS = 5  # below, no sign-flip test can reach 0.05


def load_claim(path: str | Path) -> Claim:
    """The claim of a TOML file of schema `assay-claim/1`.

    Args:
        path: The file; paths inside it start from its folder.

    Raises:
        FileFormatError: If it cannot be read as TOML, or has another schema.
        InputError: For content that makes no claim; the message names the key.
    """
    path = Path(path)
    content = read_object(path, "a TOML file of a claim", parse=parse_toml)
    return parse_claim(content, origin=path.name, folder=path.parent)


def parse_claim(
    content: Mapping[str, Any], *, origin: str = "the claim", folder: str | Path | None = None
) -> Claim:
    """The claim of a mapping of schema `assay-claim/1`.

    Args:
        content: As a TOML file gives it.
        origin: What messages call it.
        folder: Where relative paths start; default: the working directory.

    Raises:
        FileFormatError: For another schema.
        InputError: For missing, unknown or contradictory keys; the message names the place.
    """
    if content.get("schema") != SCHEMA:
        raise FileFormatError(
            f"{origin} has schema {content.get('schema')!r}; a claim begins with schema = {SCHEMA!r}"
        )
    top = _Table(content, origin)
    top.only("schema", "claim", "heads", "predicts", "controls", "rivals")
    root = Path() if folder is None else Path(folder)
    facts = top.table("claim", required=True)
    facts.only("name", "statement", "model", "task", "n", "seed", "ablation")
    task = _task(facts, "task", facts.text("task"), root)
    roles = _roles(top.table("heads", required=True))
    predictions = tuple(_prediction(each, task, roles, root) for each in top.tables("predicts"))
    if not predictions:
        raise InputError(f"{origin} has no predictions; add at least one [[predicts]]")
    _no_repeats(predictions, origin)
    ablation = facts.text("ablation", "mean")
    if ablation not in INTERVENTIONS:
        raise facts.unknown("ablation", "ablation of heads", ablation, INTERVENTIONS)
    claim = Claim(
        name=facts.text("name"),
        statement=facts.text("statement"),
        model=facts.text("model"),
        task=task,
        n=facts.count("n", 100, least=_FEWEST_PROMPTS),
        seed=facts.count("seed", 0, least=0),
        ablation=ablation,
        roles=roles,
        predictions=predictions,
    )
    controls = tuple(_control(each, claim) for each in top.tables("controls"))
    rivals = tuple(_rival(each, claim, root) for each in top.tables("rivals"))
    names = [each.name for each in rivals]
    if len(set(names)) < len(names):
        raise InputError(
            f"{origin}: two rivals are named {max(names, key=names.count)!r}; give each its own name"
        )
    if len(set(controls)) < len(controls):
        raise InputError(f"{origin}: a control is listed twice; remove one")
    files = {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest()
        for name in claim.tasks
        if is_task_file(name)
    }
    return replace(claim, controls=controls, rivals=rivals, files=files, folder=root)


class _Table:
    """A table of the file with its place, for messages."""

    def __init__(self, content: Mapping[str, Any], place: str) -> None:
        self.content, self.place = content, place

    def wrong(self, key: str, what: str) -> InputError:
        return InputError(f"{self.place}, key {key!r}: {what}")

    def unknown(self, key: str, kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
        return UnknownNameError(f"{self.place}, key {key!r}: {unknown_name(kind, name, known)}")

    def only(self, *known: str) -> None:
        for key in self.content:
            if key not in known:
                raise UnknownNameError(f"{self.place}: {unknown_name('key', key, known)}")

    def table(self, key: str, *, required: bool = False) -> "_Table":
        value = self.content.get(key)
        if value is None and required:
            raise InputError(f"{self.place} lacks [{key}], which every claim needs")
        if not isinstance(value, Mapping):
            raise self.wrong(key, f"expected a table [{key}], got {value!r}")
        return _Table(value, f"{self.place}, [{key}]")

    def tables(self, key: str) -> list["_Table"]:
        value = self.content.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
            raise self.wrong(key, f"write each as its own table, [[{key}]]; got {value!r}")
        return [_Table(each, f"{self.place}, [[{key}]] {place}") for place, each in enumerate(value, start=1)]

    def text(self, key: str, default: str | None = None) -> str:
        value = self.content.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, f"expected text, got {value!r}" if value is not None else "is missing")
        return value

    def choice(self, key: str, default: str | None, known: Sequence[str]) -> str:
        value = self.text(key, default)
        if value not in known:
            raise self.unknown(key, key, value, known)
        return value

    def count(self, key: str, default: int, *, least: int) -> int:
        value = self.content.get(key, default)
        if type(value) is not int or value < least:
            raise self.wrong(key, f"expected a whole number of at least {least}, got {value!r}")
        return value

    def heads(self, key: str, listed: Any) -> tuple[Head, ...]:
        """Heads of a list, each once, ascending."""
        if not isinstance(listed, list | tuple) or not listed:
            raise self.wrong(key, f"expected a list of heads such as ['a0.h1', [3, 4]], got {listed!r}")
        heads = [self._head(key, each) for each in listed]
        for head in heads:
            if heads.count(head) > 1:
                raise self.wrong(key, f"{head_name(head)} is listed twice; list each head once")
        return tuple(sorted(heads))

    def _head(self, key: str, given: Any) -> Head:
        if isinstance(given, str) and (match := _HEAD.fullmatch(given)):
            return int(match[1]), int(match[2])
        if (
            isinstance(given, list | tuple)
            and len(given) == 2
            and all(type(index) is int and index >= 0 for index in given)
        ):
            return given[0], given[1]
        raise self.wrong(
            key, f"{given!r} is not a head; write 'a3.h4' or [3, 4] for head 4 of layer 3, counted from 0"
        )


def _task(table: _Table, key: str, name: str, folder: Path) -> str:
    """A registered task by its key, or a file from the claim's folder."""
    if is_task_file(name):
        if not (folder / name).is_file():
            raise table.wrong(key, f"task file {folder / name} does not exist")
        return name
    for key_of_task in (name, name.replace("_", "-")):
        if key_of_task in TASKS:
            return key_of_task
    raise table.unknown(key, "task", name, (*TASKS, "FILE.jsonl"))


def _roles(table: _Table) -> dict[str, ClaimedRole]:
    roles: dict[str, ClaimedRole] = {}
    owner: dict[Head, str] = {}
    if not table.content:
        raise InputError(f"{table.place} has no heads; give a role its heads, e.g. movers = ['a3.h4']")
    for name, given in table.content.items():
        if name in (CIRCUIT, EACH_HEAD):
            raise table.wrong(name, "means all heads of the claim; give the role another name")
        sign = 1
        if isinstance(given, Mapping):
            inner = _Table(given, f"{table.place}, key {name!r}")
            inner.only("heads", "sign")
            given, sign = inner.content.get("heads"), inner.content.get("sign", 1)
            if sign not in (1, -1) or type(sign) is not int:
                raise inner.wrong(
                    "sign", f"expected 1, or -1 for heads that work against the task; got {sign!r}"
                )
        roles[name] = ClaimedRole(heads=table.heads(name, given), sign=sign)
        for head in roles[name].heads:
            if head in owner:
                raise table.wrong(
                    name, f"{head_name(head)} already has the role {owner[head]!r}; give it one role"
                )
            owner[head] = name
    return roles


def _set_name(table: _Table, roles: Mapping[str, ClaimedRole], *more: str) -> str:
    name = table.text("of", CIRCUIT)
    if name not in (CIRCUIT, *more, *roles):
        raise table.unknown("of", "head set", name, (CIRCUIT, *more, *roles))
    return name


def _prediction(table: _Table, task: str, roles: Mapping[str, ClaimedRole], folder: Path) -> Prediction:
    table.only("what", "of", "on", "unit", *RELATIONS)
    what = table.choice("what", None, RUNS)
    of = _set_name(table, roles, EACH_HEAD)
    relations = [key for key in RELATIONS if key in table.content]
    allowed = ", ".join(key for key, runs in RELATIONS.items() if what in runs)
    if len(relations) != 1:
        raise InputError(
            f"{table.place} has {' and '.join(relations) or 'no size'}; give one of {allowed}, with a number"
        )
    relation = relations[0]
    if what not in RELATIONS[relation]:
        raise table.wrong(relation, f"does not apply to {what}; {what} allows {allowed}")
    if of == EACH_HEAD and what != "dropping":
        raise table.wrong("of", "each head by itself can be dropped, not kept")
    size = table.content[relation]
    if isinstance(size, bool) or not isinstance(size, int | float) or not math.isfinite(size) or size < 0:
        raise table.wrong(relation, f"expected a number of at least 0, got {size!r}")
    if relation == "changes_at_most" and size == 0:
        raise table.wrong(relation, "a measured change is never exactly 0; give a size above 0")
    unit = table.choice("unit", "share", UNITS)
    if unit == "share" and size > _LARGEST_SHARE:
        raise table.wrong(
            relation,
            f"{size!r} is {100 * size:g} % of the model's own mean margin, the unit of sizes (1 is all of "
            "it). Write 0.3 for 30 %, or unit = 'margin' for a size in the margin's own unit",
        )
    on = _task(table, "on", table.text("on", task), folder) if "on" in table.content else task
    return Prediction(
        what=what,
        of=of,
        on=on,
        relation=relation,
        size=float(size),
        unit=unit,
    )


def _no_repeats(predictions: Sequence[Prediction], origin: str) -> None:
    for place, each in enumerate(predictions):
        if each in predictions[:place]:
            first = predictions.index(each) + 1
            raise InputError(f"{origin}: [[predicts]] {place + 1} repeats [[predicts]] {first}; remove one")


def held_against(claim: Claim, control: Control) -> tuple[Prediction, ...]:
    """The predictions whose size a control must stay below."""
    return tuple(
        each
        for each in claim.predictions
        if each.of == control.of
        and each.on == claim.task
        and each.relation in ("lowers_by_at_least", "raises_by_at_least", "retains_at_least")
    )


def _control(table: _Table, claim: Claim) -> Control:
    table.only("heads", "of", "draws")
    of = _set_name(table, claim.roles)
    heads = table.content.get("heads")
    drawn = isinstance(heads, str)
    if isinstance(heads, str) and heads not in DRAWN:
        raise table.unknown("heads", "kind of control", heads, DRAWN)
    if "draws" in table.content and not drawn:
        raise table.wrong("draws", "listed heads are not drawn; remove it")
    control = Control(
        heads=heads if isinstance(heads, str) else table.heads("heads", heads),
        of=of,
        draws=table.count("draws", DRAWS, least=1) if drawn else 1,
    )
    if not held_against(claim, control):
        raise InputError(
            f"{table.place}: the control cannot fail, because no prediction is about {of!r} on "
            f"{claim.task}. Add a [[predicts]] with of = {of!r} and lowers_by_at_least, raises_by_at_least "
            "or retains_at_least"
        )
    if isinstance(control.heads, tuple):
        own = claim.heads_of(of)
        shared = sorted(set(own) & set(control.heads))
        if shared:
            raise table.wrong(
                "heads", f"{head_name(shared[0])} belongs to {of!r}, which it should control for"
            )
        if len(control.heads) < len(own):
            raise table.wrong(
                "heads",
                f"{len(control.heads)} heads cannot control for the {len(own)} of {of!r}, because fewer "
                f"heads have a smaller effect; list {len(own)}",
            )
    return control


def _rival(table: _Table, claim: Claim, folder: Path) -> Rival:
    table.only("name", "heads", "file", "published")
    sources = [key for key in ("heads", "file", "published") if key in table.content]
    if len(sources) != 1:
        raise InputError(
            f"{table.place} has {' and '.join(sources) or 'no heads'}; give one of heads, file (a "
            "head_circuit/1 JSON file) and published (a name of published_head_circuits)"
        )
    heads: tuple[Head, ...] | str
    default = None
    listed = table.content.get("heads")
    if sources != ["heads"]:
        source = table.text(sources[0])
        circuit = load_head_circuit(folder / source if sources == ["file"] else source)
        heads, default = circuit.heads, circuit.id
    elif isinstance(listed, str):
        if listed != MAGNITUDE:
            raise table.unknown("heads", "kind of rival", listed, (MAGNITUDE,))
        heads = default = MAGNITUDE
    else:
        heads = table.heads("heads", listed)
    if heads == claim.heads:
        raise InputError(f"{table.place} has the heads of the claim itself; a rival is another circuit")
    return Rival(name=table.text("name", default), heads=heads)
