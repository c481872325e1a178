"""What an audit runs: its stages, and what is left out and why."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from assay.core.errors import check_name
from assay.core.record import Record
from assay.execution import get_ablation
from assay.metrics import find_metric
from assay.models import Model
from assay.pipeline.sizing import COARSE, FINE, SizeSearch


# Stages that an audit can do without.
STAGES = ("attack", "random", "curve", "minimality", "calibrate")
METRIC_KEYS = ("faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk")
OF_LABELS = ("ce-delta", "topk")  # need right answers
HEADLINE = ("faithfulness-norm", "faithfulness", "topk")  # what the first sentence of a report needs
OTHER_ABLATIONS = ("zero", "mean")  # that the first number of a report is shown under beside its own
MINIMALITY_HEADS = 64  # models of at most so many heads get minimality in a full audit: one run per head
RANDOM_PER_SIZE = 4  # random circuits at each published size of the curve of a full audit
RANDOM, RANDOM_FULL = 5, 20  # random circuits of the chosen size
N, N_FULL = 100, 200  # prompts or images of either draw

# Why a stage, or its larger form, is not run.
DEFAULT, SKIPPED, IMAGES, LARGE, EDGES = "default", "skip", "images", "large", "edges"
READS = "reads"
LENGTHS = "lengths"
CAUSES = {
    DEFAULT: "not part of a default audit",
    SKIPPED: "left out by --skip",
    IMAGES: "needs prompts; the inputs are images",
    READS: "serves prompts that are read at one position each",
    LENGTHS: "serves pairs whose prompts are of one length",
    EDGES: "the ablation is defined for edges alone; gates then take the mean",
    LARGE: f"the model has more than {MINIMALITY_HEADS} heads",
}
WHAT = {
    "curve": "faithfulness by size, with CPR and CMD",
    "random": "random circuits of the same size",
    "minimality": "minimality: one run per head",
    "attack": "the worst pairs, or single inputs",
    "calibrate": "the gates",
}
LARGER = {
    "curve": f"a finer curve, with {RANDOM_PER_SIZE} random circuits at each size",
    "attack": "the worst case over fresh prompts, or over all pairs of images",
    "calibrate": "the gates that need further runs of the model",
}


@dataclass(frozen=True, kw_only=True)
class LeftOut(Record):
    """A stage, or the larger form of one, that is not run.

    Attributes:
        stage: Of an audit, or the key of a metric.
        what: What it is.
        reason: Why it is not run.
        option: Option that runs it; empty where none does.
    """

    stage: str
    what: str
    reason: str
    option: str = ""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which stages an audit runs, and in which form.

    Attributes:
        larger: Stages that run in their larger form, of which `STAGES` lists all.
        causes: Stage -> why it is not run at all.
        search: How closely the size is searched for.
    """

    larger: frozenset[str] = frozenset()
    causes: Mapping[str, str] = field(default_factory=dict)
    search: SizeSearch = COARSE

    def runs(self, stage: str) -> bool:
        """Whether a stage is run in either form."""
        return stage not in self.causes

    def without(self, stages: Collection[str], cause: str) -> "Scope":
        """The scope with some stages less."""
        return replace(self, causes={**dict.fromkeys(stages, cause), **self.causes})

    def record(self) -> dict[str, object]:
        """What of a result's identity it is."""
        return {
            "larger": sorted(self.larger),
            "left_out": dict(sorted(self.causes.items())),
            "search": [self.search.resolution, self.search.growth],
        }


def scope_of(*, full: bool, skip: Collection[str] = (), images: bool = False) -> Scope:
    """The stages of a default or a full audit.

    Args:
        full: All stages in their larger form.
        skip: Stages to leave out.
        images: Whether the inputs are images, which some stages cannot take.

    Raises:
        UnknownNameError: For a stage that an audit does not have.
    """
    for name in skip:
        check_name("stage to skip", name, STAGES)
    scope = Scope(larger=frozenset(STAGES), search=FINE) if full else Scope(causes={"minimality": DEFAULT})
    scope = scope.without(("calibrate",) if images else (), IMAGES)
    return replace(scope, causes={**scope.causes, **dict.fromkeys(skip, SKIPPED)})


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """What an audit would run.

    Attributes:
        model: Its shape decides whether a full audit has minimality.
        method, steps, metrics, n_random: Options of `assay.audit`; None: the usual ones.
        n: Prompts or images of either draw.
        scope: The stages.
        held_out: Whether the circuit is measured on other inputs than those of discovery.
        ablation: What cut edges carry.
        labelled: Whether right answers are known, which some metrics need.
    """

    model: Model
    method: str = "eap-ig-inputs"
    n: int = N
    steps: int | str = 5
    metrics: Sequence[str] | None = None
    n_random: int | None = None
    scope: Scope = field(default_factory=lambda: scope_of(full=False))
    held_out: bool = True
    ablation: str = "resample"
    labelled: bool = True

    @property
    def random_circuits(self) -> int:
        """Random circuits of the chosen size."""
        usual = RANDOM_FULL if "random" in self.scope.larger else RANDOM
        return (self.n_random or usual) if self.scope.runs("random") else 0

    @property
    def metric_keys(self) -> tuple[str, ...]:
        """What is measured: what a report needs first, then what was asked for or is usual."""
        if self.metrics is not None:
            keys = dict.fromkeys([*HEADLINE, *(find_metric(key).key for key in self.metrics)])
        else:
            minimality = ("minimality",) if self.small and self.scope.runs("minimality") else ()
            keys = dict.fromkeys((*METRIC_KEYS, *minimality))
        return tuple(key for key in keys if self.labelled or key not in OF_LABELS)

    @property
    def other_ablations(self) -> tuple[str, ...]:
        """What cut edges carry instead, where the first number of a report is measured again."""
        return tuple(key for key in OTHER_ABLATIONS if not self.ablation.startswith(key))

    @property
    def repeatable(self) -> bool:
        """Whether every run carries the same values, so that a divergence belongs to inputs."""
        return get_ablation(self.ablation).draws == 1

    @property
    def small(self) -> bool:
        """Whether a run per head is cheap enough for a full audit."""
        return self.model.n_layers * self.model.n_heads <= MINIMALITY_HEADS

    @property
    def left_out(self) -> list[LeftOut]:
        """What is not run, why, and how it is had."""
        listed = [each for stage in STAGES for each in self._left_out(stage)]
        unlabelled = () if self.labelled else OF_LABELS
        reason = "the images have no labels"
        return listed + [LeftOut(stage=key, what=find_metric(key).name, reason=reason) for key in unlabelled]

    def _left_out(self, stage: str) -> list[LeftOut]:
        cause = self.scope.causes.get(stage)
        if not self.repeatable and stage == "attack":
            reason = "the ablation draws other values in every run, so no divergence belongs to an input"
            return [LeftOut(stage=stage, what=WHAT[stage], reason=reason)]
        if stage == "minimality" and "minimality" in self.metric_keys:
            return []
        if cause in (None, DEFAULT) and stage == "minimality":
            cause = DEFAULT if self.small else LARGE
        if cause is None and (stage in self.scope.larger or stage not in LARGER):
            return []
        option = {
            IMAGES: "",
            SKIPPED: f"no --skip {stage}",
            LARGE: "assay measure --metric minimality",
        }
        what = LARGER[stage] if cause is None else WHAT[stage]
        cause = cause or DEFAULT
        return [LeftOut(stage=stage, what=what, reason=CAUSES[cause], option=option.get(cause, "--full"))]
