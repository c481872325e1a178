"""The runs behind the frozen documents: one of each kind of result, with every option written out.

    python tests/frozen/cases.py [NAME ...]     # runs them again and replaces the frozen files

The numbers of a frozen document are those of the version that made it. Replace one only when a change is
meant to move numbers, and name the change in CHANGELOG.md under "Changed results".
"""

import contextlib
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch


FOLDER = Path(__file__).parent
CASES: dict[str, Callable[[], Any]] = {}
SINGLE_PRECISION: set[str] = set()  # names of cases that compute in float32
PAIRED: set[str] = set()  # names of those that hold differences in which logits cancel
TIED = {"benchmark"}  # of those with intervals whose resamples tie


def case(*, single: bool = False, paired: bool = False) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a run under the name of its function; it happens in an empty directory."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        name = function.__name__.replace("_", "-")
        CASES[name] = function
        if single:
            SINGLE_PRECISION.add(name)
        if paired:
            PAIRED.add(name)
        return function

    return register


def run(name: str) -> Any:
    """The document of a case, as parsed JSON."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            return json.loads(json.dumps(CASES[name]()))
    finally:
        torch.set_num_threads(threads)


def arithmetic() -> str:
    """Hash of a small float32 computation; other kinds of machine round its last bits otherwise."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(96, 192, generator=generator) for _ in range(2))
    product = torch.nn.functional.layer_norm(left @ right.T, (96,)).softmax(-1).tanh().exp()
    return hashlib.sha256(product.numpy().tobytes()).hexdigest()[:16]


def command(*arguments: str) -> Any:
    """What a command prints with `--json`."""
    from command_line import invoke

    found = invoke(*arguments, "--json", "--quiet")
    if found.exit_code != 0:
        raise RuntimeError(f"assay {' '.join(arguments)} exited with {found.exit_code}: {found.output}")
    return json.loads(found.stdout)


@cache
def mini() -> Any:
    """The embedded model in float64."""
    import assay

    return assay.load_model("mini", dtype=torch.float64)


def _circuit(name: str, size: int) -> Any:
    import assay

    task = assay.load_task(name, mini(), n=24, seed=1)
    scores = assay.discover(
        mini(), task, "eap-ig-inputs", objective="logit_diff", ablation="resample", steps=5,
        quadrature="midpoint", batch_size=12, seed=0,
    )  # fmt: skip
    return scores.top(size).connected()


# ------------------------------------------------------------------------------------------------ circuits


@case()
def audit() -> Any:
    """Discovery, size, curve, measurements, worst pairs and gates of one task."""
    import assay

    return assay.audit(
        mini(), "ioi", method="eap-ig-inputs", objective="logit_diff", ablation="resample", n=24, steps=5,
        target=0.9, seed=0, n_random=4, batch_size=12,
        metrics=["completeness", "kl", "ce-delta", "minimality"], full=True, skip=(),
    ).to_dict()  # fmt: skip


@case(single=True, paired=True)
def audit_command() -> Any:
    """The same as a command, in float32, under another ablation."""
    return command(
        "audit", "--model", "mini", "--task", "greater-than", "--method", "eap", "--objective",
        "logit_diff", "--ablation", "mean", "--n", "20", "--steps", "5", "--target", "0.8", "--n-random",
        "3", "--seed", "1", "--batch-size", "20", "--full", "--out", "audit", "--store", "store",
    )  # fmt: skip


@case()
def scores() -> Any:
    """Sums over the edges of every discovery method that needs no training, and of the scores per head."""
    import assay

    task = assay.load_task("ioi", mini(), n=6, seed=3)
    found = {}
    for key in (each.key for each in assay.list("methods")):
        if key in ("ugs", "nested", "exact", "acdc"):
            continue
        edges = assay.discover(
            mini(), task, key, objective="logit_diff", ablation="resample", batch_size=6, seed=0
        )
        weights = torch.linspace(1, 2, edges.values.numel(), dtype=torch.float64).reshape(edges.values.shape)
        found[key] = {
            "sum": float(edges.values.double().sum()),
            "weighted": float((edges.values.double() * weights).sum()),
            "largest": float(edges.values.double().abs().max()),
            "top": edges.top(12).edges(),
        }
    for key in (
        "activation-patching",
        "mediation",
        "drop-effect",
        "dla",
        "attribution-patching",
        "activation-magnitude",
        "ov-norm",
    ):
        found[f"heads/{key}"] = assay.discover_heads(mini(), task, key).values.tolist()
    return found


@case()
def measurements() -> Any:
    """Every metric on one circuit, with random circuits beside it, and a curve."""
    import assay
    from assay.core.record import plain

    task = assay.load_task("ioi", mini(), n=24, seed=2)
    circuit = _circuit("ioi", 250)
    found = {
        key: assay.measure(circuit, mini(), task, key, ablation="resample", seed=0).to_dict(per_example=True)
        for key in (each.key for each in assay.list("metrics"))
        if key not in ("minimality", "cpr", "cmd", "cpr-log", "cmd-log")
    }
    scores = assay.discover(
        mini(), task, "eap-ig-inputs", objective="logit_diff", ablation="resample", steps=5,
        quadrature="midpoint", batch_size=12, seed=0,
    )  # fmt: skip
    curve = assay.faithfulness_curve(scores, mini(), task, fractions=[0.02, 0.1, 0.5])
    low, high = curve.band()
    found["curve"] = {"cpr": curve.area.to_dict(), "cmd": curve.distance.to_dict(), "low": low, "high": high}
    found["curve"] |= {key: getattr(curve, key) for key in ("fractions", "n_edges", "kept_edges", "values")}
    found["curve"] = plain(found["curve"])
    return found


@case()
def worst_case_all() -> Any:
    """Every combination of clean and corrupted prompts."""
    import assay

    return assay.worst_case(
        _circuit("ioi", 250), mini(), "ioi", protocol="all", n_clean=20, n_corrupted=18, seed=0,
        divergence="kl", thresholds=[0.1, 0.5],
    ).to_dict()  # fmt: skip


@case()
def worst_case_matched() -> Any:
    """Matched pairs under another divergence."""
    import assay

    task = assay.load_task("gendered-pronoun", mini(), n=40, seed=5)
    return assay.worst_case(
        _circuit("gendered-pronoun", 200), mini(), task, protocol="matched", seed=1, divergence="js",
        thresholds=[0.05],
    ).to_dict()  # fmt: skip


@case(single=True, paired=True)
def attack_command() -> Any:
    """An explanation beside the pairs."""
    command(
        "discover", "--model", "mini", "--task", "ioi", "--method", "eap", "--objective", "logit_diff",
        "--ablation", "resample", "--n", "12", "--steps", "5", "--top", "150", "--seed", "0",
        "--batch-size", "12", "--save", "circuit.safetensors", "--store", "store",
    )  # fmt: skip
    return command(
        "attack", "--circuit", "circuit.safetensors", "--model", "mini", "--task", "ioi", "--protocol",
        "all", "--n-clean", "10", "--n-corrupted", "9", "--divergence", "kl", "--explain",
        "--percentile", "0.5", "--seed", "0", "--store", "store",
    )  # fmt: skip


@case()
def calibration() -> Any:
    """The sixteen gates on an edge circuit, beside a second task."""
    import assay

    circuit = _circuit("ioi", 250)
    return assay.calibrate_all(
        circuit, mini(), assay.load_task("ioi", mini(), n=40, seed=4),
        pool=assay.load_task("ioi", mini(), n=60, seed=6),
        against=[(assay.load_task("greater-than", mini(), n=40, seed=4), _circuit("greater-than", 200))],
        random_sets=4, objective="logit_diff", ablation="resample", batch_size=20, seed=42,
    ).to_dict()  # fmt: skip


@case(single=True, paired=True)
def sweep() -> Any:
    """Everything that a sweep leaves in its store."""
    from assay.store import Store

    Path("plan.toml").write_text(
        """
        name = "frozen"
        n = 12
        seeds = [0]
        models = ["mini"]
        tasks = ["ioi"]
        methods = ["eap", "clean-corrupted"]
        sizes = [50, 100]
        metrics = ["faithfulness-norm", "kl"]
        gates = ["C11"]
        n-random = 1
        objective = "logit_diff"
        ablation = "resample"
        [attack]
        protocol = "all"
        n-clean = 8
        n-corrupted = 7
        [limits]
        workers = 1
        batch-size = 12
        """
    )
    command("sweep", "plan.toml", "--workers", "1", "--store", "store")
    kinds = ("scores", "circuit", "measurement", "worst_case", "calibration")
    found = [
        {"kind": kind, "payload": each.payload} for kind in kinds for each in Store("store").results(kind)
    ]
    return sorted(found, key=lambda each: json.dumps(_without_identity(each), sort_keys=True))


def _without_identity(value: Any) -> Any:
    from frozen.compare import EXEMPT

    if isinstance(value, dict):
        return {key: _without_identity(each) for key, each in value.items() if not EXEMPT.match(key)}
    if isinstance(value, list):
        return [_without_identity(each) for each in value]
    return value


@case(single=True, paired=True)
def benchmark() -> Any:
    """Discovery methods against each other."""
    return command(
        "benchmark", "discovery", "--model", "mini", "--task", "ioi", "--methods",
        "random,eap,eap-ig-inputs", "--n", "8", "--seed", "0", "--batch-size", "8", "--out", "benchmark",
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------- images


@case(single=True)
def ranking() -> Any:
    """The embedded zoo on drawn images of another style."""
    return command(
        "rank", "--images", "shapes:sketch", "--metrics",
        "id-accuracy,ddb-output,ddb-deep,average-confidence,energy,rankme,atc", "--n", "12", "--measure",
        "accuracy", "--steps", "3", "--draws", "100", "--seed", "0", "--store", "store",
    )  # fmt: skip


@case(single=True)
def monitor() -> Any:
    """Readings of images in the domain and outside it."""
    return command(
        "monitor", "--reference", "shapes:flat", "--images", "shapes:flat", "--images", "shapes:stripes",
        "--n", "24", "--window", "12", "--reference-n", "12", "--known-batches", "4", "--rule", "conformal",
        "--alpha", "0.2", "--steps", "3", "--seed", "0", "--out", "monitor",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- subsets


@case()
def subset_path() -> Any:
    """Subsets of two sizes of a planted matrix, judged, with baselines."""
    from test_cli_select import planted

    planted().save("answers.npz")
    return command(
        "select", "answers.npz", "--sizes", "20,40", "--permutations", "19", "--folds", "4",
        "--workers", "1", "--seed", "0", "--store", "store",
    )  # fmt: skip


@case(single=True)
def subset_adam() -> Any:
    """One subset by the published solver and split; its weights are float32."""
    from test_cli_select import planted

    planted().save("answers.npz")
    return command(
        "select", "answers.npz", "--sizes", "20", "--solver", "adam", "--compat", "--permutations", "0",
        "--workers", "1", "--seed", "0", "--store", "store",
    )  # fmt: skip


def main() -> None:
    """Make the documents again."""
    sys.path.insert(0, str(FOLDER.parent))
    (FOLDER / "arithmetic.txt").write_text(arithmetic() + "\n")
    for name in sys.argv[1:] or CASES:
        text = json.dumps(run(name), ensure_ascii=False, separators=(",", ":"))
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name:<20}{len(text):>10,} characters")


if __name__ == "__main__":
    main()
