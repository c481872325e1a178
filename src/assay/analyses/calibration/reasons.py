"""Sentences for the codes of reasons and warnings: why there is no verdict, and what would give one."""

from collections.abc import Mapping

from assay.analyses.calibration.names import sentence


Explanation = tuple[str, str]  # why, and what to do about it

# Why there is no verdict, and what would give one; by code.
REASONS: Mapping[str, Explanation] = {
    "not_applicable": ("It does not apply, because a required input is missing.", ""),
    "not_proven": (
        "It is not established after correction for the number of results.",
        "Drop the lost claims, or collect more data.",
    ),
    "no_upper_bound": (
        "It can fail but never pass: no valid upper bound of a kurtosis is known, up to 1,000 prompts.",
        "",
    ),
    "too_few": (
        "There are too few prompts, or heads, to estimate their spread.",
        "Measure more prompts.",
    ),
    "no_valid_prompt": (
        "None of the prompts gave a finite number in all compared runs.",
        "Check the runs for infinite or missing logits.",
    ),
    "zero_denominator": (
        "It divides by zero here: the model has no margin on these prompts, or the heads outside the "
        "circuit have no effect.",
        "Check that the model solves the task.",
    ),
    "zero_mean": (
        "The score itself is 0, so its relative error is undefined.",
        "Check the score before its error.",
    ),
    "zero_variance": (
        "All values are equal, so there is no variation to compare.",
        "Use prompts, or heads, that differ.",
    ),
    "unbounded": (
        "The model’s margin cannot be distinguished from zero, so its ratio is unbounded.",
        "Measure more prompts, or use a task that the model solves.",
    ),
    "undefined_replicates": (
        "The number is undefined in more than one resample of a hundred, so it has no bounds.",
        "Measure more prompts.",
    ),
    "degenerate": ("All resamples give the same number, so the interval has no width.", ""),
    "bca_undefined": (
        "The corrected interval is undefined here; plain percentiles are shown instead.",
        "",
    ),
    "no_interval": ("The number has no bounds, so it has no verdict with confidence.", ""),
    "undefined": ("These data do not determine it.", ""),
    "no_members": ("The circuit has no heads.", "Give a circuit with at least one head."),
    "no_others": (
        "The circuit holds every head, so there is no head to compare it with.",
        "Give a smaller circuit.",
    ),
    "no_heads": ("No head of the circuit has a finite number.", "Check the table for missing values."),
    "missing_heads": (
        "No head of one of the circuits has a score on every task.",
        "Measure the heads that are missing.",
    ),
    "no_own_effect": (
        "The heads have no helpful effect on their own task, so a comparison with other tasks is undefined.",
        "Check the circuit on its own task first.",
    ),
    "method_missing": (
        "One of the compared ablations gave no usable run, and the others alone are not enough.",
        "Add prompts that allow it; donors need two prompts of the same number of tokens.",
    ),
    "stricter_level": (
        "A pair exceeds the limit at the level of a pass. A fail divides its 5 % between all pairs, and at "
        "that level the pair does not exceed it.",
        "",
    ),
    "one_category": (
        "The set of best heads is empty or holds all heads, so agreement on it is meaningless.",
        "Give a circuit with some, but not all, heads.",
    ),
    "identical_samples": (
        "The samples hold the same prompts, so their agreement is not evidence.",
        "Draw the samples with different seeds, or give a larger pool.",
    ),
    "too_few_samples": (
        "Fewer than two samples gave a score.",
        "Give prompts for at least two samples.",
    ),
    "pool_too_small": (
        "The pool of prompts is not larger than a single sample, so samples cannot differ.",
        "Measure a pool of at least three times as many prompts.",
    ),
    "order_means_nothing": (
        "Neighbouring prompts in the list are unrelated, so comparing odd with even positions is "
        "meaningless.",
        "Name the natural pairs of prompts, if there are any.",
    ),
    "unreliable_scores": (
        "The scores of a method differ so much between halves of the prompts that its order of heads is "
        "mostly noise, and a correlation with it cannot be corrected.",
        "Measure more prompts, or leave that method out.",
    ),
    "composes_less": ("The edges compose less than other pairs of heads, and a pass needs more.", ""),
    "near_zero": (
        "The scores, averaged over the ablations, are not proven to lie more than 0.20 from 0, and scores so "
        "near 0 agree within 0.20 whatever the ablation.",
        "Choose a circuit that keeps more of the behaviour, or measure more prompts.",
    ),
    "same_set": (
        "The baseline selects the same heads as the circuit, so there is no difference to judge.",
        "Compare with another baseline.",
    ),
    "too_few_heads": (
        "So few heads on a side do not show their spread: a fail needs 5, a pass 15.",
        "Give a circuit of 15 heads or more that leaves out 15 or more.",
    ),
    "normal_only": (
        "Its bounds hold only for normal values, so there is no verdict with confidence.",
        "See the split half over random halves beside it.",
    ),
    "units_cross_groups": (
        "The same unit (one image, one sentence) appears in several groups, so groups are not independent.",
        "Compare groups without common units.",
    ),
    "no_difference_found": (
        "No head was found to differ between groups, which does not prove that none does.",
        "",
    ),
    "too_few_groups": (
        "Fewer than two groups have enough prompts.",
        "Give prompts of at least two groups, three of each.",
    ),
    "no_target_variance": ("All heads have the same mean, so their order cannot be reproduced.", ""),
    "negative_variance": ("The estimated variance is negative, so the ratio is meaningless.", ""),
    "pole": (
        "The halves are perfectly opposed, where the correction for their length is undefined.",
        "",
    ),
    "drift": ("The values drift, so no single mean fits all of them.", "Shuffle the prompts."),
    "same_prompts": (
        "The circuit was found on these prompts, so its numbers are optimistic and no verdict with "
        "confidence is possible.",
        "Measure on other prompts: another --seed, --measure-on FILE, or a file of 40 or more distinct "
        "prompts, half of which are then held out.",
    ),
    "few_prompts": (
        "There are fewer than ten different prompts on which anything is ablated.",
        "Give ten or more different pairs whose prompts differ.",
    ),
    "below_delta": ("The confidence reached is less than requested.", "Measure more prompts."),
}

# What makes a verdict less trustworthy than it looks; by code.
WARNINGS: Mapping[str, str] = {
    "prompts_dropped": "Prompts without a finite number in every run were left out.",
    "empty_circuit": "A circuit without heads was measured.",
    "trivial_circuit": "The circuit holds every head, so it agrees with the model by construction.",
    "zero_variance": "Some values do not vary at all, so the verdict uses only their sign or size.",
    "score_near_zero": "The score lies within three standard errors of 0: check it before its error.",
    "method_missing": "One of the ablations gave no usable run and was left out.",
    "unstable_denominator": "The model’s margin is near zero for its spread, so ratios to it are unreliable.",
    "constant_method": "A method that gives all heads the same score was left out.",
    "missing_heads": "Heads without a score by every method were left out everywhere.",
    "kappa_undefined": "Agreement on the best heads is undefined, and so is the published rule.",
    "identical_circuits": "Two tasks have the same circuit, so the comparison is between tasks only.",
    "shared_heads": "Circuits share many heads, so an effect on each other’s tasks is to be expected.",
    "ratio_capped": "The effect on other tasks is so near zero that the ratio was capped at 1,000.",
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
    "same_prompts": "The circuit was found on these prompts.",
    "few_prompts": "There are fewer than ten different prompts.",
}


def below(n: int, why: str, *, of: str = "prompts") -> Mapping[str, Explanation]:
    """The reason `too_few` of a gate that has no verdict below `n` prompts."""
    return {"too_few": (f"Below {n} {of}, {why}.", f"Measure at least {n} prompts.")}


def explained(reason: str | None, own: Mapping[str, Explanation]) -> Explanation:
    """Why there is no verdict and what to do about it, in a gate's own words where it has some."""
    if not reason:
        return "", ""
    return own.get(reason) or REASONS.get(reason) or (sentence(reason.replace("_", " ")), "")


def warning(code: str) -> str:
    """A warning in a sentence; an unknown code as it stands."""
    return WARNINGS.get(code) or sentence(code.replace("_", " "))
