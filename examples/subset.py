"""Find the examples on which better models do worse, test the finding, and look at what they have in common.

Trains classifiers of handwritten digits: in training, a mark on the frame of each picture names the digit; on
some of the test pictures it misleads.

python examples/subset.py
"""

import assay
from assay.analyses.subsets import digits_data, prevalence_shift


def main() -> None:
    data = digits_data(n_models=64)
    print(f"{data.n_models} models, {data.n_examples} pictures")

    subset = assay.oodselect(data, size=60)
    everything, chosen = subset.full["test"], subset.correlation["test"]
    print(f"R on all pictures {everything.r:+.2f}, on {subset.size} selected ones {chosen.r:+.2f}")

    # R on the subset means nothing until the whole selection is repeated under permuted accuracies; the
    # default is 99 permutations and 5 folds.
    verdict = subset.judge(n_permutations=19, folds=3)
    print(f"{verdict.status}: cross-fitted R {verdict.r:+.2f}, p {verdict.p_value:.2g}")
    for reason in (*verdict.reasons, *verdict.notes):
        print(f"- {reason}")

    # What the pictures have in common: the misleading mark, and some of the digits.
    shift = prevalence_shift(subset).set_index("attribute")
    for row in shift.loc["cue"].itertuples():
        print(f"cue {row.value:9s} {row.selected:6.1%} of the subset, {row.pool:6.1%} of all")
    digit = shift.loc["label"].sort_values("ratio").iloc[-1]
    print(f"digit {digit['value']} is {digit['ratio']:.1f} times as frequent as in all")


if __name__ == "__main__":
    main()
