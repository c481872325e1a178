"""Plans of sweeps: TOML files of models, tasks, methods and metrics, checked before any model is loaded.

A plan is data. Reading one runs nothing and opens no file but the plan itself; every complaint names its
place and, for a name that does not exist, the nearest one that does.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from assay.analyses.calibration import find_gate
from assay.analyses.generalization.predictor import PREDICTORS
from assay.analyses.worst_case import PROTOCOLS
from assay.core.errors import InputError, UnknownNameError, near_matches, unknown_name
from assay.core.record import plain
from assay.core.untrusted import parse_toml, printable
from assay.discovery.edges import EdgeMethod, get_method
from assay.discovery.edges.quadrature import Rule
from assay.metrics import find_metric
from assay.models.loading import EMBEDDED
from assay.models.planted import planted_names
from assay.pipeline.checks import check_options
from assay.pipeline.limits import Limits
from assay.pipeline.order import in_order
from assay.pipeline.worst import sizes
from assay.tasks import TASKS, digits_source, is_shapes
from assay.tasks.load import DEFAULT_N


SCHEMA = "assay-plan/1"
IMAGES = "images:"  # begins a task that is a source of images
PLANTED = "planted"  # begins a model that is planted, and names its own examples
DEFAULT_TARGET = 0.9
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TABLES = ("attack", "rank", "shards", "limits")

T = TypeVar("T")


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    for value in values:
        if values.count(value) > 1:
            shown = value.label if isinstance(value, MethodChoice) else value
            raise ValueError(f"{shown!r} is listed twice; list it once")
    return values


def _plan_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{printable(value, lines=False)[:80]!r} cannot be a file name everywhere; use up to 64 letters, "
            "digits, '.', '_' and '-', the first a letter or digit"
        )
    return value


def _text(value: str) -> str:
    if not value.strip() or printable(value, lines=False) != value:
        raise ValueError(f"a name is needed, got {value!r}")
    return value


def _steps(value: Any) -> int | str:
    if value == "auto" or (type(value) is int and value >= 1):
        return cast(int | str, value)
    raise ValueError(f"a count from 1 or 'auto' is needed, got {value!r:.60}")


Name = Annotated[str, AfterValidator(_plan_name)]
Text = Annotated[str, AfterValidator(_text)]
Count = Annotated[int, Field(ge=1)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(_distinct)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class MethodChoice(_Section):
    """A discovery method with how it is to be run.

    Attributes:
        method: Its key.
        steps: Nodes of the quadrature, or "auto".
        quadrature: Rule that places them.
        options: Options of the method itself, e.g. `{"updates": 300}`.
    """

    method: Text
    steps: Annotated[Any, AfterValidator(_steps)] = 5
    quadrature: Text = "midpoint"
    options: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """The method with what is not the default, e.g. `ugs updates=300`."""
        given: dict[str, Any] = {} if self.steps == 5 else {"steps": self.steps}
        given |= {} if self.quadrature == "midpoint" else {"quadrature": self.quadrature}
        return " ".join(
            [self.method, *(f"{key}={value}" for key, value in {**given, **self.options}.items())]
        )


class AttackChoice(_Section):
    """Worst-case pairs of every circuit of the product.

    Attributes:
        protocol: `all`, `matched` or `iid`; None: `all`, and the pairs of a JSONL file as they stand.
        n_clean, n_corrupted: Inputs a side, of `all`; None: as `assay attack` takes.
        n_pairs: Pairs of the other protocols; None: as `assay attack` takes.
        shards: Jobs that the pairs are dealt to.
    """

    protocol: Text | None = None
    n_clean: Count | None = None
    n_corrupted: Count | None = None
    n_pairs: Count | None = None
    shards: Count = 1


class ShardsChoice(_Section):
    """Into how many jobs one is dealt.

    Attributes:
        discover: Jobs that the examples of one discovery are dealt to.
    """

    discover: Count = 1


class RankChoice(_Section):
    """A ranking of the models of a zoo, each inspected by a job of its own.

    Attributes:
        zoo: Its folder, or `embedded`.
        images: Target domains, a ranking each: a folder, an archive, or `shapes:STYLE`.
        id_images: Labelled images of the models' own domain; None: drawn for zoos trained on shapes.
        metrics: What they are ranked by; empty: the usual predictors.
        n: Images of a domain; None: all of a folder, 400 drawn ones.
    """

    zoo: Text = "embedded"
    images: Texts
    id_images: Text | None = None
    metrics: Texts = ()
    n: Annotated[int, Field(ge=2)] | None = None


class SingleJob(_Section):
    """A circuit from a file, measured beside the product.

    Attributes:
        name: For people and for `needs`.
        model: As in `models`.
        task: As in `tasks`.
        circuit: File of the circuit; relative to the plan.
        metrics: What to measure.
        needs: Names of single jobs that are done first.
    """

    name: Text
    model: Text
    task: Text
    circuit: Text
    metrics: Texts
    needs: Annotated[tuple[Text, ...], AfterValidator(_distinct)] = ()


class Plan(_Section):
    """A sweep as its file describes it; names are registered keys.

    Attributes:
        name: What it is called; default: the file's name.
        n: Examples of each task.
        seeds: Root seeds; each makes the product once.
        models, tasks, methods: What the product is of.
        sizes: Numbers of strongest edges kept (then connected); empty where `target` is set.
        target: Normalised faithfulness that the smallest circuit must reach; None where `sizes` are set.
        objective: Loss that defines the behaviour; None: each task's own.
        ablation: What a cut edge carries; None: each task's own.
        metrics: Measured on every circuit.
        gates: Judged on every circuit.
        attack: Worst pairs of every circuit; None: not looked for.
        rank: Models of a zoo ranked on images; None: none are.
        n_random: Random circuits measured beside each, for the metrics.
        shards: Into how many jobs one is dealt.
        limits: What the sweep may use; of them the batch size alone enters results.
        job: Single jobs beside the product.
        folder: Where relative paths start.
    """

    name: Name
    n: Annotated[int, Field(ge=2)] = DEFAULT_N
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_distinct)
    ] = (0,)
    models: Texts = ()
    tasks: Texts = ()
    methods: Annotated[tuple[MethodChoice, ...], Field(min_length=1), AfterValidator(_distinct)] = ()
    sizes: Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(_distinct)] = ()
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    objective: Text | None = None
    ablation: Text | None = None
    metrics: Texts = ()
    gates: Texts = ()
    attack: AttackChoice | None = None
    rank: RankChoice | None = None
    n_random: Annotated[int, Field(ge=0)] = 0
    shards: ShardsChoice = ShardsChoice()
    limits: Limits = Limits()
    job: tuple[SingleJob, ...] = ()
    folder: Path = Field(default=Path(), exclude=True)

    @property
    def jobs(self) -> tuple[SingleJob, ...]:
        """The single jobs, those that others need first."""
        by_name = {job.name: job for job in self.job}
        return tuple(by_name[name] for name in in_order({job.name: job.needs for job in self.job}))

    def locate(self, name: str) -> str:
        """What the plan calls by a path, seen from the plan's folder; registered and other names as they are.

        Args:
            name: Of a model, a task, a source of images or a circuit file.
        """
        prefix = IMAGES if name.startswith(IMAGES) else ""
        path = self.folder / name.removeprefix(prefix)
        known = name in EMBEDDED or name in TASKS  # whatever lies beside the plan under such a name
        return f"{prefix}{path}" if path.exists() and not known else name

    def record(self) -> dict[str, Any]:
        """What the results of the plan are a function of, as JSON; limits but the batch size are left out."""
        content = self.model_dump(exclude={"limits"})
        return {
            "schema": SCHEMA,
            **plain(content),
            "batch_size": self.limits.batch_size,
            "threads": self.limits.threads,
        }


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
    try:
        content = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read the plan {path}: {error.strerror or error}; give a TOML file"
        ) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise InputError(f"{path} is not a TOML file: {error}") from error
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
        plan = Plan.model_validate({**_prepared(content), "folder": Path(folder)})
    except ValidationError as error:
        raise _complaint(error, origin) from error
    except InputError as error:
        raise type(error)(f"{origin}: {error}") from error
    return _checked(plan, origin)


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
    return top


def _fields(table: Mapping[str, Any], place: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        field = key.replace("-", "_")
        if field in found:
            raise InputError(f"{place}{key} is given twice, once with '-' and once with '_'; give it once")
        found[field] = tuple(value) if isinstance(value, list) else value
    return found


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
        what = "is an empty list; list at least one, or leave the key out"
    elif kind == "value_error":
        what = str(first["ctx"]["error"])
    else:
        message = first["msg"].replace("valid tuple", "list").replace("a valid dictionary", "a table")
        message = message.partition(" or instance of")[0]
        what = f"{message[0].lower()}{message[1:]}, got {given!r:.120}"
    return InputError(f"{origin}: {_place(where)}: {what}")


def _known_keys(where: Sequence[int | str]) -> Iterable[str]:
    tables: dict[str, type[BaseModel]] = {
        "attack": AttackChoice,
        "rank": RankChoice,
        "shards": ShardsChoice,
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


# ---- names --------------------------------------------------------------------------------------


def _checked(plan: Plan, origin: str) -> Plan:
    """The plan with registered keys for names, once everything in it exists and fits together."""

    def at(place: str, check: Any, /, *arguments: Any, **named: Any) -> Any:
        try:
            return check(*arguments, **named)
        except InputError as error:
            raise type(error)(f"{origin}: {place}: {error}") from error

    product = {"models": plan.models, "tasks": plan.tasks, "methods": plan.methods}
    missing = [key for key, values in product.items() if not values]
    if missing and (len(missing) < len(product) or not (plan.job or plan.rank)):
        raise InputError(
            f"{origin}: {missing[0]} is missing; a sweep needs models, tasks and methods, or [[job]]s alone"
        )
    if plan.sizes and plan.target is not None:
        raise InputError(f"{origin}: sizes and target are both given; give one of them")
    _check_shape(plan, origin)
    changes: dict[str, Any] = {
        "tasks": tuple(at("tasks", _task, name, plan) for name in plan.tasks),
        "metrics": tuple(at("metrics", find_metric, name).key for name in plan.metrics),
        "gates": tuple(at("gates", find_gate, name).key for name in plan.gates),
        "methods": tuple(_canonical(each, at) for each in plan.methods),
    }
    for name in plan.models:
        at("models", check_model, name, plan)
    at("ablation", check_options, ablation=plan.ablation)
    at("objective", check_options, objective=plan.objective)
    if plan.attack is not None:
        at("[attack] protocol", _check_attack, plan.attack)
    if plan.rank is not None:
        for metric in plan.rank.metrics:
            at("[rank] metrics", PREDICTORS.__getitem__, metric)
        for images in plan.rank.images:
            at("[rank] images", is_shapes, images)
    jobs = []
    for place, job in enumerate(plan.job, start=1):
        where = f"[[job]] {place}"
        at(f"{where} model", check_model, job.model, plan)
        task = at(f"{where} task", _task, job.task, plan)
        metrics = tuple(at(f"{where} metrics", find_metric, name).key for name in job.metrics)
        if not _is_file(plan.folder / job.circuit):
            raise InputError(f"{origin}: {where} circuit: there is no file {plan.folder / job.circuit}")
        jobs.append(job.model_copy(update={"task": task, "metrics": at(where, _unrepeated, metrics)}))
    changes["job"] = tuple(jobs)
    for key in ("tasks", "metrics", "gates", "methods"):
        at(key, _unrepeated, changes[key])
    if not plan.sizes and plan.target is None:
        changes["target"] = DEFAULT_TARGET
    return plan.model_copy(update=changes)


def _is_file(path: Path) -> bool:
    """Whether a file is there; a name that no file can have is none."""
    try:
        return path.is_file()
    except OSError:  # too long for the file system
        return False


def _unrepeated(values: tuple[T, ...]) -> tuple[T, ...]:
    try:
        return _distinct(values)
    except ValueError as error:
        raise InputError(str(error)) from error


def _canonical(choice: MethodChoice, at: Any) -> MethodChoice:
    chosen = at("methods", get_method, choice.method, **choice.options)
    at("methods", _check_name, "quadrature", choice.quadrature, get_args(Rule))
    at("methods", _check_steps, chosen, choice)
    return choice.model_copy(update={"method": chosen.key})


def _check_steps(method: EdgeMethod, choice: MethodChoice) -> None:
    """Refuse steps and quadrature of a method that has no use for them: its numbers would not change."""
    given = [name for name in ("steps", "quadrature") if name in choice.model_fields_set]
    if not given or method.uses_steps():
        return
    options = [each.name for each in dataclasses.fields(method)]
    takes = f"its options are {', '.join(options)}" if options else "it has no options"
    raise InputError(f"method {method.key!r} has no use for {' and '.join(given)}, leave it out; {takes}")


def _check_name(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise unknown_name(kind, name, known)


def _check_attack(attack: AttackChoice) -> None:
    protocol = attack.protocol or "all"
    # The pairs of a file are what a file has anyway, and a plan may name other tasks beside it.
    _check_name("protocol", protocol, [name for name in PROTOCOLS if name != "file"])
    sizes(protocol, n_clean=attack.n_clean, n_corrupted=attack.n_corrupted, n_pairs=attack.n_pairs)


def _task(name: str, plan: Plan) -> str:
    """A registered key, or a file or source of images as it is named."""
    own = name == PLANTED and all(model.startswith(f"{PLANTED}:") for model in plan.models)
    if name.startswith(IMAGES) or digits_source(name) is not None or own:
        return name
    if Path(name).suffix == ".jsonl":
        if not (plan.folder / name).is_file():
            raise InputError(f"there is no file {plan.folder / name}")
        return name
    check_options(task=name)
    return name if name in TASKS else name.replace("_", "-")


def check_model(name: str, plan: Plan) -> None:
    """Refuse a name that no model can have: an unknown planted one, a slip of an embedded one.

    Hub ids cannot be told from slips without asking the hub; those with an owner, and directories, pass.

    Raises:
        UnknownNameError: Naming what was probably meant.
    """
    known = [*EMBEDDED, *(f"planted:{each}" for each in planted_names())]
    if name in known or name.startswith("timm:") or (plan.folder / name).is_dir():
        return
    near = near_matches(name, known, limit=1)
    if name.startswith("planted:"):
        raise unknown_name("model", name, known)
    if "/" not in name and near and _alike(name, near[0]):
        raise UnknownNameError(
            f"unknown model {name!r}; did you mean {near[0]!r}? (write a hub id of that name with its owner)"
        )


def _alike(name: str, known: str) -> bool:
    """Whether a name is a slip of a known one: as long, but for one letter, and mostly the same letters."""
    common = sum(min(name.count(letter), known.count(letter)) for letter in set(name))
    return abs(len(name) - len(known)) <= 1 and common >= len(known) - 1


# ---- order --------------------------------------------------------------------------------------


def _check_shape(plan: Plan, origin: str) -> None:
    """Names of single jobs are unique, exist where they are needed, and need no circle of each other."""
    names = [job.name for job in plan.job]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{origin}: two [[job]]s are called {name!r}; name them apart")
    for place, job in enumerate(plan.job, start=1):
        for need in job.needs:
            if need not in names:
                near = near_matches(need, names)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
                raise UnknownNameError(f"{origin}: [[job]] {place} needs: no job {need!r}; {hint}")
    try:
        in_order({job.name: job.needs for job in plan.job})
    except InputError as error:
        raise InputError(f"{origin}: {error}") from error
