"""What an audit runs: its stages, what they cost, and what is left out and why."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from assay.analyses.calibration.battery import USUAL_PROMPTS
from assay.analyses.worst_case.sampling import INPUTS
from assay.core.errors import check_name
from assay.execution import get_ablation
from assay.metrics import find_metric
from assay.metrics.curve import FRACTIONS
from assay.models import Model
from assay.pipeline.cost import LeftOut, Workload
from assay.pipeline.discovery import plan_discovery
from assay.pipeline.document import OPENED_EDGES
from assay.pipeline.gates import plan_calibration
from assay.pipeline.runs import plan_measurement
from assay.pipeline.sizing import COARSE, FINE, SizeSearch, plan_sizing
from assay.pipeline.worst import USUAL_SIDE, PairCounts, plan_own_pairs, plan_row_by_row, plan_worst_case


# Stages that an audit can do without, in the order in which a small budget gives them up, last first.
STAGES = ("attack", "random", "curve", "minimality", "calibrate")
METRIC_KEYS = ("faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk")
OF_LABELS = ("ce-delta", "topk")  # need right answers
HEADLINE = ("faithfulness-norm", "faithfulness", "topk")  # what the first sentence of a report needs
OTHER_ABLATIONS = ("zero", "mean")  # that the first number of a report is shown under beside its own
MINIMALITY_HEADS = 64  # models of at most so many heads get minimality in a full audit: one run per head
RANDOM_PER_SIZE = 4  # random circuits at each published size of the curve of a full audit
FINE_SIZES = 15  # sizes of the finer curve of a full audit beside the published ones, at most
RANDOM, RANDOM_FULL = 5, 20  # random circuits of the chosen size
N, N_FULL = 100, 200  # prompts or images of either draw

# Why a stage, or its larger form, is not run.
DEFAULT, SKIPPED, BUDGET, IMAGES, LARGE, EDGES = "default", "skip", "budget", "images", "large", "edges"
READS = "reads"
LENGTHS = "lengths"
CAUSES = {
    DEFAULT: "not part of a default audit",
    SKIPPED: "left out by --skip",
    BUDGET: "does not fit the budget",
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
        model: Its shape decides the costs.
        method, steps, metrics, n_random: Options of `assay.audit`; None: the usual ones.
        n: Prompts or images of either draw.
        scope: The stages.
        held_out: Whether the circuit is measured on other inputs than those of discovery.
        ablation: What cut edges carry.
        labelled: Whether right answers are known, which some metrics need.
        read_once: Whether every prompt is read at one position.
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
    read_once: bool = True

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
    def stages(self) -> list[Workload]:
        """Stages in order, with what each costs at most."""
        discover = plan_discovery(self.model, method=self.method, n=self.n, steps=self.steps)
        sizing = plan_sizing(self.model.graph.n_edges, self.n, self.scope.search, held_out=self.held_out)
        keys = self.metric_keys
        random = self.random_circuits
        measured = plan_measurement(self.model, keys, n=self.n, n_random=random, sized=True)
        again = sum(2 + get_ablation(key).measured for key in self.other_ablations)  # keep, empty, means
        if self.model.post_norm != "exact":
            again = 2 * again + len(self.other_ablations)
        others = Workload(stage="other ablations", runs=again, passes=again * self.n)
        drawn = self.model.graph.n_edges > OPENED_EDGES  # of a large circuit, what its drawing opens on
        drawing = Workload(stage="drawing", runs=int(drawn), passes=drawn * self.n)
        return [discover, sizing, *self._stage("curve"), measured, others, drawing, *self._after()]

    def _after(self) -> list[Workload]:
        return [*(self._stage("attack") if self.repeatable else ()), *self._stage("calibrate")]

    def _stage(self, name: str) -> list[Workload]:
        if not self.scope.runs(name):
            return []
        return [self._workload(name, larger=name in self.scope.larger)]

    def _workload(self, name: str, *, larger: bool) -> Workload:
        """One stage that can be left out, in one of its forms."""
        if name == "curve":
            sizes = len(FRACTIONS) - 1  # the last is the model itself
            runs = sizes + larger * (FINE_SIZES + RANDOM_PER_SIZE * len(FRACTIONS))
            return Workload(stage="faithfulness curve", runs=runs, passes=runs * self.n)
        if name == "attack":
            return self._larger_attack() if larger else plan_own_pairs(self.n)
        if name == "calibrate":
            parts = plan_calibration(self.model, min(self.n, USUAL_PROMPTS)) if larger else []
            return Workload(stage="calibrate", runs=1, passes=sum(part.passes for part in parts))
        runs = RANDOM if name == "random" else self.model.n_layers * self.model.n_heads
        return Workload(stage=name, runs=runs, passes=runs * self.n)

    def _larger_attack(self) -> Workload:
        """The worst case over pairs, or single inputs, beyond those that were measured."""
        if not get_ablation(self.ablation).paired:
            size = PairCounts(n_clean=self.n, n_corrupted=self.n)
            return plan_row_by_row(self.model, INPUTS, size, self.ablation, None)
        side = min(self.n, USUAL_SIDE)
        size = PairCounts(n_clean=side, n_corrupted=side)
        if not self.read_once:
            size = PairCounts(n_clean=self.n, n_corrupted=self.n)
            return plan_row_by_row(self.model, "matched", size, self.ablation, None)
        if self.model.vision is not None:
            return plan_row_by_row(self.model, "all", size, self.ablation, None)
        return plan_worst_case("all", size)

    @property
    def passes(self) -> int:
        """Forward-equivalents over single prompts or images, at most."""
        return sum(stage.passes for stage in self.stages)

    @property
    def left_out(self) -> list[LeftOut]:
        """What is not run, with what it would cost and how it is had."""
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
        larger, small = (self._workload(stage, larger=each).passes for each in (True, False))
        option = {
            IMAGES: "",
            SKIPPED: f"no --skip {stage}",
            BUDGET: "a larger --budget",
            LARGE: "assay measure --metric minimality",
        }
        if cause is None:
            reason, what, passes = CAUSES[DEFAULT], LARGER[stage], larger - small
        else:
            reason, what, passes = CAUSES[cause], WHAT[stage], small
        return [
            LeftOut(
                stage=stage,
                what=what,
                reason=reason,
                passes=0 if cause == IMAGES else max(passes, 0),
                option=option.get(cause or DEFAULT, "--full"),
            )
        ]
