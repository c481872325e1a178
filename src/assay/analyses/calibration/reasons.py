"""Codes of reasons and warnings in words: why there is no verdict, what would give one, what to beware of."""

from collections.abc import Mapping

from assay.analyses.calibration.names import sentence


Explanation = tuple[str, str]  # why, and what to do about it

# Why there is no verdict, and what would give one; by code.
REASONS: Mapping[str, Explanation] = {
    "not_applicable": ("It does not apply: something that it needs was not given.", ""),
    "not_proven": (
        "It is not proven, allowing for how many results were looked at.",
        "Drop the lost claims, or collect more data.",
    ),
    "no_upper_bound": (
        "It can fail and never pass: no upper bound of a kurtosis was found to hold, up to 1,000 prompts.",
        "",
    ),
    "too_few": (
        "There are too few prompts, or heads, to know anything about their spread.",
        "Measure more prompts.",
    ),
    "no_valid_prompt": (
        "No prompt gave a finite number in all of the runs that are compared.",
        "Look for infinite or missing logits in the runs.",
    ),
    "zero_denominator": (
        "It divides by something that is zero here: the model shows no margin on these prompts, or the heads "
        "outside the circuit have no effect at all.",
        "Check that the model solves the task.",
    ),
    "zero_mean": (
        "The score itself is 0, so there is nothing to compare its error with.",
        "Look at the score before its error.",
    ),
    "zero_variance": (
        "All values are equal, so nothing varies that could be compared.",
        "Use prompts, or heads, that differ.",
    ),
    "unbounded": (
        "The model’s margin cannot be distinguished from zero, so the ratio to it could be anything.",
        "Measure more prompts, or use a task that the model solves.",
    ),
    "undefined_replicates": (
        "In more than one resample of a hundred the number has no value, so there are no bounds.",
        "Measure more prompts.",
    ),
    "degenerate": ("All resamples give the same number, so the interval has no width.", ""),
    "bca_undefined": (
        "The corrected interval is undefined here; plain percentiles are shown instead.",
        "",
    ),
    "no_interval": ("The number came without bounds, so nothing is said with confidence.", ""),
    "undefined": ("These data do not determine it.", ""),
    "no_members": ("The circuit has no heads.", "Give a circuit with at least one head."),
    "no_others": (
        "The circuit holds every head, so there is nothing to compare it with.",
        "Give a smaller circuit.",
    ),
    "no_heads": ("No head of the circuit has a finite number.", "Look for missing values in the table."),
    "missing_heads": (
        "No head of one of the circuits has a score on every task.",
        "Measure the heads that are missing.",
    ),
    "no_own_effect": (
        "The heads have no helpful effect on their own task, so there is nothing to set against other tasks.",
        "Check the circuit on its own task first.",
    ),
    "method_missing": (
        "One of the ablations that are compared gave no usable run, and the others alone cannot answer.",
        "Add prompts that allow it; donors need two prompts of the same number of tokens.",
    ),
    "stricter_level": (
        "A pair lies beyond the limit at the level of a pass. A fail shares its 5 % between all pairs, and "
        "at that level the pair does not.",
        "",
    ),
    "one_category": (
        "The set of best heads is empty or holds all heads, so agreement on it means nothing.",
        "Give a circuit of some, but not all heads.",
    ),
    "identical_samples": (
        "The samples hold the same prompts: that they agree says nothing.",
        "Draw the samples with different seeds, or give a larger pool.",
    ),
    "too_few_samples": (
        "Fewer than two samples gave a score.",
        "Give prompts for at least two samples.",
    ),
    "pool_too_small": (
        "The pool of prompts is no larger than a single sample, so samples cannot differ.",
        "Measure a pool of at least three times as many prompts.",
    ),
    "order_means_nothing": (
        "Neighbours in the list of prompts have nothing in common, so comparing odd with even places says "
        "nothing.",
        "Name the natural pairs of prompts, if there are any.",
    ),
    "unreliable_scores": (
        "The scores of a method differ so much between halves of the prompts that its order of heads is "
        "mostly noise, and a correlation with it cannot be corrected.",
        "Measure more prompts, or leave that method out.",
    ),
    "same_set": (
        "The baseline picks the very heads of the circuit, so there is no difference to judge.",
        "Compare with another baseline.",
    ),
    "too_few_heads": (
        "So few heads on a side do not show how heads like them are spread: it takes 5 to fail, 15 to pass.",
        "Give a circuit of 15 heads or more that leaves out 15 or more.",
    ),
    "normal_only": (
        "Its bounds hold for normal values only, so nothing is said with confidence.",
        "Read the split half over random halves beside it.",
    ),
    "units_cross_groups": (
        "The same unit (one image, one sentence) appears in several groups, so groups are not independent.",
        "Compare groups that share nothing.",
    ),
    "no_difference_found": (
        "No head was found to differ between groups, which does not prove that none does.",
        "",
    ),
    "too_few_groups": (
        "Fewer than two groups have enough prompts.",
        "Give prompts of at least two groups, three of each.",
    ),
    "no_target_variance": ("All heads have the same mean, so no order of theirs can be reproduced.", ""),
    "negative_variance": ("The estimated variance is negative, so the ratio has no meaning.", ""),
    "pole": (
        "The halves are perfectly opposed; the correction for their length has no value there.",
        "",
    ),
    "drift": ("The values drift, so that no single mean fits all of them.", "Shuffle the prompts."),
    "same_prompts": (
        "The circuit was found on these very prompts, so its numbers are optimistic and nothing is known "
        "with confidence.",
        "Measure on other prompts: another --seed, --measure-on FILE, or a file of 40 or more distinct "
        "prompts, of which half are then held out.",
    ),
    "below_delta": ("The confidence reached is less than was asked for.", "Measure more prompts."),
}

# What makes a verdict less trustworthy than it looks; by code.
WARNINGS: Mapping[str, str] = {
    "prompts_dropped": "Prompts without a finite number in every run were left out.",
    "empty_circuit": "A circuit without heads was measured.",
    "trivial_circuit": "The circuit holds every head, so it agrees with the model by construction.",
    "zero_variance": "Some values do not vary at all, so the verdict goes by their sign or size alone.",
    "score_near_zero": "The score lies within three standard errors of 0: look at it before its error.",
    "method_missing": "One of the ablations gave no usable run and is left out.",
    "unstable_denominator": "The model’s margin is near zero for its spread, so ratios to it are shaky.",
    "constant_method": "A method that gives all heads the same score was left out.",
    "missing_heads": "Heads that some method does not score were left out everywhere.",
    "kappa_undefined": "Agreement on the best heads is undefined, and with it the published rule.",
    "identical_circuits": "Two tasks have the same circuit, so the comparison is between tasks only.",
    "shared_heads": "Circuits share many heads, so an effect on each other’s tasks is to be expected.",
    "ratio_capped": "The effect on other tasks is so near zero that the ratio was cut at 1,000.",
    "units_cross_groups": "The same unit (one image, one sentence) appears in several groups.",
    "overlapping_samples": "The samples share prompts, so they agree more than independent ones would.",
    "sample_missing": "A sample without a usable prompt was left out.",
    "head_dropped": "Heads without a finite effect were left out.",
    "unpaired_prompts": "Prompts without a partner were left out.",
    "head_not_finite": "A head without a finite effect counts as unstable.",
    "smallest_is_zero": "No smallest effect is known, so a head is negligible only if its effect is below 0.",
    "circular_bands": "The bands of the roles are ranges of layers, so the published correlation is true by "
    "definition.",
    "proxy": "Only the size of the published circuit is known; the overlap is the ratio of the sizes.",
    "heads_of_edges": "The circuit keeps single edges, the baseline whole heads, which is more.",
    "same_prompts": "The circuit was found on these very prompts.",
    "partial_heads": "Only some heads outside the circuit were measured, to save passes.",
}


def below(n: int, why: str) -> Mapping[str, Explanation]:
    """The reason `too_few` of a gate that says nothing of fewer than `n` prompts."""
    return {"too_few": (f"Below {n} prompts {why}.", f"Measure at least {n} prompts.")}


def explained(reason: str | None, own: Mapping[str, Explanation]) -> Explanation:
    """Why there is no verdict and what to do about it, in a gate's own words where it has some."""
    if not reason:
        return "", ""
    return own.get(reason) or REASONS.get(reason) or (sentence(reason.replace("_", " ")), "")


def warning(code: str) -> str:
    """A warning in a sentence; an unknown code as it stands."""
    return WARNINGS.get(code) or sentence(code.replace("_", " "))
