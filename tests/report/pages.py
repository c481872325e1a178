"""One page of every kind that a report has, from made-up documents; drawn once per process."""

import copy
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import synthetic_subset
import test_evaluation_page
import test_monitor_page
import test_rank_page
from synthetic import synthetic_document, synthetic_worst_case
from synthetic_calibration import MIXED, UNSOUND, synthetic_calibration
from synthetic_store import Filled, fill, measurement

from assay.pipeline.compare import compare_page
from assay.report import sweep_page
from assay.store import Store


KINDS = (
    "audit",
    "worst case",
    "calibration",
    "ranking",
    "subset",
    "monitor",
    "evaluation",
    "measurements",
    "sweep",
    "comparison",
)
# Of some kinds, documents that say something else.
VARIANTS = (
    "calibration unsound",
    "calibration bare",
    "worst case of independent pairs",
    "worst case with search",
    "subset inconclusive",
    "monitor with domains",
)


@functools.cache
def _filled(names: str | None) -> tuple[Store, Filled]:
    # Kept for the process: the directory goes when the interpreter does.
    folder = tempfile.TemporaryDirectory(prefix="pages-")
    _KEPT.append(folder)
    store = Store(Path(folder.name) / "store")
    if names is None:
        return store, fill(store)
    return store, fill(store, model=f"m{names}", task=f"t{names}", metric=f"k{names}")


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def documents(names: str | None = None) -> dict[str, Callable[[], Any]]:
    """Makers of a document per kind of page; with `names` that text stands for every name they hold."""
    store, ids = _filled(names)

    def put(document: dict[str, Any]) -> Any:
        return document if names is None else renamed(document, names)

    name = "mini" if names is None else f"m{names}"
    task = "ioi" if names is None else f"t{names}"
    return {
        "audit": lambda: put(synthetic_document()),
        "worst case": lambda: put(synthetic_worst_case()),
        "calibration": lambda: put(synthetic_calibration(world=MIXED)),
        "ranking": lambda: put(copy.deepcopy(test_rank_page.document())),
        "subset": lambda: put(synthetic_subset.document()),
        "monitor": lambda: put(test_monitor_page.monitor_document()),
        "evaluation": lambda: put(test_evaluation_page.document()),
        "measurements": lambda: [measurement(model=name, task=task)],
        "sweep": lambda: sweep_page(store, "methods"),
        "comparison": lambda: compare_page(store, *ids.audits),
        "calibration unsound": lambda: put(synthetic_calibration(world=UNSOUND)),
        "calibration bare": lambda: put(synthetic_calibration(bare=True)),
        "worst case of independent pairs": lambda: put(synthetic_worst_case("iid")),
        "worst case with search": lambda: put(_searched()),
        "subset inconclusive": lambda: put(synthetic_subset.document(bare=True, supported=False)),
        "monitor with domains": lambda: put(
            test_monitor_page.monitor_document() | {"domains": test_monitor_page.domain_shifts()}
        ),
    }


def _searched() -> dict[str, Any]:
    """A worst case with all of its optional parts."""
    document = synthetic_worst_case()
    edge = {"source": "m0", "target": "logits", "score": 0.7, "share": 0.28, "kept": False}
    return document | {
        "search": {"max": 12.9, "n_evaluations": 4896, "pairs": document["worst"][:3]},
        "outside": [{"name": "animals", "n": 20, "mean": 3.5, "max": 11.0}],
        "explanation": {
            "n_pairs": 10,
            "mean": 2.5,
            "missing": {
                "difference": 2.5,
                "completeness_gap": 0.018,
                "top": [edge],
                "by_layer": {"block 1": 0.6},
            },
            "kept": None,
        },
    }


# What people and files name; everything else a page reads is a key, a code or a number.
FREE = {
    "clean",
    "corrupted",
    "text",
    "title",
    "statement",
    "domain",
    "label",
    "finding",
    "supply",
    "created",
    "token",
    "answer",
    "meaning",
    "question",
    "on_pass",
    "on_fail",
    "generalises_over",
    "weakness",
    "source_text",
}
NAMED = {"model", "task", "dataset", "data"}


def renamed(value: Any, text: str, *, inside: str = "") -> Any:
    """A document in which free texts, and names and ids of models, tasks and data sets, are `text`."""
    if isinstance(value, dict):
        return {
            key: text
            if isinstance(item, str) and (key in FREE or (key in ("id", "name") and inside in NAMED))
            else renamed(item, text, inside=key)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [renamed(item, text, inside=inside) for item in value]
    return value
