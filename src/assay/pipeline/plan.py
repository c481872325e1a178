"""Plans of sweeps: TOML files of models, tasks, methods and metrics, checked before any model is loaded.

A plan is data: each field looks up the names it holds, which become registered keys. `plan_file.py` reads a
plan; that runs nothing and opens no file but the plan itself.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from assay.analyses.calibration import find_gate
from assay.analyses.worst_case import PROTOCOLS
from assay.circuits.given import IMAGES
from assay.core.errors import InputError, UnknownNameError, check_name, near_matches, unknown_name
from assay.core.record import plain
from assay.core.untrusted import printable
from assay.discovery.edges import get_method
from assay.discovery.edges.quadrature import Rule
from assay.metrics import find_metric
from assay.models.loading import EMBEDDED
from assay.models.planted import planted_names
from assay.pipeline.checks import check_options
from assay.pipeline.limits import Limits
from assay.pipeline.order import in_order
from assay.pipeline.worst import sizes
from assay.tasks import TASKS, digits_source, is_task_file
from assay.tasks.load import DEFAULT_N


SCHEMA = "assay-plan/1"
PLANTED = "planted"  # begins a model that is planted, and names its own examples
DEFAULT_TARGET = 0.9
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

T = TypeVar("T")


def distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    """The values, unless one is listed twice."""
    for value in values:
        if values.count(value) > 1:
            shown = value.label if isinstance(value, MethodChoice) else value
            raise ValueError(f"{shown!r} is listed twice; list it once")
    return values


def _plan_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{printable(value, lines=False)[:80]!r} is not a valid file name on every system; use up to 64 "
            "letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return value


def _text(value: str) -> str:
    if not value.strip() or printable(value, lines=False) != value:
        raise ValueError(f"expected a name, got {value!r}")
    return value


def _steps(value: Any) -> int | str:
    if value == "auto" or (type(value) is int and value >= 1):
        return cast(int | str, value)
    raise ValueError(f"expected a count of at least 1, or 'auto', got {value!r:.60}")


# ---- names --------------------------------------------------------------------------------------


def _folder(info: Any) -> Path:
    """Where relative paths start, from pydantic’s `ValidationInfo`."""
    return Path((info.context or {}).get("folder", ""))


def _keys(find: Callable[[str], Any]) -> AfterValidator:
    """Names become the keys of what they find, each once."""
    return AfterValidator(lambda names: distinct(tuple(find(name).key for name in names)))


def _known(kind: str, names: Sequence[str]) -> Callable[[str], str]:
    def check(name: str) -> str:
        check_name(kind, name, names)
        return name

    return check


def _option(kind: str) -> AfterValidator:
    """An ablation or an objective by its name."""

    def checked(name: str) -> str:
        check_options(**cast(Any, {kind: name}))
        return name

    return AfterValidator(checked)


def _task(name: str, models: Sequence[str], folder: Path) -> str:
    """A registered key, or a file or source of images as it is named."""
    own = name == PLANTED and all(model.startswith(f"{PLANTED}:") for model in models)
    if name.startswith(IMAGES) or digits_source(name) is not None or own:
        return name
    if is_task_file(name):
        return _file(name, folder)
    check_options(task=name)
    return name if name in TASKS else name.replace("_", "-")


def _file(name: str, folder: Path) -> str:
    """Refuse what is not a file; a name that no file can have is none."""
    try:
        exists = (folder / name).is_file()
    except OSError:  # too long for the file system
        exists = False
    if not exists:
        raise InputError(f"{folder / name} does not exist")
    return name


def _model(name: str, folder: Path) -> str:
    """Refuse a name that no model can have: an unknown planted one, a slip of an embedded one.

    Hub ids cannot be told from slips without asking the hub; those with an owner, and directories, pass.
    """
    known = [*EMBEDDED, *(f"planted:{each}" for each in planted_names())]
    if name in known or name.startswith("timm:") or (folder / name).is_dir():
        return name
    near = near_matches(name, known, limit=1)
    if name.startswith("planted:"):
        raise unknown_name("model", name, known)
    if "/" not in name and near and _alike(name, near[0]):
        raise UnknownNameError(
            f"unknown model {name!r}; did you mean {near[0]!r}? (write a hub id of that name with its owner)"
        )
    return name


def _alike(name: str, known: str) -> bool:
    """Whether a name is a slip of a known one: as long, but for one letter, and mostly the same letters."""
    common = sum(min(name.count(letter), known.count(letter)) for letter in set(name))
    return abs(len(name) - len(known)) <= 1 and common >= len(known) - 1


def _canonical(choice: "MethodChoice") -> "MethodChoice":
    """The choice with its registered key; steps and quadrature must change its numbers."""
    method = get_method(choice.method, **choice.options)
    _known("quadrature", get_args(Rule))(choice.quadrature)
    without_use = [name for name in ("steps", "quadrature") if name in choice.model_fields_set]
    if without_use and not method.uses_steps():
        options = [each.name for each in dataclasses.fields(method)]
        takes = f"its options are {', '.join(options)}" if options else "it has no options"
        raise InputError(
            f"method {method.key!r} does not use {' and '.join(without_use)}, remove it; {takes}"
        )
    return choice.model_copy(update={"method": method.key})


Name = Annotated[str, AfterValidator(_plan_name)]
Text = Annotated[str, AfterValidator(_text)]
Count = Annotated[int, Field(ge=1)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(distinct)]
Metrics = Annotated[Texts, _keys(find_metric)]


# ---- sections -----------------------------------------------------------------------------------


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
    """

    protocol: (
        # The pairs of a file are what a file has anyway, and a plan may name other tasks beside it.
        Annotated[Text, AfterValidator(_known("protocol", [name for name in PROTOCOLS if name != "file"]))]
        | None
    ) = None
    n_clean: Count | None = None
    n_corrupted: Count | None = None
    n_pairs: Count | None = None

    @model_validator(mode="after")
    def _counts(self) -> "AttackChoice":
        sizes(
            self.protocol or "all", n_clean=self.n_clean, n_corrupted=self.n_corrupted, n_pairs=self.n_pairs
        )
        return self


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
    model: Annotated[Text, AfterValidator(lambda name, info: _model(name, _folder(info)))]
    task: Annotated[
        Text, AfterValidator(lambda name, info: _task(name, [info.data.get("model", "")], _folder(info)))
    ]
    circuit: Annotated[Text, AfterValidator(lambda name, info: _file(name, _folder(info)))]
    metrics: Metrics
    needs: Annotated[tuple[Text, ...], AfterValidator(distinct)] = ()


class Plan(_Section):
    """A sweep as its file describes it; names are registered keys.

    Attributes:
        name: What it is called; default: the file's name.
        n: Examples of each task.
        bos: Whether prompts begin with the tokenizer's beginning-of-sequence token; None: as it begins them.
        seeds: Root seeds; each makes the product once.
        models, tasks, methods: What the product is of.
        sizes: Numbers of strongest edges kept (then connected); empty where `target` is set.
        target: Normalised faithfulness that the smallest circuit must reach; None where `sizes` are set.
        objective: Loss that defines the behaviour; None: each task's own.
        ablation: What a cut edge carries; None: each task's own.
        metrics: Measured on every circuit.
        gates: Judged on every circuit.
        attack: Worst pairs of every circuit; None: not looked for.
        n_random: Random circuits measured beside each, for the metrics.
        limits: What the sweep may use; of them the batch size alone enters results.
        job: Single jobs beside the product.
        folder: Where relative paths start.
    """

    name: Name
    n: Annotated[int, Field(ge=2)] = DEFAULT_N
    bos: bool | None = None
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(distinct)
    ] = (0,)
    models: Annotated[
        Texts, AfterValidator(lambda names, info: tuple(_model(name, _folder(info)) for name in names))
    ] = ()
    tasks: Annotated[
        Texts,
        AfterValidator(
            lambda names, info: distinct(
                tuple(_task(name, info.data.get("models", ()), _folder(info)) for name in names)
            )
        ),
    ] = ()
    methods: Annotated[
        tuple[MethodChoice, ...],
        Field(min_length=1),
        AfterValidator(lambda choices: distinct(tuple(map(_canonical, choices)))),
    ] = ()
    sizes: Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(distinct)] = ()
    target: Annotated[float, Field(gt=0, le=1)] | None = None
    objective: Annotated[Text, _option("objective")] | None = None
    ablation: Annotated[Text, _option("ablation")] | None = None
    metrics: Metrics = ()
    gates: Annotated[Texts, _keys(find_gate)] = ()
    attack: AttackChoice | None = None
    n_random: Annotated[int, Field(ge=0)] = 0
    limits: Limits = Limits()
    job: tuple[SingleJob, ...] = ()
    folder: Path = Field(default=Path(), exclude=True)

    @model_validator(mode="after")
    def _whole(self) -> "Plan":
        """What fields cannot see alone: the product is complete, and single jobs fit together."""
        product = {"models": self.models, "tasks": self.tasks, "methods": self.methods}
        missing = [key for key, values in product.items() if not values]
        if missing and (len(missing) < len(product) or not self.job):
            raise InputError(
                f"{missing[0]} is missing; a sweep needs models, tasks and methods, or [[job]]s alone"
            )
        if self.sizes and self.target is not None:
            raise InputError("sizes and target exclude each other; give one of them")
        names = [job.name for job in self.job]
        for place, job in enumerate(self.job, start=1):
            if names.count(job.name) > 1:
                raise InputError(f"two [[job]]s are named {job.name!r}; give each its own name")
            for need in job.needs:
                if need not in names:
                    near = near_matches(need, names)
                    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
                    raise UnknownNameError(f"[[job]] {place} needs: no job {need!r}; {hint}")
        self.jobs  # noqa: B018 - refuses a circle
        return self

    @property
    def jobs(self) -> tuple[SingleJob, ...]:
        """The single jobs, those that others need first."""
        by_name = {job.name: job for job in self.job}
        return tuple(by_name[name] for name in in_order({job.name: job.needs for job in self.job}))

    def locate(self, name: str) -> str:
        """What the plan calls by a path, seen from the plan's folder; registered and other names as they are.

        Args:
            name: Of a model, a task or a circuit file.
        """
        prefix = IMAGES if name.startswith(IMAGES) else ""
        path = self.folder / name.removeprefix(prefix)
        known = name in EMBEDDED or name in TASKS  # whatever lies beside the plan under such a name
        return f"{prefix}{path}" if path.exists() and not known else name

    def record(self) -> dict[str, Any]:
        """What the results of the plan are a function of, as JSON; limits but the batch size are left out."""
        content = self.model_dump(exclude={"limits"} | ({"bos"} if self.bos is None else set()))
        return {
            "schema": SCHEMA,
            **plain(content),
            "batch_size": self.limits.batch_size,
            "threads": self.limits.threads,
        }
