"""Plans say what they mean or are refused, with the place and the nearest name that exists."""

from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from assay.circuits import Circuit
from assay.core.errors import AssayError, InputError, UnknownNameError
from assay.models import load_model
from assay.pipeline.limits import Limits, parse_duration, parse_size
from assay.pipeline.order import in_order
from assay.pipeline.plan import Plan
from assay.pipeline.plan_file import parse_plan, read_plan


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
memory = "4 GiB"
threads = 1
batch-size = 16

[[job]]
name = "second"
model = "mini"
task = "ioi"
circuit = "own.safetensors"
metrics = ["kl"]
needs = ["first"]

[[job]]
name = "first"
model = "mini"
task = "ioi"
circuit = "own.safetensors"
metrics = ["kl"]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "my-plan.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a circuit of the embedded model and a file of prompts."""
    found = tmp_path_factory.mktemp("plans")
    Circuit.full(load_model("mini").graph).save(found / "own.safetensors")
    (found / "prompts.jsonl").write_text("")
    return found


def test_a_whole_plan(folder: Path) -> None:
    plan = read_plan(write(folder, WHOLE))
    assert plan.name == "my-plan"
    assert (plan.n, plan.seeds, plan.sizes, plan.target) == (100, (0, 1), (100, 200), None)
    assert plan.tasks == ("ioi", "greater-than"), "the registered keys"
    assert plan.metrics == ("completeness", "kl")
    assert plan.gates == ("bootstrap-stability",)
    assert [each.label for each in plan.methods] == ["eap", "eap-ig-inputs steps=3", "ugs updates=300"]
    assert plan.attack is not None
    assert (plan.attack.n_clean, plan.attack.n_corrupted) == (300, 200)
    assert plan.limits == Limits(
        workers=2, retries=1, timeout=600.0, memory=4 * 2**30, threads=1, batch_size=16
    )
    assert [job.name for job in plan.jobs] == ["first", "second"], "needs go first"
    assert Path(plan.locate("own.safetensors")) == folder / "own.safetensors"
    assert plan.locate("ioi") == "ioi"


def test_the_least_plan_has_the_usual_target() -> None:
    plan = parse_plan(LEAST)
    assert (plan.target, plan.sizes, plan.metrics, plan.attack) == (0.9, (), (), None)


def test_what_lies_beside_a_plan_does_not_hide_registered_names(tmp_path: Path) -> None:
    (tmp_path / "ioi").mkdir()
    (tmp_path / "mini").mkdir()
    plan = parse_plan(LEAST, folder=tmp_path)
    assert (plan.locate("ioi"), plan.locate("mini")) == ("ioi", "mini")


def test_the_record_leaves_limits_out_but_for_the_batch_size() -> None:
    first, second = (
        parse_plan({**LEAST, "limits": {"workers": workers, "batch-size": 8}}) for workers in (1, 2)
    )
    other = parse_plan({**LEAST, "limits": {"batch-size": 16}})
    assert first.record() == second.record() != other.record()
    assert first.record() == parse_plan({**LEAST, "limits": {"batch-size": 8}}, folder="/elsewhere").record()


def job(name: str, *needs: str, **more: object) -> dict[str, Any]:
    facts = {"model": "mini", "task": "ioi", "circuit": "own.safetensors", "metrics": ["kl"]}
    return {"name": name, **facts, "needs": list(needs), **more}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"attack": {"n-clen": 3}}, UnknownNameError, r"\[attack\] n-clen; did you mean 'n-clean'\?"),
        ({"modles": []}, UnknownNameError, "unknown key modles; did you mean 'models'"),
        ({"limits": {"worker": 4}}, UnknownNameError, r"\[limits\] worker; did you mean 'workers'"),
        ({"job": [job("a", nedes=[])]}, UnknownNameError, r"\[\[job\]\] 1 nedes; did you mean 'needs'"),
        ({"folder": "x"}, UnknownNameError, "unknown key 'folder'"),
        ({"models": ["mimi"]}, UnknownNameError, "models: unknown model 'mimi'; did you mean 'mini'"),
        (
            {"models": ["planted:x"]},
            UnknownNameError,
            "models: unknown model 'planted:x'; known: colour-digits",
        ),
        ({"tasks": ["io"]}, UnknownNameError, "tasks: unknown task 'io'; did you mean 'ioi'"),
        ({"methods": ["eep"]}, UnknownNameError, "methods: unknown method 'eep'; did you mean 'eap'"),
        (
            {"methods": [{"method": "ugs", "update": 3}]},
            UnknownNameError,
            "methods: unknown ugs option 'update'; did you mean 'updates'",
        ),
        (
            {"methods": [{"method": "eap", "quadrature": "mid"}]},
            UnknownNameError,
            "methods: unknown quadrature 'mid'; did you mean 'midpoint'",
        ),
        (
            {"methods": [{"method": "eap", "steps": 5}]},
            InputError,
            "methods: method 'eap' does not use steps, remove it; it has no options",
        ),
        (
            {"methods": [{"method": "acdc", "steps": 3, "quadrature": "left"}]},
            InputError,
            "method 'acdc' does not use steps and quadrature, remove it; its options are .*threshold",
        ),
        (
            {"methods": [{"method": "eap", "place": 3}]},
            UnknownNameError,
            "methods: method 'eap' has no options, but 'place' was given",
        ),
        ({"metrics": ["faithfullness"]}, UnknownNameError, "metrics: unknown metric .* mean 'faithfulness'"),
        ({"gates": ["bootstrap-stabilty"]}, UnknownNameError, "gates: unknown gate .* 'bootstrap-stability'"),
        ({"ablation": "men"}, UnknownNameError, "ablation: unknown ablation 'men'; did you mean 'mean'"),
        ({"objective": "klx"}, UnknownNameError, "objective: unknown objective 'klx'; did you mean 'kl'"),
        ({"attack": {"protocol": "al"}}, UnknownNameError, r"\[attack\] protocol: .* did you mean 'all'"),
        ({"attack": {"protocol": "file"}}, UnknownNameError, r"\[attack\] protocol: unknown protocol 'file'"),
        ({"attack": {"protocol": "iid", "n-clean": 3}}, InputError, "does not use --n-clean"),
        ({"attack": {"n-clean": 3, "n_clean": 4}}, InputError, r"\[attack\] n_clean is given twice"),
        ({"models": []}, InputError, "models: is an empty list"),
        ({"models": None}, InputError, "models: input should be a list, got None"),
        ({"metrics": "kl"}, InputError, "metrics: input should be a list, got 'kl'"),
        ({"n": "3"}, InputError, "n: input should be a valid integer, got '3'"),
        ({"n": True}, InputError, "n: input should be a valid integer, got True"),
        ({"n": 1}, InputError, "n: input should be greater than or equal to 2, got 1"),
        ({"seeds": [0, 0]}, InputError, "seeds: 0 is listed twice"),
        ({"seeds": [-1]}, InputError, "seeds 1: input should be greater than or equal to 0, got -1"),
        ({"methods": ["eap", "eap"]}, InputError, "methods: 'eap' is listed twice"),
        (
            {"metrics": ["D02.completeness", "completeness"]},
            InputError,
            "metrics: 'completeness' is listed twice",
        ),
        ({"methods": [3]}, InputError, "methods 1: input should be a table, got 3"),
        ({"methods": [{"steps": 3}]}, InputError, "methods 1 method: is missing"),
        (
            {"methods": [{"method": "eap", "steps": 0}]},
            InputError,
            "methods 1 steps: expected a count of at least 1, or 'auto'",
        ),
        ({"sizes": [3], "target": 0.4}, InputError, "sizes and target exclude each other"),
        ({"target": 1.5}, InputError, "target: input should be less than or equal to 1, got 1.5"),
        (
            {"limits": {"timeout": "10 minutes"}},
            InputError,
            r"\[limits\] timeout: '10 minutes' is not a duration",
        ),
        ({"limits": {"memory": "4G"}}, InputError, r"\[limits\] memory: '4G' is not a size"),
        ({"limits": 3}, InputError, "limits: input should be a table, got 3"),
        ({"name": "../x"}, InputError, "name: '../x' is not a valid file name"),
        ({"name": "a\x1b[2J"}, InputError, r"name: 'a\\\\x1b\[2J' is not a valid file name"),
        ({"tasks": ["nowhere.jsonl"]}, InputError, "tasks: .*nowhere.jsonl does not exist"),
        (
            {"job": [job("a", circuit="none.safetensors")]},
            InputError,
            r"\[\[job\]\] 1 circuit: .* does not exist",
        ),
        (
            {"job": [job("a", circuit="a" * 300)]},
            InputError,
            r"\[\[job\]\] 1 circuit: .* does not exist",
        ),
        ({"job": [job("a"), job("a")]}, InputError, r"two \[\[job\]\]s are named 'a'"),
        (
            {"job": [job("aa", "ab")]},
            UnknownNameError,
            r"\[\[job\]\] 1 needs: no job 'ab'; did you mean 'aa'",
        ),
        (
            {"job": [job("a", "b"), job("b", "c"), job("c", "a")]},
            InputError,
            "cycle: (a -> b -> c -> a|b -> c ->)",
        ),
        ({"job": [job("a", "a")]}, InputError, "cycle: a -> a;"),
        ({"job": [{"name": "x"}]}, InputError, r"\[\[job\]\] 1 model: is missing"),
        ({"job": {"name": 3}}, InputError, r"\[\[job\]\]: input should be a list"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    folder: Path, change: dict[str, Any], error: type[InputError], message: str
) -> None:
    with pytest.raises(error, match=rf"p\.toml: (unknown key )?.*{message}"):
        parse_plan({**LEAST, **change}, origin="p.toml", folder=folder)


def test_a_plan_needs_a_product_or_jobs(folder: Path) -> None:
    with pytest.raises(InputError, match="models is missing; a sweep needs models, tasks and methods"):
        parse_plan({"name": "empty"})
    with pytest.raises(InputError, match="tasks is missing"):
        parse_plan({"name": "half", "models": ["mini"], "methods": ["eap"], "job": [job("a")]}, folder=folder)
    assert parse_plan({"name": "jobs", "job": [job("a")]}, folder=folder).models == ()


def test_hub_ids_and_folders_pass(folder: Path) -> None:
    assert (
        parse_plan({**LEAST, "models": ["gpt2", "EleutherAI/pythia-70m", "someone/mimi"]}).models[0] == "gpt2"
    )
    (folder / "mani").mkdir(exist_ok=True)
    assert parse_plan({**LEAST, "models": ["mani"]}, folder=folder).locate("mani") == str(folder / "mani")


def test_a_file_that_is_no_toml_is_refused_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"my-plan.toml is not a TOML file of a plan: .*line 2"):
        read_plan(write(tmp_path, "n = 3\nmodels = mini\n"))
    path = write(tmp_path, "")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a TOML file"):
        read_plan(path)
    with pytest.raises(InputError, match="cannot read .*: No such file"):
        read_plan(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("10m", 600), ("2h", 7200), ("1.5 m", 90), (90, 90), (0.5, 0.5)]
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "m", "-5s", "1h30m", "1e3s", 0, -1, True, float("inf"), None, "5 min"]
)
def test_no_durations(text: object) -> None:
    with pytest.raises(InputError, match="is not a duration; write seconds, or '45s'"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("4 GiB", 2**32), ("64MiB", 2**26), ("1 GB", 10**9), (10**9, 10**9)]
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["4G", "4 gib", "", "GiB", 1.5e9, True, None, "-4 GiB"])
def test_no_sizes(text: object) -> None:
    with pytest.raises(InputError, match="is not a size; write bytes, or '512 MiB'"):
        parse_size(text)


def test_less_memory_than_any_worker_needs_is_refused() -> None:
    with pytest.raises(InputError, match="a worker needs at least 64 MiB"):
        parse_size("4 MiB")


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
KEYS = st.sampled_from([*Plan.model_fields, "n-random", "method"]) | st.text(max_size=6)


@hypothesis.settings(max_examples=150)
@hypothesis.given(content=st.dictionaries(KEYS, VALUES, max_size=5), least=st.booleans())
def test_no_content_makes_anything_but_a_plan_or_a_named_error(content: dict[str, Any], least: bool) -> None:
    try:
        plan = parse_plan({**LEAST, **content} if least else content)
    except InputError:
        return
    plan.record()


@hypothesis.settings(max_examples=100)
@hypothesis.given(text=st.text(max_size=60) | st.binary(max_size=60))
def test_no_file_makes_anything_but_a_plan_or_a_named_error(
    tmp_path_factory: pytest.TempPathFactory, text: str | bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with pytest.raises(AssayError):
        read_plan(path)


def test_order_puts_the_needed_first() -> None:
    assert in_order({"c": ["b"], "b": ["a"], "a": []}) == ["a", "b", "c"]
    with pytest.raises(InputError, match="cycle: x -> y -> x|y -> x -> y"):
        in_order({"1": ["2"], "2": ["1"]}, {"1": "x", "2": "y"})
