"""Benchmarks of discovery methods as files: what is written, what is read, and the quick setting."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.analyses.benchmark import DiscoveryBenchmark
from assay.analyses.benchmark.page import benchmark_page
from assay.circuits import (
    EdgeScores,
    load_scores,
    load_submission,
    read_eap_ig,
    save_submission,
)
from assay.circuits.eap_ig import split_folder_name
from assay.core.errors import FileFormatError, InputError
from assay.discovery.edges.method import METHODS
from assay.models import Model
from assay.pipeline.checks import check_writable
from assay.report.save import save_report


QUICK_N = 40  # examples of each sample
QUICK_UPDATES = 200  # gradient steps of learned masks
QUICK_WITHOUT = ("exact", "eap-ig-activations")  # one run per edge; runs per block


@dataclass(frozen=True, kw_only=True)
class Quick:
    """What a quick benchmark runs.

    Attributes:
        n: Examples of each sample.
        methods: Methods that compete.
        options: Their options.
    """

    n: int
    methods: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]


def quick_settings(
    methods: Sequence[str] | None, options: Mapping[str, Mapping[str, Any]], n: int | None
) -> Quick:
    """A benchmark in about a minute: fewer examples and updates of learned masks, no method by single edges.

    What the caller asked for by name stays as asked for.

    Args:
        methods: Methods asked for; None: all of them, less the slowest.
        options: Options asked for.
        n: Examples asked for.
    """
    variants = [name for name in options if "@" in name]
    usual = [key for key in METHODS if key not in QUICK_WITHOUT]
    chosen = tuple([*usual, *variants] if methods is None else methods)
    shrunk = {name: dict(own) for name, own in options.items()}
    for name in chosen:
        key = name.partition("@")[0]
        if key in METHODS and hasattr(METHODS[key], "updates"):
            shrunk.setdefault(name, {}).setdefault("updates", QUICK_UPDATES)
    return Quick(n=QUICK_N if n is None else n, methods=chosen, options=shrunk)


def read_scores(path: Path, model: Model, task: str | None = None) -> EdgeScores:
    """Edge scores from a file of ours, an EAP-IG file or a MIB-style submission.

    Args:
        path: `.safetensors` as `EdgeScores.save` writes it; a `.json` or `.pt` file of EAP-IG; a `TASK_MODEL`
            folder of a submission, or a submission with one folder for the task.
        model: The model they are scores of.
        task: Name of the task, to choose among the folders of a submission.

    Raises:
        FileFormatError: If the file is missing or holds no scores.
        GraphMismatchError: If they are of another graph.
        UnknownNameError: For the first edge that the model does not have.
    """
    if not path.exists():
        raise FileFormatError(f"{path} does not exist; give a .safetensors, .json or .pt file, or a folder")
    if path.is_dir():
        found = load_submission(_folder_of(path, task), model.graph)[0].scores
    elif path.suffix == ".safetensors":
        return load_scores(path, model.graph)
    else:
        found = read_eap_ig(path, model.graph).scores
    if found is None:
        raise FileFormatError(f"{path} holds circuits without edge scores, which the benchmark ranks by")
    return found


def _folder_of(path: Path, task: str | None) -> Path:
    """The folder of one task within a submission; the folder itself where it is one."""
    folders = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    if not folders:
        return path
    known = [each for each in folders if task and _plain(split_folder_name(each.name)[0]) == _plain(task)]
    if len(known) != 1:
        names = ", ".join(each.name for each in folders[:8])
        raise FileFormatError(f"{path} has {len(known)} folders for task {task!r} among {names}; give one")
    return known[0]


def export_submission(folder: Path, benchmark: DiscoveryBenchmark, model: Model) -> Path:
    """Write every method's scores as a submission of its own: `METHOD/TASK_MODEL/importances.json`.

    Args:
        folder: Made if it does not exist.
        benchmark: With its scores, as `benchmark_discovery` returns it.
        model: The model they are scores of.

    Returns:
        The folder.
    """
    task, name = _plain(benchmark.task), _plain(str(benchmark.model["id"]))
    check_writable(folder, make=True)
    for row, scores in benchmark.scores.items():
        save_submission({(task, name): scores}, folder / row, d_model={name: model.d_model})
    return folder


def _plain(name: str) -> str:
    """A name as part of a submission's folder: letters, digits, dots and hyphens."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")


def write_benchmark(folder: Path, benchmark: DiscoveryBenchmark) -> None:
    """Write `benchmark.json` and the page, `report.html`."""
    check_writable(folder, make=True)
    benchmark.save(folder / "benchmark.json")
    save_report(folder / "report.html", benchmark_page(benchmark.to_dict()))


def parse_options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of methods from `METHOD.NAME=VALUE`.

    Values are read as JSON where they can be (numbers, `true`, `false`, `null`), else they are text.

    Raises:
        InputError: If one has another form, or an option is given twice.

    Example:
        >>> parse_options(["ugs.updates=300", "ugs@warm.warm_start=eap-ig-inputs"])
        {'ugs': {'updates': 300}, 'ugs@warm': {'warm_start': 'eap-ig-inputs'}}
    """
    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        method, dot, name = place.partition(".")
        if not (equals and dot and method and name):
            raise InputError(
                f"option {text!r} is not of the form METHOD.NAME=VALUE, e.g. ugs.updates=300; `assay list "
                "methods` names the methods"
            )
        own = options.setdefault(method.strip(), {})
        key = name.strip().replace("-", "_")
        if key in own:
            raise InputError(f"option {method}.{key} is given twice; give it once")
        own[key] = value.strip()
        with contextlib.suppress(ValueError):
            own[key] = json.loads(own[key])
    return options
