"""What an option is made of: the group it is listed in, its range, and the names that the tab key completes.

The names are known without loading what they name; a test compares them with the registries. Names of other
packages are read from their entry points.
"""

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number


DEFAULT_STORE = Path("assay-out")

INPUTS, CIRCUIT, DISCOVERY, STORED, OUTPUT, RUNNING = (
    Parameter(group=Group(name, sort_key=place))
    for name, place in (
        ("Model and inputs", 10),
        ("Circuit", 20),
        ("Discovery", 30),
        ("Results", 70),
        ("Output", 80),
        ("Running", 90),
    )
)


def own_group(name: str, place: int = 40) -> Parameter:
    """A group of a command's own options, after those of the inputs and of discovery."""
    return Parameter(group=Group(name, sort_key=place))


def at_least(low: int, most: int | None = None) -> Parameter:
    """A range."""
    return Parameter(validator=Number(gte=low, lte=most))


def count_or(word: str) -> Parameter:
    """An option that takes a count, or a word."""

    def convert(type_: Any, tokens: Sequence[Token]) -> int | str:
        del type_
        value = tokens[0].value
        if value != word and not (value.isdecimal() and int(value) > 0):
            raise ValueError(f"{value!r} is not valid; give a count of at least 1, or {word}")
        return value if value == word else int(value)

    return Parameter(converter=convert, completer=lambda context: [word], metavar=f"COUNT|{word}")


DType = Literal["auto", "bfloat16", "float16", "float32", "float64"]
Count = Annotated[int, at_least(1)]
STEPS = count_or("auto")
Steps = int | Literal["auto"]

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
    "tasks": (
        "arithmetic",
        "capital-country",
        "docstring",
        "induction",
        "ioi",
        "greater-than",
        "mcqa",
        "sva",
        "gendered-pronoun",
    ),
}
EMBEDDED = ("mini", "colour-digits")
# Of stored results.
KINDS = (
    "audit",
    "benchmark",
    "calibration",
    "circuit",
    "correctness",
    "domain-evaluation",
    "job",
    "measurement",
    "monitor",
    "pairs-part",
    "ranking",
    "ranking-comparison",
    "scores",
    "scores-part",
    "stable-pick",
    "subset-evaluation",
    "subset-part",
    "subset-path",
    "sweep",
    "worst_case",
    "zoo",
)


def completing(kind: str) -> Parameter:
    """An option whose values are registered names of a kind; others are refused where they are looked up."""

    def names(context: object) -> Sequence[str]:
        del context
        return (*NAMES[kind], *(point.name for point in entry_points(group=f"assay.{kind}")))

    return Parameter(completer=names)


def one_of(*names: str) -> Parameter:
    """An option that takes one of a few words; others are refused where they are looked up."""
    return Parameter(completer=lambda context: names)
