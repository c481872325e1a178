"""Find the examples on which better models do worse, test the finding, and look at what they have in common.

Classifiers of handwritten digits, trained on the spot: a mark on the frame of each picture names the digit in
training, and misleads on some of the pictures asked about.

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

    # R on the subset says nothing before the whole selection has been tried under permuted accuracies; 99
    # permutations and 5 folds are the default.
    verdict = subset.judge(n_permutations=19, folds=3)
    print(f"{verdict.status}: cross-fitted R {verdict.r:+.2f}, p {verdict.p_value:.2g}")
    for reason in (*verdict.reasons, *verdict.notes):
        print(f"- {reason}")

    # What the pictures have in common: the mark that misleads, in some of the digits.
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
