"""Benchmarks of discovery methods as files: what is read, what is written, and the quick setting."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.analyses.benchmark import DiscoveryBenchmark
from assay.analyses.benchmark.page import benchmark_page
from assay.circuits import EdgeScores, load_scores, read_eap_ig, write_eap_ig
from assay.core.errors import FileFormatError, writing
from assay.discovery.edges.method import METHODS
from assay.models import Model
from assay.pipeline.stage import check_writable
from assay.report.save import save_report


QUICK_N = 40  # examples of each sample
QUICK_UPDATES = 200  # gradient steps of learned masks
QUICK_WITHOUT = ("exact", "eap-ig-activations")  # one run per edge; runs per block


def quick_options(
    methods: Sequence[str], options: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The options of a benchmark in about a minute: fewer updates of learned masks, unless asked for."""
    shrunk = {name: dict(own) for name, own in options.items()}
    for name in methods:
        if hasattr(METHODS.get(name.partition("@")[0]), "updates"):
            shrunk.setdefault(name, {}).setdefault("updates", QUICK_UPDATES)
    return shrunk


def read_scores(path: Path, model: Model) -> EdgeScores:
    """Edge scores from a file of ours, an EAP-IG file or a MIB-style submission.

    Args:
        path: `.safetensors` as `EdgeScores.save` writes it; a `.json` or `.pt` file of EAP-IG; a folder with
            one such file, as a submission to MIB has it.
        model: The model they are scores of.

    Raises:
        FileFormatError: If the file is missing or holds no scores.
        GraphMismatchError: If they are of another graph.
        UnknownNameError: For the first edge that the model does not have.
    """
    if not path.exists():
        raise FileFormatError(f"{path} does not exist; give a .safetensors, .json or .pt file, or a folder")
    if path.suffix == ".safetensors":
        return load_scores(path, model.graph)
    if path.is_dir():
        files = [*path.rglob("[!.]*.json"), *path.rglob("[!.]*.pt")]
        if len(files) != 1:
            raise FileFormatError(
                f"{path} has {len(files)} .json and .pt files; give the folder of your task and model"
            )
        path = files[0]
    found = read_eap_ig(path, model.graph).scores
    if found is None:
        raise FileFormatError(f"{path} holds no scores of edges, which the benchmark ranks by")
    return found


def export_submission(folder: Path, benchmark: DiscoveryBenchmark, model: Model) -> Path:
    """Write every method's scores as a submission of its own: `METHOD/TASK_MODEL/importances.json`.

    Args:
        folder: Made if it does not exist.
        benchmark: With its scores, as `benchmark_discovery` returns it.
        model: The model they are scores of.

    Returns:
        The folder.
    """
    # Names as parts of a folder's: letters, digits, dots and hyphens.
    names = (benchmark.task, str(benchmark.model["id"]))
    task, name = (re.sub(r"[^A-Za-z0-9.]+", "-", each).strip("-.") for each in names)
    check_writable(folder, make=True)
    for row, scores in benchmark.scores.items():
        place = folder / row / f"{task}_{name}"
        with writing(f"make the folder {place}"):
            place.mkdir(parents=True, exist_ok=True)
        write_eap_ig(scores, place / "importances.json", d_model=model.d_model)
    return folder


def write_benchmark(folder: Path, benchmark: DiscoveryBenchmark) -> None:
    """Write `benchmark.json` and the page, `report.html`."""
    check_writable(folder, make=True)
    benchmark.save(folder / "benchmark.json")
    save_report(folder / "report.html", benchmark_page(benchmark.to_dict()))
