"""Names that the tab key completes, known without loading what they name.

A test compares them with the registries. Names of other packages are read from their entry points.
"""

from collections.abc import Sequence
from importlib.metadata import entry_points

from cyclopts import Parameter


NAMES: dict[str, tuple[str, ...]] = {
    "ablations": ("resample", "zero", "mean", "mean-positional", "noise", "noise-additive"),
    "distances": ("spearman", "cosine", "l2", "laplacian", "netlsd", "jaccard"),
    "divergences": ("kl", "reverse-kl", "js", "tv", "logit-diff-gap"),
    "methods": (
        "acdc",
        "eap-ig-inputs",
        "eap",
        "eap-ig-activations",
        "clean-corrupted",
        "ifr",
        "exact",
        "random",
        "edge-pruning",
        "relp",
        "ugs",
    ),
    "metrics": (
        "sigma-ablation",
        "output-divergence",
        "kl",
        "kl-faithfulness",
        "output-variants",
        "dprime",
        "ce-delta",
        "ce-ratio",
        "faithfulness",
        "faithfulness-norm",
        "completeness",
        "minimality",
        "corrupt-restore",
        "scrub-recovery",
        "scrub-kl",
        "topk",
        "topk-tau",
        "cpr",
        "cmd",
    ),
    "objectives": ("logit_diff", "logit_diff_max", "prob_diff", "ce", "kl", "js", "pseudo_margin"),
    "tasks": ("docstring", "induction", "ioi", "greater-than", "sva", "gendered-pronoun"),
}
EMBEDDED = ("mini", "colour-digits")


def completing(kind: str) -> Parameter:
    """An option whose values are registered names of a kind; others are refused where they are looked up."""

    def names(context: object) -> Sequence[str]:
        del context
        return (*NAMES[kind], *(point.name for point in entry_points(group=f"assay.{kind}")))

    return Parameter(completer=names)


def one_of(*names: str) -> Parameter:
    """An option that takes one of a few words; others are refused where they are looked up."""
    return Parameter(completer=lambda context: names)
