"""Input that makes no sense is refused by the name of the argument, whichever gate it reaches."""

from collections.abc import Callable

import numpy as np
import pytest
from planted import role_circuit

from assay.analyses.calibration import (
    ablation_invariance,
    bootstrap_stability,
    certified_stability,
    convergent_validity,
    derived_metrics,
    discriminant_validity,
    distributional_characterization,
    distributional_stability,
    incremental_validity,
    inter_rater,
    measurement_invariance,
    method_invariance,
    nomological_validity,
    reliability_suite,
    seed_variance,
)
from assay.core.random import stream
from assay.core.verdict import Verdict


P, H = 40, 12
FULL = 3 + 0.5 * stream(0, "full").normal(size=P)
KEPT = 0.9 * FULL + 0.1 * stream(0, "kept").normal(size=P)
TABLE = 0.3 + stream(0, "table").normal(size=(P, H))
MEMBERS = np.arange(H) < 4
SCORES = {"a": TABLE[0], "b": TABLE[1]}
RUNS = {"zero": KEPT, "mean": KEPT}
TWO = {"a": TABLE, "b": TABLE}
CIRCUITS = {"a": MEMBERS, "b": MEMBERS}
SHORT, NARROW, FEWER = FULL[1:], TABLE[:, 1:], MEMBERS[1:]
THREE = np.arange(3)


WRONG: list[tuple[str, str, Callable[[], Verdict]]] = [
    # Resamples, draws and permutations that are none.
    ("C11", "n_boot", lambda: bootstrap_stability(FULL, KEPT, n_boot=0)),
    ("C11 below 0", "n_boot", lambda: bootstrap_stability(FULL, KEPT, n_boot=-5)),
    ("C11 draws", "draws", lambda: bootstrap_stability(FULL, KEPT, draws=np.zeros((9, 3), dtype=int))),
    ("C11 far draws", "draws", lambda: bootstrap_stability(FULL, KEPT, draws=np.full((9, P), P))),
    ("C12", "n_boot", lambda: convergent_validity(SCORES, n_boot=0)),
    ("C12 permutations", "n_perm", lambda: convergent_validity(SCORES, n_perm=-1)),
    ("C13", "n_boot", lambda: measurement_invariance(FULL, KEPT, np.arange(P) % 3, n_boot=0)),
    ("C14", "n_boot", lambda: derived_metrics(MEMBERS, TABLE[0], n_boot=0)),
    ("C17", "n_boot", lambda: discriminant_validity(TWO, CIRCUITS, own="a", n_boot=0)),
    ("C23", "n_perm", lambda: nomological_validity(role_circuit(stream(0, "C23"), ordered=True), n_perm=0)),
    ("C30", "n_prompts", lambda: seed_variance(FULL, KEPT, n_prompts=0)),
    ("C30 seeds", "seeds", lambda: seed_variance(FULL, KEPT, n_prompts=10, seeds=())),
    ("F59", "n_boot", lambda: inter_rater(SCORES, n_boot=-3)),
    ("F59 permutations", "n_perm", lambda: inter_rater(SCORES, n_perm=0)),
    ("S1", "n_boot", lambda: distributional_characterization(TABLE, MEMBERS, n_boot=0)),
    ("S1 permutations", "n_perm", lambda: distributional_characterization(TABLE, MEMBERS, n_perm=0)),
    ("S3", "n_subsets", lambda: distributional_stability(TABLE, n_subsets=1)),
    ("M3b", "n_draws", lambda: certified_stability(TABLE, n_draws=0)),
    ("M3b far", "subsamples", lambda: certified_stability(TABLE, subsamples=np.full((5, 3), P))),
    # Names that nobody knows.
    ("C11", "inner", lambda: bootstrap_stability(FULL, KEPT, inner="fidelity")),
    ("C13", "inner", lambda: measurement_invariance(FULL, KEPT, np.arange(P) % 3, inner="fidelity")),
    ("C16", "inner", lambda: reliability_suite(FULL, KEPT, TABLE, MEMBERS, inner="fidelity")),
    ("C30", "inner", lambda: seed_variance(FULL, KEPT, inner="fidelity")),
    ("M98", "inner", lambda: ablation_invariance(FULL, RUNS, inner="fidelity")),
    ("E1b", "inner", lambda: method_invariance(FULL, RUNS, inner="fidelity")),
    ("C13", "dependent", lambda: measurement_invariance(FULL, KEPT, np.arange(P) % 3, dependent="x")),
    ("C12", "use", lambda: convergent_validity(SCORES, use="x")),
    ("C12 low is good", "llc_direction", lambda: convergent_validity(SCORES, llc_direction="x")),
    ("F59", "signed", lambda: inter_rater(SCORES, signed=("c",))),
    # Arrays that do not belong together.
    ("C11", "y_full", lambda: bootstrap_stability(SHORT, KEPT)),
    ("C11", "y_circuit", lambda: bootstrap_stability(FULL, SHORT)),
    ("C11", "unit_id", lambda: bootstrap_stability(FULL, KEPT, unit_id=THREE)),
    ("C12", "a .40, 12., b .39, 12.", lambda: convergent_validity({"a": TABLE, "b": TABLE[1:]})),
    ("C12", "numbers of heads", lambda: convergent_validity({"a": TABLE, "b": NARROW})),
    ("C12", "members", lambda: convergent_validity(SCORES, members=FEWER)),
    ("C13", "groups", lambda: measurement_invariance(FULL, KEPT, THREE)),
    ("C13", "lengths", lambda: measurement_invariance(FULL, KEPT, lengths=THREE)),
    ("C14", "scores", lambda: derived_metrics(MEMBERS, TABLE[0, 1:])),
    ("C16", "y_circuit", lambda: reliability_suite(FULL, SHORT, TABLE, MEMBERS)),
    ("C16", "members", lambda: reliability_suite(FULL, KEPT, TABLE, FEWER)),
    ("C16", "sample_id", lambda: reliability_suite(FULL, KEPT, TABLE, MEMBERS, sample_id=THREE)),
    ("C16", "pair_id", lambda: reliability_suite(FULL, KEPT, TABLE, MEMBERS, pair_id=THREE)),
    ("C17", "effects", lambda: discriminant_validity({"a": TABLE, "b": NARROW}, CIRCUITS, own="a")),
    ("C17", "circuits", lambda: discriminant_validity({"a": TABLE}, CIRCUITS)),
    ("C17", "gaps", lambda: discriminant_validity(TWO, CIRCUITS, gaps={"a": FULL})),
    (
        "C17 lengths",
        "gaps",
        lambda: discriminant_validity(TWO, CIRCUITS, gaps={"a": FULL, "b": SHORT}, own="a"),
    ),
    ("C17", "unit_id", lambda: discriminant_validity(TWO, CIRCUITS, unit_id={"c": np.arange(P)})),
    ("C30", "y_other", lambda: seed_variance(FULL, KEPT, y_other=SHORT)),
    ("C36", "y_baseline", lambda: incremental_validity(FULL, KEPT, SHORT)),
    ("C36", "others of random", lambda: incremental_validity(FULL, KEPT, KEPT, others={"random": SHORT})),
    (
        "C36",
        "baseline_members",
        lambda: incremental_validity(FULL, KEPT, KEPT, members=MEMBERS, baseline_members=FEWER),
    ),
    ("F59", "members", lambda: inter_rater(SCORES, members=FEWER)),
    ("F59", "k is -1", lambda: inter_rater(SCORES, k=-1)),
    ("S1", "attributions", lambda: distributional_characterization(TABLE, FEWER)),
    ("S1", "outputs", lambda: distributional_characterization(TABLE, MEMBERS, outputs=np.ones((P, 11, 3)))),
    ("S1", "n_heads", lambda: distributional_characterization(TABLE, MEMBERS, n_heads=5)),
    ("S3", "groups", lambda: distributional_stability(TABLE, groups=THREE)),
    ("M98", "y_circuit of mean", lambda: ablation_invariance(FULL, {"zero": KEPT, "mean": SHORT})),
    ("E1b", "y_circuit of mean", lambda: method_invariance(FULL, {"zero": KEPT, "mean": SHORT})),
    ("M3b", "signs", lambda: certified_stability(TABLE, signs=np.ones(3))),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("named", "call"),
    [(named, call) for _, named, call in WRONG],
    ids=[f"{gate}: {named}" for gate, named, _ in WRONG],
)
def test_the_argument_is_named(named: str, call: Callable[[], Verdict]) -> None:
    with pytest.raises(ValueError, match=named):
        call()
