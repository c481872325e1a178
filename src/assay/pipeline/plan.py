"""Plans of sweeps: TOML files of models, tasks, methods and metrics, checked before any model is loaded.

A plan is data. `plan_file.py` reads one, `plan_checks.py` looks up its names: reading one runs nothing and
opens no file but the plan itself.
"""

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from assay.core.record import plain
from assay.core.untrusted import printable
from assay.models.loading import EMBEDDED
from assay.pipeline.limits import Limits
from assay.pipeline.order import in_order
from assay.tasks import TASKS
from assay.tasks.load import DEFAULT_N


SCHEMA = "assay-plan/1"
IMAGES = "images:"  # begins a task that is a source of images
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


Name = Annotated[str, AfterValidator(_plan_name)]
Text = Annotated[str, AfterValidator(_text)]
Count = Annotated[int, Field(ge=1)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(distinct)]


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
    needs: Annotated[tuple[Text, ...], AfterValidator(distinct)] = ()


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
        tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(distinct)
    ] = (0,)
    models: Texts = ()
    tasks: Texts = ()
    methods: Annotated[tuple[MethodChoice, ...], Field(min_length=1), AfterValidator(distinct)] = ()
    sizes: Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(distinct)] = ()
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
