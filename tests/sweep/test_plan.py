"""Plans say what they mean or are refused, with the place and the nearest name that exists."""

import tomllib
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.pipeline.plan import Limits, parse_plan, read_plan, seconds_of


LEAST: dict[str, Any] = {"name": "small", "models": ["mini"], "tasks": ["ioi"], "methods": ["eap"]}

WHOLE = """
n = 100
seeds = [0, 1]
models = ["mini"]
tasks = ["ioi", "greater_than"]
methods = ["eap", {method = "eap-ig-inputs", steps = 3}, {method = "ugs", updates = 300}]
sizes = [100, 200]
objective = "kl"
ablation = "mean"
metrics = ["D02.completeness", "kl"]
gates = ["C11"]

[attack]
n-clean = 300
n_corrupted = 200

[limits]
workers = 2
retries = 1
timeout = "10m"
threads = 1
batch-size = 16
"""


def test_a_whole_plan(tmp_path: Path) -> None:
    (tmp_path / "my-plan.toml").write_text(WHOLE)
    plan = read_plan(tmp_path / "my-plan.toml")
    assert plan.name == "my-plan"
    assert (plan.n, plan.seeds, plan.sizes) == (100, (0, 1), (100, 200))
    assert (plan.target, plan.target_kl) == (None, None)
    assert plan.tasks == ("ioi", "greater-than"), "the registered keys"
    assert plan.metrics == ("completeness", "kl")
    assert plan.gates == ("bootstrap-stability",)
    assert [each.label for each in plan.methods] == ["eap", "eap-ig-inputs steps=3", "ugs updates=300"]
    assert (plan.attack.n_clean, plan.attack.n_corrupted) == (300, 200)
    assert plan.limits == Limits(workers=2, retries=1, timeout=600.0, threads=1, batch_size=16)
    (tmp_path / "own").mkdir()
    assert Path(plan.locate("own")) == tmp_path / "own"
    assert plan.locate("gpt2") == "gpt2"


def test_the_record_leaves_limits_out_but_for_the_batch_size() -> None:
    first, second = (parse_plan({**LEAST, "limits": {"workers": n, "batch-size": 8}}) for n in (1, 2))
    other = parse_plan({**LEAST, "limits": {"batch-size": 16}})
    assert first.record() == second.record() != other.record()
    assert first.record() == parse_plan({**LEAST, "limits": {"batch-size": 8}}, folder="/elsewhere").record()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attack": {"n-clen": 3}}, r"unknown field 'n_clen'; did you mean 'n_clean'.*\$\.attack"),
        ({"tasks": ["io"]}, "unknown task 'io'; did you mean 'ioi'"),
        ({"methods": [{"method": "ugs", "update": 3}]}, "unknown ugs option 'update'; .* 'updates'"),
        ({"methods": [{"method": "eap", "steps": 0}]}, "steps is 0; expected a count of at least 1"),
        ({"models": []}, "models is missing; a sweep needs models, tasks and methods"),
        ({"metrics": "kl"}, "metrics is 'kl'; expected a list"),
        ({"n": "3"}, r"'3' is not an int @ \$\.n"),
        ({"n": 1}, "n is 1; expected at least 2"),
        ({"methods": [{"steps": 3}]}, r"required field missing @ \$\.methods\[0\]\.method"),
        ({"sizes": [3], "target": 0.4}, "sizes exclude target and target-kl"),
        ({"sizes": [3], "target-kl": 0.9}, "sizes exclude target and target-kl"),
        ({"target": 1.5}, "target is 1.5; expected a normalised faithfulness in"),
        ({"limits": {"timeout": "10 minutes"}}, "'10 minutes' is not a duration"),
        ({"name": "../x"}, "name: '../x' is not a valid file name"),
        ({"name": "a\x1b[2J"}, r"name: 'a\\\\x1b\[2J' is not a valid file name"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"p\.toml: .*{message}"):
        parse_plan({**LEAST, **change}, origin="p.toml")


def test_durations() -> None:
    texts = {"0": 0, "45": 45, "1.5m": 90, " 2 h ": 7200, "1d": 86400, 30: 30}
    assert {text: seconds_of(text) for text in texts} == texts
    for wrong in ("-1", "10 minutes", "", "h", "1e9", "nan", "9" * 400, -1.0, True):
        with pytest.raises(InputError, match="not a duration"):
            seconds_of(wrong)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["mini", "ioi"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*tomllib.loads(WHOLE), "n-random", "method"]) | st.text(max_size=6)


@hypothesis.settings(max_examples=150)
@hypothesis.given(content=st.dictionaries(KEYS, VALUES, max_size=5), least=st.booleans())
def test_no_content_makes_anything_but_a_plan_or_a_named_error(content: dict[str, Any], least: bool) -> None:
    try:
        plan = parse_plan({**LEAST, **content} if least else content)
    except InputError:
        assert content or not least, "the least plan is one"
        return
    plan.record()
