"""The page of an evaluation over domains: its finding, caveats, tables, and one set of numbers everywhere."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.analyses.generalization.domain_evaluation import (
    DomainEvaluation,
    EvaluatedDomain,
    EvaluationSettings,
    LeftOutDomain,
)
from assay.analyses.generalization.evaluation_page import evaluation_page
from assay.report.save import render


def domain(name: str, performance: float, *, seed: int, group: str = "", n: int = 300) -> EvaluatedDomain:
    rng = np.random.default_rng(seed)
    rows = np.triu(rng.random((6, 6)), 1)
    moved = np.triu(rng.normal(0, 0.1, (6, 6)), 1)
    return EvaluatedDomain(
        domain=name,
        group=group or name,
        n=n,
        n_labelled=900,
        performance=performance,
        batch_performance=performance,
        excess={"spearman": 0.5 - performance / 2},
        drift={"ks": 1 - performance, "mmd": 0.005, "c2st": performance / 2},
        accuracy=performance,
        macro_f1=performance - 0.05,
        shifts={"spearman": 1 - performance + 0.01 * float(rng.normal()), "l2": float(rng.random())},
        baselines={"ac": float(rng.random()), "atc": float(rng.random())},
        depth_bias={"output": performance, "deep": 0.5, "global": float(rng.random())},
        dependency=tuple(map(tuple, rows.tolist())),
        layers=tuple(map(tuple, moved.tolist())),
        absent={"alpha-req": "features have 12 non-zero eigenvalues; alpha-ReQ needs 20"},
    )


def evaluation(groups: int = 6) -> DomainEvaluation:
    rates = np.linspace(0.4, 0.9, 6)
    return DomainEvaluation(
        model={"id": "small-vit", "weight_hash": "0123456789abcdef", "dtype": "float32"},
        graph={"n_layers": 4},
        reference={
            "method": "eap-ig-inputs",
            "steps": 5,
            "task": {"name": "pacs", "domain": "sketch", "n": 300},
        },
        settings=EvaluationSettings(n_subsets=5),
        own=domain("sketch", 0.95, seed=90),
        known=tuple(domain(f"sketch+fog-{i}", 0.9 - 0.08 * i, seed=i) for i in range(1, 6)),
        test=tuple(
            domain(f"new-{i}", float(rate), seed=20 + i, group=f"g{i % groups}")
            for i, rate in enumerate(rates)
        ),
        left_out=(LeftOutDomain(domain="tiny", n=3, reason="3 images, fewer than the 50 needed"),),
        provenance={"model": "small-vit"},
    )


def document() -> dict[str, Any]:
    return evaluation().to_dict()


def test_estimates_that_speak_stand_beside_the_truth() -> None:
    rng = np.random.default_rng(0)

    def measured(name: str, rate: float, seed: int) -> EvaluatedDomain:
        each = domain(name, rate, seed=seed)
        sure = {"ac": rate + float(rng.normal(0, 0.02)), "atc": rate + float(rng.normal(0, 0.02))}
        return replace(each, baselines=sure, n_labelled=1200)

    keys = ("fog-1", "fog-5", "snow-3", "frost-4", "solarize", "cartoon", *(f"d{i}" for i in range(8)))
    known = tuple(measured(f"sketch+{key}", 0.92 - 0.04 * i, i) for i, key in enumerate(keys))
    test = (measured("inside", 0.7, 50), replace(measured("small", 0.7, 51), n=40))
    found = replace(evaluation(), own=measured("sketch", 0.95, 90), known=known, test=test)
    assert found.estimator is not None
    assert found.estimator.n_families == 14  # both severities of fog are one
    inside, small = found.estimates.values()
    assert inside["covered"] is True
    assert inside["performance"] == 0.7
    assert small["covered"] is None
    assert small["reason"] == "the batch holds 40 images, the calibration domains 300"
    text = render({**found.to_dict(), "distance": "spearman"})
    assert "It speaks on 1 of 2 test domains; 1 of 1 intervals hold the truth" in text


def test_few_domains_are_said_to_be_few() -> None:
    few = evaluation(groups=3).to_dict()
    caveats = " ".join(map(str, evaluation_page(few).caveats))
    assert "The test domains are parts of 3 domains" in caveats
    assert "3 domains are too few for an interval" in caveats


def test_what_is_undefined_is_left_out() -> None:
    two = replace(evaluation(), test=evaluation().test[:2], known=(), own=None)
    page = evaluation_page(two.to_dict())
    assert "undefined for fewer than three domains" in str(page.verdict)
    titles = [section.title for section in page.sections]
    assert titles == ["Shift and performance", "Where in the network"]
    assert ">nan<" not in render(two.to_dict()).lower()


@pytest.mark.parametrize("bad", [math.nan])
def test_a_depth_bias_that_is_undefined_has_no_correlation(bad: float) -> None:
    changed = tuple(replace(each, depth_bias={**each.depth_bias, "deep": bad}) for each in evaluation().test)
    assert "ddb-deep" not in replace(evaluation(), test=changed).correlations
