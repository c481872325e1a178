# %% [markdown]
# # The subset where better models do worse
#
# Over a whole test set, models that are better in distribution tend to be better out of distribution. This is
# an average. It can hide examples on which the opposite holds: the better the model, the more often it is
# wrong. [OODSelect](../docs/theory/oodselect.md) looks for such examples. Finding some is easy; knowing
# whether they mean anything is not. This notebook does both.
#
# The data come with scikit-learn: handwritten digits. Each picture gets a frame, and a stroke on the frame.
# In training the stroke stands at the place that belongs to the digit, so a classifier that reads the stroke
# is more accurate. On some test pictures it stands at the place of another digit. So here we know the answer,
# and can check what the method finds.

# %%
# %matplotlib inline
import numpy as np
from matplotlib.figure import Figure

import assay
from assay.analyses.subsets import digits_data, prevalence_shift

answers = digits_data(n_models=96, progress=assay.ProgressDisplay())
answers

# %% [markdown]
# Classifiers of several families were trained just now, each a run of its own. All that the method reads is
# this: which model is right on which test picture, and the accuracy of each model in distribution.
#
# ## On all pictures
#
# `R` is the correlation, over models, of accuracy on the test pictures with accuracy in distribution (both as
# probits). Near 1, the models are *on the line*: better stays better.

# %%
subset = assay.oodselect(answers, size=60)
everything = subset.full["test"]
print(f"R on all pictures: {everything.r:+.2f} [{everything.low:+.2f}, {everything.high:+.2f}]")

# %% [markdown]
# ## On a selected subset
#
# One part of the models chooses the examples, a second decides when to stop, and a third, the *test* models,
# is asked once.

# %%
subset.plot().figure

# %%
chosen = subset.correlation["test"]
print(f"R on {subset.size} selected pictures: {chosen.r:+.2f} [{chosen.low:+.2f}, {chosen.high:+.2f}]")

# %% [markdown]
# This alone **proves nothing**. The subset was chosen for a low R, and models of one family fail on the same
# examples for reasons of their own. A low R on held-out *models* can come from their relatives among the
# others.
#
# ## Is it more than chance?
#
# The verdict repeats the whole selection on other splits that keep families together, and again with permuted
# accuracies. 99 permutations and 5 folds are the default; this run uses the fewest that can reach 0.05, to be
# quick.

# %%
verdict = subset.judge(n_permutations=19, folds=3, progress=assay.ProgressDisplay())
print(f"{verdict.status}: cross-fitted R {verdict.r:+.2f}, p {verdict.p_value:.2f}")
for line in (*verdict.reasons, *verdict.notes):
    print("-", line)

# %% [markdown]
# - `supported` **says**: for models that were not used to select, accuracy on pictures selected in this way
#   falls as accuracy in distribution rises, more than under permuted accuracies.
# - `inconclusive` **says** that this is not shown. It is not "there is no such subset"; that verdict does not
#   exist.
# - **Neither says** why models fail on them.
#
# ## Look at them
#
# What do the pictures have in common? For the stroke we know: compare its share in the subset with its share
# in all pictures.

# %%
shift = prevalence_shift(subset)
for row in shift[shift["attribute"] == "cue"].itertuples():
    print(f"stroke {row.value:9} {row.selected:6.1%} of the subset, {row.pool:6.1%} of all pictures")


# %%
def show(places: np.ndarray, title: str) -> Figure:
    """The first ten pictures of some places: the digit, and the digit that its stroke names."""
    figure = Figure(figsize=(9, 1.4), layout="constrained")
    for axes, place in zip(figure.subplots(1, 10), places, strict=False):
        axes.imshow(answers.images[place], cmap="gray_r", interpolation="nearest")
        axes.set_title(f"{answers.labels[place]}, stroke {answers.meta['mark'].iloc[place]}", fontsize=9)
        axes.set_axis_off()
    figure.suptitle(title, fontsize=10, x=0, ha="left")
    return figure


rest = np.setdiff1d(np.arange(answers.n_examples), subset.indices)
show(subset.indices, "selected")

# %%
show(rest, "not selected")

# %% [markdown]
# Above each picture stand the digit and the digit that its stroke names. Here we know that a misleading
# stroke is the reason, because we drew it. In your own data, what a subset has in common is a hypothesis:
# collect new examples that have it, and test there.
#
# One caution that the numbers above do not show: a subset may simply be a class.

# %%
share = np.bincount(answers.labels[subset.indices], minlength=10) / subset.size
pool = np.bincount(answers.labels, minlength=10) / answers.n_examples
for digit in np.argsort(-share)[:4]:
    print(f"digit {digit}: {share[digit]:5.1%} of the subset, {pool[digit]:5.1%} of all")

within = assay.oodselect(answers, size=60, strata="label")
print(f"\nas many of each digit as in all pictures: R {within.correlation['test'].r:+.2f}")

# %% [markdown]
# ## How large is it?
#
# Several sizes, with the same split. The other lines are rivals: random subsets, the hardest examples, and a
# simple screening of the examples one by one.

# %%
path = assay.selection_path(answers, sizes=[30, 60, 120, 240], progress=assay.ProgressDisplay())
path.plot().figure

# %% [markdown]
# Where R rises towards zero, there are fewer such pictures than the size asks for. That is information, not a
# failure. Subsets of neighbouring sizes overlap; they do so without a real effect too, so the overlap is no
# evidence.
#
# ## Keep it

# %%
subset.save("subset.json")
again = assay.load_subset("subset.json")
assert (again.indices == subset.indices).all()
print("the verdict is in the file:", again.verdict.status)

# %% [markdown]
# Next: [from your own table to a finding](../docs/howto/select.md), [a study on real
# images](../docs/howto/select.md#on-real-images), and the [theory](../docs/theory/oodselect.md) with how
# often the verdict is wrong.
