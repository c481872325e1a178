"""What a correctness matrix is made of, as numbers to look at before selecting."""

from dataclasses import dataclass

from assay.core.record import Record


@dataclass(frozen=True, kw_only=True)
class Quality(Record):
    """What a correctness matrix is made of.

    Attributes:
        n_models: M.
        n_examples: N.
        n_groups: Training runs; None where they are not known.
        n_families: Architecture families; None where they are not known.
        id_accuracy: Lowest and highest in-distribution accuracy.
        accuracy: Lowest and highest out-of-distribution accuracy of a model on all examples.
        n_all_right: Examples that every model gets right.
        n_all_wrong: Examples that every model gets wrong.
        n_constant_models: Models that get every example right, or every one wrong.
        n_duplicates: Models whose row equals that of an earlier one.
        reliability: Share of the variance of probit in-distribution accuracies that is not sampling noise of
            the `n_id` examples behind each, 1 - mean(v_i) / var(probit(y)),
            v_i = y_i (1 - y_i) / (n_id phi(probit(y_i))^2); NaN where `n_id` is not known.
    """

    n_models: int
    n_examples: int
    n_groups: int | None
    n_families: int | None
    id_accuracy: tuple[float, float]
    accuracy: tuple[float, float]
    n_all_right: int
    n_all_wrong: int
    n_constant_models: int
    n_duplicates: int
    reliability: float
