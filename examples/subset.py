"""Find the examples on which better models do worse, test the finding, and look at what they have in common.

Trains classifiers of handwritten digits: in training, a mark on the frame of each picture names the digit; on
some of the test pictures it misleads.

python examples/subset.py
"""

import numpy as np

import assay
from assay.analyses.subsets.composition import class_composition
from assay.analyses.subsets.digits import digits_data
from assay.analyses.subsets.prevalence import prevalence_shift


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
    shift = prevalence_shift(
        subset.indices, {"cue": data.meta["cue"]}, labels=data.labels, label_names=data.label_names
    )
    for row in shift.of("cue"):
        print(f"cue {row.value:9s} {row.selected:6.1%} of the subset, {row.pool:6.1%} of all")
    mix = class_composition([subset.indices], data.labels, data.label_names)
    place = int(np.argmax(mix.ratios[0]))
    print(f"digit {mix.names[place]} is {mix.ratios[0, place]:.1f} times as frequent as in all")


if __name__ == "__main__":
    main()
