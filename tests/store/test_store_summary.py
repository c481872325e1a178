"""The columns that results are searched by, for each kind that the package stores."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.store.summary import COLUMNS, summarise


KINDS = [
    "measurement", "scores", "audit", "worst_case", "calibration", "ranking", "ranking-comparison",
    "subset-path", "job", "sweep", "claim", "anything",
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "provenance", "payload", "expected"),
    [
        (
            "measurement",
            {
                "model": {"id": "mini"},
                "task": {"name": "ioi", "n": 20},
                "metric": {"key": "kl"},
                "circuit": "c0ffee",
                "ablation": "resample",
                "seed": 3,
            },
            {"value": 0.5, "interval": {"low": 0.25, "high": 1.0}, "n": 19, "status": "pass"},
            {
                "model": "mini",
                "task": "ioi",
                "metric": "kl",
                "circuit": "c0ffee",
                "ablation": "resample",
                "seed": 3,
                "n": 19,
                "value": 0.5,
                "low": 0.25,
                "high": 1.0,
                "status": "pass",
            },
        ),
        (
            "scores",
            {"model": {"id": "mini"}, "task": {"name": "ioi", "n": 20}, "method": "eap", "seed": 0},
            {"details": {}},
            {"model": "mini", "task": "ioi", "method": "eap", "seed": 0, "n": 20},
        ),
        (
            "audit",
            {"model": {"id": "mini"}, "measured": {"name": "ioi"}, "method": {"key": "acdc"}, "seed": 0},
            {
                "circuit": {"id": "c0ffee"},
                "measurements": [
                    {"name": "kl", "value": 9.0},
                    {
                        "name": "faithfulness-norm",
                        "value": 0.9,
                        "n": 20,
                        "status": "pass",
                        "interval": {"low": 0.8},
                    },
                ],
            },
            {
                "model": "mini",
                "task": "ioi",
                "method": "acdc",
                "metric": "faithfulness-norm",
                "seed": 0,
                "n": 20,
                "value": 0.9,
                "low": 0.8,
                "status": "pass",
                "circuit": "c0ffee",
            },
        ),
        (
            "worst_case",
            {
                "sample": {"n_pairs": 361, "seed": 7, "task": {"name": "ioi"}},
                "divergence": "kl",
                "circuit": "c0",
            },
            {"n_pairs": 361, "summary": {"absolute": {"max": 1.5}}},
            {"task": "ioi", "metric": "kl", "n": 361, "seed": 7, "value": 1.5, "circuit": "c0"},
        ),
        (
            "calibration",
            {
                "table": {"model": {"id": "mini"}, "task": {"name": "ioi", "n": 20}, "seed": 1},
                "gates": ["a", "b"],
            },
            {"summary": {"status": {"fail": 0, "inconclusive": 2, "pass": 1}}},
            {"model": "mini", "task": "ioi", "n": 20, "seed": 1, "status": "inconclusive", "name": "2 gates"},
        ),
        (
            "ranking",
            {
                "models": [1, 2],
                "target": {"name": "shapes", "domain": "sketch", "n": 30},
                "measure": "accuracy",
            },
            {},
            {"task": "shapes:sketch", "metric": "accuracy", "n": 30, "name": "2 models"},
        ),
        ("subset-path", {"sizes": [10, 20]}, {}, {"name": "subsets of 10, 20"}),
        ("job", {"name": "measure mini"}, {"status": "done"}, {"name": "measure mini", "status": "done"}),
        ("anything", {"name": "x"}, {"value": float("inf"), "n": True, "status": 3, "seed": 2**70}, {}),
    ],
)
def test_a_kind_is_summarised(
    kind: str, provenance: dict[str, Any], payload: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = summarise(kind, provenance, payload)
    assert {name: value for name, value in found.items() if value is not None} == expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "model",
                    "task",
                    "method",
                    "metric",
                    "n",
                    "seed",
                    "value",
                    "interval",
                    "low",
                    "high",
                    "status",
                    "summary",
                    "absolute",
                    "max",
                    "gates",
                    "measurements",
                    "target",
                    "models",
                    "sizes",
                    "id",
                    "key",
                    "name",
                    "circuit",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_RECORDS = st.dictionaries(
    st.sampled_from(
        [
            "model",
            "task",
            "measured",
            "sample",
            "table",
            "target",
            "method",
            "metric",
            "n",
            "seed",
            "value",
            "interval",
            "status",
            "summary",
            "gates",
            "measurements",
            "models",
            "sizes",
            "circuit",
            "divergence",
            "measure",
            "name",
        ]
    ),
    _JSON,
    max_size=6,
)


@given(kind=st.sampled_from(KINDS), provenance=_RECORDS, payload=_RECORDS)
def test_whatever_was_stored_has_a_summary_that_a_database_holds(
    kind: str, provenance: dict[str, Any], payload: dict[str, Any]
) -> None:
    found = summarise(kind, provenance, payload)
    assert set(found) == set(COLUMNS) - {"id", "kind", "created"}
    for name, value in found.items():
        if value is None:
            continue
        if name in ("n", "seed"):
            assert type(value) is int
            assert abs(value) <= 2**63
        elif name in ("value", "low", "high"):
            assert type(value) is float
            assert abs(value) < float("inf")
        else:
            assert type(value) is str
            assert "\0" not in value
            assert value.encode().decode() == value
