"""Scores from batches that are given one at a time: for data that are read once and serve several models."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from assay.circuits import EdgeScores
from assay.core.errors import InputError
from assay.discovery.edges.method import METHODS, BatchMethod, Choices, EdgeMethod, measures
from assay.discovery.edges.sums import Sweep, SweepSums
from assay.execution import Prepared
from assay.models import Model
from assay.tasks import Batch


class ScoreSums:
    """The scores of a method over batches that are given one at a time.

    `discover` pulls batches from one task through one model. Here the caller feeds them: each decoded batch
    can go to several models. What is held does not grow with the examples, unless `per_example` is set.

    Args:
        model: The model, in evaluation mode.
        method: A method that scores each batch by itself.
        settings: From `method.choices(...)`: `resamples` for sums under a bootstrap, `steps` a number.
        prepared: The ablation, such as `MeanSums.prepared()` or `Ablation.prepare`.

    Raises:
        InputError: For a method that decides on all examples together, steps="auto", or settings that the
            method cannot serve.

    Example:
        >>> from assay.execution import Mean, MeanSums
        >>> from assay.models import load_model
        >>> from assay.tasks import load_task
        >>> model = load_model("mini")
        >>> task = load_task("ioi", model, n=6)
        >>> means = MeanSums(model, Mean())
        >>> for batch in task.batches(2):
        ...     means.add(batch)
        >>> method = METHODS["eap"]
        >>> settings = method.choices(task, ablation="mean", resamples=200)
        >>> sums = ScoreSums(model, method, settings, means.prepared())
        >>> for batch in task.batches(2):
        ...     sums.add(batch)
        >>> sums.n, sums.scores().resampled.shape
        (6, torch.Size([200, 1519]))
    """

    def __init__(self, model: Model, method: EdgeMethod, settings: Choices, prepared: Prepared) -> None:
        check_kept_apart(method, settings)
        if not isinstance(method, BatchMethod) or not method.divisible():
            raise InputError(
                f"{method.key!r} does not score each batch by itself, so batches cannot be fed to it one at "
                "a time; use discover(), or another method such as 'eap-ig-inputs'"
            )
        if settings.steps == "auto" and method.integrates:
            raise InputError(
                "steps='auto' may need a second sweep, but fed batches come once; give a number of steps"
            )
        method.check(settings)
        self.model, self.method, self.settings, self.prepared = model, method, settings, prepared
        self._sums = SweepSums((model.graph.n_sources, model.graph.n_targets))

    @property
    def n(self) -> int:
        """Examples so far."""
        return self._sums.n

    def add(self, batch: Batch) -> None:
        """Score a batch: the passes of the method.

        Args:
            batch: Bound to the model; for images `batch.bound(model.n_tokens)`.

        Raises:
            NonFiniteError: If a score is NaN or infinite.
            InputError: If an image whose weights are drawn comes a second time.
        """
        self._sums.add(self.method.part(self.model, batch, self.prepared, self.settings))

    def scores(
        self, provenance: Mapping[str, Any] | None = None, details: Mapping[str, Any] | None = None
    ) -> EdgeScores:
        """The scores over all batches so far; more may be added afterwards.

        Args:
            provenance: How they come to be, such as `provenance_of` gives.
            details: Facts to note beside the passes.

        Raises:
            InputError: Before the first batch.
        """
        sweep = self._sums.sweep(measured=measures(self.settings.ablation))
        return scores_of(self.model, sweep, self.n, provenance or {}, details or {})


def scores_of(
    model: Model, sweep: Sweep, n: int, provenance: Mapping[str, Any], details: Mapping[str, Any]
) -> EdgeScores:
    """Mean scores of a sweep over `n` examples, with the passes it took and its completeness gap."""
    passes = {name: round(count, 3) for name, count in sweep.passes.items()}
    facts = {**details, **sweep.details, "passes": passes}
    values = (sweep.total / n).to(model.result_dtype)
    if sweep.input_effect is not None:
        facts["completeness_gap"] = completeness_gap(values, sweep.input_effect / n)
    resampled = None
    if sweep.resampled is not None:
        resampled = sweep.resampled.means(sweep.total[model.graph.valid], n)
        facts |= {"n": n, "resamples_key": sweep.resampled.key}
    return EdgeScores(
        model.graph,
        values,
        per_example=sweep.per_example,
        resampled=resampled,
        provenance=provenance,
        details=facts,
    )


def completeness_gap(values: Float[Tensor, "n_sources n_targets"], input_effect: float) -> float:
    """|sum of the scores out of `input` - effect of ablating it| / |effect|; NaN where the effect is 0."""
    return (
        abs(float(values[0].double().sum()) - input_effect) / abs(input_effect)
        if input_effect
        else float("nan")
    )


def check_kept_apart(method: EdgeMethod, settings: Choices) -> None:
    """Refuse what single examples cannot give: resamples of one, examples that a method does not keep apart.

    Raises:
        InputError: Naming the methods that can.
    """
    if settings.resamples and (isinstance(settings.resamples, bool) or settings.resamples < 2):
        raise InputError(f"resamples is {settings.resamples}; give at least 2 (200 is usual), or 0 for none")
    if settings.apart and not method.keeps_examples:
        able = ", ".join(key for key, known in METHODS.items() if known.keeps_examples)
        option = "per_example" if settings.per_example else "resamples"
        raise InputError(
            f"{method.key} decides on all examples together, so it has no scores of single examples; remove "
            f"{option}, or use one of {able}"
        )
