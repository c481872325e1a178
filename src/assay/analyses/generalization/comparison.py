"""Metrics over the rankings of many targets: how each goes with performance, and what picking by it costs."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.analyses.generalization.evaluation import CORRELATIONS
from assay.analyses.generalization.metrics import METRICS
from assay.analyses.generalization.ranking import Ranking
from assay.analyses.generalization.ranking_page import fixed, missing_note
from assay.core.errors import InputError
from assay.core.record import library_version, plain, record_id
from assay.page.blocks import PAGES, Page, PageForm, Section, Table, columns, folded_record
from assay.page.text import code, number


if TYPE_CHECKING:
    import pandas as pd

BLIND = "blind pick"
KIND, SCHEMA = "ranking-comparison", "assay-ranking-comparison/1"


def compare_rankings(rankings: Mapping[str, Sequence[Ranking]]) -> "pd.DataFrame":
    """Put rankings of several targets together.

    Args:
        rankings: Data set -> rankings of its targets.

    Returns:
        A row per metric, and one of a blind pick, that of the least regret first: `regret`, mean expected
        regret of picking by it; `average`, mean magnitude of its correlations in all data sets, and `sem`,
        its standard error over data sets, as published, NaN for one; `targets` with a correlation; and the
        signed `r2`, `srcc` and `krcc` of each data set, averaged over its targets.

    Raises:
        InputError: For no ranking.

    Notes:
        A target without labels, or on which a metric is undefined, is left out of that metric's means:
        metrics with different `targets` do not rest on the same ones.

    References:
        Peng et al. (2026), arXiv:2604.08192, Table 1.
    """
    import pandas as pd

    if not any(rankings.values()):
        raise InputError("rankings are missing; give at least one")
    rows = []
    for name, several in rankings.items():
        for target, ranking in enumerate(several):
            for key, column in ranking.columns.items():
                row = {"metric": key, "dataset": name, "target": target}
                row |= {} if column.correlation is None else vars(column.correlation)
                if column.regret is not None:
                    row |= {"regret": column.regret.expected, BLIND: column.regret.random}
                rows.append(row)
    names = [*CORRELATIONS]
    frame = pd.DataFrame(rows, columns=["metric", "dataset", "target", *names, "regret", BLIND])
    frame = frame.astype(dict.fromkeys([*names, "regret", BLIND], float))
    defined = frame.dropna(subset=names)
    signed = defined.groupby(["metric", "dataset"])[names].mean()
    sizes = defined.assign(**defined[names].abs()).groupby(["metric", "dataset"])[names].mean()
    cells = sizes.melt(ignore_index=False).groupby("metric")["value"]
    table = frame.groupby("metric", sort=False)[["regret"]].mean()
    table["average"] = cells.mean()
    table["sem"] = cells.std(ddof=0) / cells.size() ** 0.5 if len(rankings) > 1 else math.nan
    table["targets"] = defined.groupby("metric").size()
    for name in rankings:
        of_dataset = signed.query("dataset == @name").droplevel("dataset").add_prefix(f"{name} ")
        table = table.join(of_dataset)
    table.loc[BLIND, "regret"] = frame.groupby(["dataset", "target"])[BLIND].first().mean()
    return table.fillna({"targets": 0}).astype({"targets": int}).sort_values("regret", kind="stable")


def comparison_document(rankings: Mapping[str, Sequence[Ranking]]) -> dict[str, Any]:
    """The rankings of several targets and their table, as JSON: what `assay rank` writes."""
    ids = {name: [each.id for each in several] for name, several in rankings.items()}
    provenance = {"library": library_version(), "rankings": ids}
    document = {
        "kind": KIND,
        "schema": SCHEMA,
        "id": record_id(KIND, provenance),
        "metrics": compare_rankings(rankings).reset_index().to_dict("records"),
        "rankings": [each for several in rankings.values() for each in several],
        "provenance": provenance,
    }
    written: dict[str, Any] = plain(document)
    return written


def comparison_page(document: Mapping[str, Any]) -> Page:
    """What is shown of several rankings side by side; their own pages follow.

    Args:
        document: What `comparison_document` gave.
    """
    metrics, rankings = document["metrics"], document["rankings"]
    names = [METRICS[key].name if (key := each["metric"]) in METRICS else key for each in metrics]
    regrets = {
        name: fixed(each["regret"], 3)
        for name, each in zip(names, metrics, strict=True)
        if each["regret"] is not None
    }
    verdict = "No target has labels, so metrics cannot be compared."
    if best := next((name for name in regrets if name != BLIND), None):
        verdict = f"Picking by {best} loses least: its expected regret is {regrets[best]}, "
        verdict += f"that of a {BLIND} {regrets[BLIND]}."
    heads = [head for head in metrics[0] if head not in ("metric", "targets")]
    table = Table(
        columns=columns("metric") + columns(*heads, "targets", numeric=True),
        rows=[
            [name, *(fixed(each[head], 3) for head in heads), number(each["targets"])]
            for name, each in zip(names, metrics, strict=True)
        ],
        caption="Expected regret, mean size of the correlations with its standard error over data sets, and "
        "signed correlations over models of each data set, averaged over its targets; that of sharpness "
        "should be negative. The error describes spread, not confidence: cells share models and images.",
        style="rank-worth",
    )
    return Page(
        kind="comparison of rankings",
        title=f"Metrics over {len(rankings)} targets",
        verdict=verdict,
        caveats=[f"{each['target']['domain']}: {note}" for each in rankings for note in missing_note(each)],
        sections=[Section(title="What picking by each metric costs", blocks=[table])],
        facts=[("result", code(document["id"]))],
        records=[folded_record("Provenance", document["provenance"])],
        style="rank",
    )


FORM = PageForm(noun="comparison of rankings", schema=SCHEMA, again="`assay rank`", make=comparison_page)
PAGES.add(KIND, FORM)
