"""Whether the circuit's heads alone bring the behaviour back in a model whose heads are all ablated."""

import numpy as np
from torch import Tensor

from assay.core.errors import check_name
from assay.core.measurement import Measurement
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.execution import CircuitRuns
from assay.execution.forward import finite_rows
from assay.execution.sites import Replacement, Setting, Site
from assay.metrics.metric import MetricSpec, finite_examples, metric, record, task_warnings
from assay.metrics.replaced import Complement
from assay.stats import recovery_of


@metric(
    key="corrupt-restore",
    id="C20.corrupt_restore",
    name="recovery from all heads ablated by restoring the circuit's",
    family="A",
    criterion="I2 sufficiency",
    direction="higher",
    pass_threshold=0.5,
    strict=False,
    runs=("full",),
    own_runs=3,
    reference="mechanistic-validity framework, C20",
)
def _corrupt_restore(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Share of the margin that comes back when the circuit's heads get their clean outputs again.

    (S_restored - S_ablated) / (S_full - S_ablated), S the sum of margins: in `ablated` every head of the
    model is ablated, in `restored` the circuit's heads have the outputs of the clean run instead. Unlike in
    `faithfulness-norm` these heads do not read what the ablation left them. MLPs act throughout.

    The heads of an edge circuit are those of its connected form. Draws of noise are averaged. Undefined
    (`zero_denominator`) where ablating every head leaves the model's margin.
    """
    check_name("ablation of heads", runs.ablation, INTERVENTIONS)
    intervention = INTERVENTIONS[runs.ablation]
    complement = Complement(runs=runs)
    heads = runs.circuit.kept_heads()
    margins: dict[str, list[np.ndarray]] = {"restored": [], "ablated": []}
    used = finite_examples(runs, "full")
    for draw in range(intervention.draws):
        complement.setting.draw = draw
        ablated = intervention.prepare_heads(complement.setting)
        restored = _restored(ablated, heads, complement.setting)
        for name, replacement in (("ablated", ablated), ("restored", restored)):
            logits = complement.with_all_heads(replacement)
            used &= finite_rows(logits).numpy()
            margins[name].append(runs.margins_from(logits))
    components = {name: np.mean(each, axis=0) for name, each in margins.items()}
    components["full"] = runs.margins("full")
    details = {"heads": [f"a{layer}.h{head}" for layer, head in heads]} | {
        f"mean_margin_{name}": float(each[used].mean()) for name, each in components.items() if used.any()
    }
    return record(
        spec,
        components,
        recovery_of("restored", empty="ablated"),
        used=used,
        warnings=task_warnings(runs, used),
        details=details,
    )


def _restored(ablated: Replacement, heads: tuple[tuple[int, int], ...], setting: Setting) -> Replacement:
    """As `ablated`, with the clean outputs of some heads."""
    clean = setting.outputs(setting.task)

    def replaced(site: Site) -> Tensor:
        new = ablated(site).to(site.z).expand_as(site.z).clone()
        kept = [head for layer, head in heads if layer == site.layer]
        new[:, :, kept] = clean[site.layer][site.batch.indices][:, :, kept].to(new)
        return new

    return replaced
