"""Plans of sweeps: TOML files of models, tasks, methods and metrics, checked before any model is loaded."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from assay.analyses.calibration import find_gate
from assay.circuits.naming import IMAGES
from assay.core.errors import FileFormatError, InputError, check_least, check_name
from assay.core.machine import usable_cores
from assay.core.record import BRIEF, HIDDEN, Record
from assay.core.untrusted import printable, read_object
from assay.discovery.edges import get_method
from assay.discovery.edges.eap_ig import Rule
from assay.metrics import find_metric
from assay.models.loading import EMBEDDED
from assay.pipeline.sizing import Targets
from assay.pipeline.stage import check_options
from assay.tasks import TASKS
from assay.tasks.load import DEFAULT_N


SCHEMA = "assay-plan/1"
PLANTED = "planted"  # a task: the examples of planted models
DEFAULT_TARGET = 0.9
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class Limits(Record):
    """What a sweep may use.

    Attributes:
        workers: Jobs at a time; None: as many as there are cores for `threads` each.
        retries: Further attempts of a job that failed by other than its input, died or ran out of time.
        timeout: Seconds that one attempt may take; a plan may say `"45s"`, `"10m"`, `"2h"`. None: no limit.
        threads: Threads of each worker.
        batch_size: Examples per pass of every job. Fixed by the plan and not by free memory, so that the
            bytes of a result do not depend on who computed it.
    """

    workers: int | None = None
    retries: int = 2
    timeout: float | None = None
    threads: int = 1
    batch_size: int = 32

    def __post_init__(self) -> None:
        workers = 1 if self.workers is None else self.workers
        check_least(1, threads=self.threads, batch_size=self.batch_size, workers=workers)
        check_least(0, retries=self.retries)

    @property
    def n_workers(self) -> int:
        """Workers on this machine: as asked for, else one for every `threads` cores that may be used."""
        return self.workers or max(1, usable_cores() // self.threads)


@dataclass(frozen=True, kw_only=True)
class MethodChoice(Record):
    """A discovery method with how it is to be run.

    Attributes:
        method: Its key.
        steps: Nodes of the quadrature.
        quadrature: Rule that places them.
        options: Options of the method itself, e.g. `{"updates": 300}`.
    """

    method: str
    steps: int = 5
    quadrature: str = "midpoint"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The method with what is not the default, e.g. `ugs updates=300`."""
        own = {"steps": self.steps, "quadrature": self.quadrature}
        usual = {"steps": MethodChoice.steps, "quadrature": MethodChoice.quadrature}
        changes = {key: value for key, value in own.items() if value != usual[key]} | self.options
        return " ".join([self.method, *(f"{key}={value}" for key, value in changes.items())])


@dataclass(frozen=True, kw_only=True)
class AttackChoice(Record):
    """Worst-case pairs of every circuit of the product.

    Attributes:
        protocol: `all`, `matched` or `iid`; None: `all`, and the pairs of a JSONL file as they stand.
        n_clean, n_corrupted: Inputs a side, of `all`; None: as `assay attack` takes.
        n_pairs: Pairs of the other protocols; None: as `assay attack` takes.
    """

    protocol: str | None = None
    n_clean: int | None = None
    n_corrupted: int | None = None
    n_pairs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """A sweep as its file describes it; names are registered keys.

    Attributes:
        name: What it is called; default: the file's name.
        n: Examples of each task.
        bos: Whether prompts begin with the tokenizer's beginning-of-sequence token; None: as it begins them.
        seeds: Root seeds; each makes the product once.
        models, tasks, methods: What the product is of.
        sizes: Numbers of strongest edges kept (then connected); empty where `target` is set.
        target, target_kl: What the smallest circuit must keep, see `Targets`; None where `sizes` are set.
        objective: Loss that defines the behaviour; None: each task's own.
        ablation: What a cut edge carries; None: each task's own.
        metrics: Measured on every circuit.
        gates: Judged on every circuit.
        attack: Worst pairs of every circuit; None: not looked for.
        n_random: Random circuits measured beside each, for the metrics.
        limits: What the sweep may use; of them batch size and threads alone enter results.
        folder: Where relative paths start.
    """

    name: str
    n: int = DEFAULT_N
    bos: bool | None = field(default=None, metadata=BRIEF)
    seeds: tuple[int, ...] = (0,)
    models: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    methods: tuple[MethodChoice, ...] = ()
    sizes: tuple[int, ...] = ()
    target: float | None = None
    target_kl: float | None = None
    objective: str | None = None
    ablation: str | None = None
    metrics: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    attack: AttackChoice | None = None
    n_random: int = 0
    limits: Limits = Limits()
    folder: Path = field(default=Path(), metadata=HIDDEN)

    def locate(self, name: str) -> str:
        """What the plan calls by a path, seen from the plan's folder; registered and other names as they are.

        Args:
            name: Of a model or a task.
        """
        prefix = IMAGES if name.startswith(IMAGES) else ""
        path = self.folder / name.removeprefix(prefix)
        registered = name in EMBEDDED or name in TASKS  # whatever lies beside the plan under such a name
        return name if registered or not os.path.exists(path) else f"{prefix}{path}"

    def record(self) -> dict[str, Any]:
        """What the results of the plan are a function of, as JSON."""
        content = self.to_dict()
        del content["limits"]
        limits = {"batch_size": self.limits.batch_size, "threads": self.limits.threads}
        return {"schema": SCHEMA, **content, **limits}


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan of a TOML file.

    Args:
        path: The file; paths inside it start from its folder.

    Raises:
        FileFormatError: If it cannot be read or is not TOML, with the line.
        InputError: If it is not a plan, with the place.
    """
    path = Path(path)
    content = {"name": path.stem, **read_object(path, "a TOML file of a plan")}
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
        InputError: For content that is not a plan, and for unknown names; with the place.

    Example:
        >>> plan = parse_plan({"name": "a", "models": ["mini"], "tasks": ["ioi"], "methods": ["eap"]})
        >>> plan.methods[0].label
        'eap'
    """
    try:
        fields = _underscored(content)
        for name in ("seeds", "models", "tasks", "methods", "sizes", "metrics", "gates"):
            if isinstance(fields.get(name, []), str):
                raise InputError(f"{name} is {fields[name]!r}; expected a list")
        if isinstance(fields.get("methods"), list):
            fields["methods"] = [_method(each) for each in fields["methods"]]
        if isinstance(limits := fields.get("limits"), dict) and limits.get("timeout") is not None:
            limits["timeout"] = seconds_of(limits["timeout"])
        return _checked(replace(Plan.from_dict(fields), folder=Path(folder)))
    except (FileFormatError, InputError) as error:
        raise InputError(f"{origin}: {error}") from error


def _underscored(value: Any) -> Any:
    """Keys as the fields are called."""
    if isinstance(value, list | tuple):
        return [_underscored(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {str(key).replace("-", "_"): _underscored(item) for key, item in value.items()}


def _method(choice: Any) -> Any:
    """A method as a table; keys that are not of the table are options of the method."""
    if not isinstance(choice, dict):
        return {"method": choice}
    own = {key: choice.pop(key) for key in ("method", "steps", "quadrature") if key in choice}
    return {**own, "options": choice}


def seconds_of(text: str | float | int) -> float:
    """A duration: seconds, or a number with a unit, `45s`, `10m`, `2h`, `1d`.

    Raises:
        InputError: For anything else, and for what is negative or infinite.

    Example:
        >>> seconds_of("1.5m")
        90.0
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([smhd]?)\s*", str(text))
    seconds = float(match[1]) * _SECONDS[match[2]] if match else math.inf
    if not math.isfinite(seconds):
        raise InputError(f"{text!r} is not a duration; give seconds, or 45s, 10m, 2h, 1d")
    return seconds


# ---- names --------------------------------------------------------------------------------------


def _checked(plan: Plan) -> Plan:
    """The plan with registered keys, if its parts fit together."""
    if not _NAME.fullmatch(plan.name):
        raise InputError(
            f"name: {printable(plan.name, lines=False)[:80]!r} is not a valid file name; use up to 64 "
            "letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    check_least(2, n=plan.n)
    check_least(0, n_random=plan.n_random, seeds=min(plan.seeds, default=0))
    check_least(1, sizes=min(plan.sizes, default=1))
    for name in ("models", "tasks", "methods", "seeds"):
        if not getattr(plan, name):
            raise InputError(f"{name} is missing; a sweep needs models, tasks and methods")
    target, target_kl = plan.target, plan.target_kl
    if plan.sizes and (target, target_kl) != (None, None):
        raise InputError("sizes exclude target and target-kl; give either sizes or targets")
    if not plan.sizes:
        target, target_kl = (DEFAULT_TARGET if each is None else each for each in (target, target_kl))
        Targets(faithfulness=target, distribution=target_kl)
    check_options(objective=plan.objective, ablation=plan.ablation)
    return replace(
        plan,
        target=target,
        target_kl=target_kl,
        tasks=tuple(map(_task, plan.tasks)),
        methods=tuple(map(_canonical, plan.methods)),
        metrics=tuple(find_metric(name).key for name in plan.metrics),
        gates=tuple(find_gate(name).key for name in plan.gates),
    )


def _task(name: str) -> str:
    """A registered key, or a file or source of images as it is named."""
    if name != PLANTED and not name.startswith(IMAGES):
        check_options(task=name)
    key = name.replace("_", "-")
    return key if key in TASKS else name


def _canonical(choice: MethodChoice) -> MethodChoice:
    """The choice with its registered key."""
    check_name("quadrature", choice.quadrature, get_args(Rule))
    if choice.steps < 1:
        raise InputError(f"steps is {choice.steps!r}; expected a count of at least 1")
    return replace(choice, method=get_method(choice.method, **choice.options).key)
