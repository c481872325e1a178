"""Other models on a saved subset, one by one: accuracies, and where the selection’s lines expect them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy

from assay.analyses.subsets._arrays import Accuracies, Places
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.header import lying
from assay.analyses.subsets.line import probit
from assay.analyses.subsets.placement import has_scores
from assay.analyses.subsets.selection import Subset
from assay.analyses.subsets.splits import PARTS
from assay.core.record import plain
from assay.page.text import listed, out_of
from assay.stats import bounded_mean, clopper_pearson


KIND, SCHEMA = "subset-evaluation", "assay-subset-evaluation/1"
READINGS = ("accuracy", "accuracy_all", "residual", "residual_all")  # of a model, that have a limit
ENDS = ("value", "low", "high")
LEAST = 0.5  # share of a subset that must be among the examples of other models
LEVEL = 0.95
NAMED = 5  # models that a caveat names
FAMILIAR = {
    PARTS[:2]: "selected the subset ({}). Such models do worse on it than new ones would and are not new "
    "evidence.",
    PARTS[2:]: "tested the selection ({}). The lines are fitted through such models, so their residuals are "
    "not new evidence.",
}


def evaluation_document(
    subsets: Sequence[Subset], data: CorrectnessData, *, order: str | None = None
) -> dict[str, Any]:
    """Other models on a subset, and the correlations over them on each of several subsets.

    `models` has, for each model, its `part` in the selection, by name (`train` and `validation` models
    selected the subset, `test` models tested it, others are `new`; None where the file of the subset or
    the table does not name its models), its `id_accuracy`, and readings of a `value` with the ends of its
    interval:

    - `accuracy`: share of the matched examples of the subset that it gets right, in [0, 1], with the exact
      interval of a share (Clopper and Pearson), which holds near 0 and 1 and for few examples, or, for a
      mean of scores, the interval of `stats.bounded_mean`;
      `accuracy_all`: of all examples given.
    - `expected`: accuracy at which the line of the selection's test models puts it, with the prediction
      interval of `FittedLine.predict`; `expected_all`: by their line on all examples, None where the examples
      given are not as many or lack one of the subset. This is necessary for the same examples, and not
      sufficient: the file does not name those outside of the subset. None in subsets of files that hold no
      lines.
    - `residual`, `residual_all`: distance from the line, in probits. 0 is inside its interval where the
      accuracy is inside the prediction interval.

    Args:
        subsets: The first is the one of the readings; each has a row of `sizes` with the entries of
            `Evaluation`.
        data: The other models, on any examples among which are at least half of each subset.
        order: `"data"`: the columns are the examples that the subset was selected from, in their order.

    Returns:
        Finite JSON.

    Raises:
        InputError: As `Subset.evaluate`, below half of the examples of a subset.
    """
    first, facts = subsets[0], subsets[0].facts
    named = data.has_ids and first.has_ids
    with lying(data.source.get("orientation")):
        places = [each.columns_in(data, order=order, named=named, least=LEAST) for each in subsets]
    parts = first.parts_of(data)
    models = {"model": data.model_ids, "part": parts, "id_accuracy": data.id_accuracy}
    models |= _readings(first, data, places[0])
    document: dict[str, Any] = plain(
        {
            "kind": KIND,
            "schema": SCHEMA,
            "level": LEVEL,
            "subset": {
                **{name: getattr(first, name) for name in ("id", "size", "lines")},
                **{name: facts[name] for name in ("n_examples", "n_models", "hash")},
                "verdict": first.known_verdict,
                "test": first.correlation["test"],
            },
            "data": {
                **{name: getattr(data, name) for name in ("n_models", "n_examples", "hash")},
                "understood": data.understood(),
            },
            "n_matched": len(places[0]),
            "caveats": [*_caveats(first, data, len(places[0])), *_familiar(first, data, parts)],
            "models": [dict(zip(models, row, strict=True)) for row in zip(*models.values(), strict=True)],
            "sizes": [
                {"size": each.size, "id": each.id, "n_matched": len(own), **vars(each.evaluate_on(data, own))}
                for each, own in zip(subsets, places, strict=True)
            ],
        }
    )
    return document


def _readings(subset: Subset, data: CorrectnessData, places: Places) -> dict[str, list[Any]]:
    lines, found = subset.lines or {}, {}
    same = data.n_examples == subset.facts["n_examples"] and len(places) == subset.size
    whole = lines.get("all") if same else None
    for suffix, accuracy, examples, line in (
        ("", data.accuracy_on(places), places, lines.get("selected")),
        ("_all", data.accuracy(), np.arange(data.n_examples), whole),
    ):
        found[f"accuracy{suffix}"] = _rows(accuracy, *_ends(data, accuracy, examples))
        found |= dict.fromkeys((f"expected{suffix}", f"residual{suffix}"), [None] * data.n_models)
        if line is not None and not data.unrated:
            band = line.predict(data.id_accuracy, level=LEVEL)
            gap = probit(accuracy, eps=line.eps) - band[0]
            found[f"expected{suffix}"] = _rows(*scipy.special.ndtr(band))
            found[f"residual{suffix}"] = _rows(gap, gap + band[1] - band[0], gap + band[2] - band[0])
    return found


def _ends(data: CorrectnessData, accuracy: Accuracies, examples: Places) -> np.ndarray:
    """Ends `[2, M]` of the interval of each accuracy: exact for shares, by betting for means of scores."""
    x, n = data.correct, len(examples)
    if isinstance(x, np.ndarray) and has_scores(x):
        found = [bounded_mean(row[examples].astype(np.float64), level=LEVEL) for row in x]
    else:
        found = [clopper_pearson(round(each * n), n, level=LEVEL) for each in accuracy]
    return np.transpose([(each.low, each.high) for each in found])


def _rows(*columns: Accuracies) -> list[Any]:
    return [dict(zip(ENDS, row, strict=True)) for row in np.transpose(columns).tolist()]


def _caveats(subset: Subset, data: CorrectnessData, n_matched: int) -> list[str]:
    """What a reader must know before believing the numbers, a sentence each."""
    n, n_pool, verdict = data.n_examples, subset.facts["n_examples"], subset.known_verdict
    status = "not known" if verdict is None else verdict.status
    notes = {
        f"Only {n_matched} of the {subset.size} examples of the subset are among the {n} given. Accuracies "
        "are on these; the line is that of the whole subset.": n_matched < subset.size,
        f"The models answered {n} examples, but the subset was selected from {n_pool}: no accuracy is "
        "expected on all examples.": n != n_pool,
        f"The models answered {n} examples, as many as the subset was selected from, but not the same: no "
        "accuracy is expected on all examples.": n == n_pool and n_matched < subset.size,
        "The file of the subset holds no lines, so no accuracy is expected; select again.": not subset.lines,
        "The models have no accuracies in distribution: no accuracy is expected of them, and R is with their "
        "accuracy on all examples.": data.unrated,
        f"The verdict of the subset is {status}: better models need not do worse on it.": status
        != "supported",
    }
    return [text for text, holds in notes.items() if holds]


def _familiar(subset: Subset, data: CorrectnessData, parts: Sequence[str | None]) -> Iterator[str]:
    """Which of the models the selection has seen: how many, and the names of the first."""
    names = data.model_ids
    if None in parts:
        nameless = {
            "The subset does not name the models that it was selected with. ": subset.model_ids is None,
            "The data given do not name their models. ": data.own_model_ids is None,
        }
        yield (
            "".join(text for text, holds in nameless.items() if holds) + "Should some of those selected with "
            "be among those given, they do worse on the subset than new models would."
        )
    for own, what in FAMILIAR.items():
        seen = [name for name, part in zip(names, parts, strict=True) if part in own]
        more = [f"{len(seen) - NAMED} more"] if len(seen) > NAMED else []
        if seen:
            known = out_of(len(seen), len(names), "model").capitalize()
            yield f"{known} {what.format(listed(seen[:NAMED] + more))}"
