"""`assay attack`: how far a circuit departs from its model in the worst case, and what that proves."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.parsing import TRUST, command
from assay.app.delivery import File, Reporting, check_outputs, progress_on_stderr, remark
from assay.app.options import INPUTS, RARE, Count, Share, at_least, call, own_group
from assay.app.settings import JudgedCircuit, OnImages, OnTask
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.worst_case import WorstCase
    from assay.circuits import Circuit
    from assay.models import Model
    from assay.pipeline.prompts import Division
    from assay.pipeline.worst import Counts
    from assay.tasks import Task

COLUMNS = ("rank", "divergence", "empty", "clean_index", "corrupted_index", "clean.text", "corrupted.text")
PAIRS, BOUNDS = own_group("Pairs"), own_group("Certificates", 41)


@dataclass(frozen=True, kw_only=True)
class AttackSettings(Reporting, JudgedCircuit, OnImages, OnTask):
    """What is attacked, over which pairs, and what is asked of them.

    Attributes:
        n: Prompts or images in each half, to discover a circuit on; images of the other half are attacked.
            Prompts are counted by --n-clean and --n-corrupted. Default: 200; all rows of a file.
        protocol: Pairs to run. all: every combination of clean and corrupted inputs; matched: inputs and
            their own corruptions; iid: independent pairs; file: the task's own pairs; inputs: single inputs,
            for zero and mean ablations. Default: all, file for a JSONL file and for images, inputs where it
            applies.
        ablation: Value that replaces a removed edge: resample, resample-donor (of another clean input),
            zero, mean or mean-positional. Default: resample.
        n_clean: Clean inputs, or pairs of protocols matched and iid. Default: 300 for all, about a minute
            on mini; else 3000.
        n_corrupted: Corrupted inputs of protocol all. Default: 300.
        divergence: Divergence: kl, reverse-kl, js, tv or logit-diff-gap.
        independent: Treat rows as independent samples not used for discovery, and compute certificates.
        percentile: Percentile to certify, as a fraction, at confidence 0.95. Default: 0.95, 0.99, 0.999.
        search: Also search for worse pairs, with this many evaluations, e.g. 20000.
        explain: Also report the missing edges that would repair the worst pairs.
        resume: Directory for finished blocks. Resumes if it already holds some.
        save: File for the result: NAME.safetensors and NAME.json, or NAME.json alone.
    """

    n: Annotated[Count | None, INPUTS] = None
    protocol: Annotated[str | None, PAIRS] = None
    ablation: Annotated[str, PAIRS] = "resample"
    n_clean: Annotated[Count | None, PAIRS] = None
    n_corrupted: Annotated[Count | None, PAIRS] = None
    divergence: Annotated[str, PAIRS] = "kl"
    independent: Annotated[bool, BOUNDS] = False
    percentile: Annotated[tuple[Share, ...], BOUNDS] = ()
    search: Annotated[int | None, PAIRS, at_least(100)] = None
    explain: Annotated[bool, RARE] = False
    resume: Annotated[Path | None, RARE] = None

    @property
    def of_images(self) -> bool:
        """Whether images are attacked."""
        from assay.tasks import digits_source

        own = self.model == "colour-digits" and self.task == AttackSettings.task
        return self.images is not None or own or digits_source(self.task) is not None

    @property
    def of_grammar(self) -> bool:
        """Whether the prompts come from a registered task, not from a file."""
        from assay.tasks import is_task_file

        return not is_task_file(self.task) and not self.of_images


@command(TRUST, example="assay attack --model mini --task ioi --n-clean 100 --n-corrupted 100")
def attack(settings: AttackSettings) -> None:
    """Find a circuit's worst case over pairs of inputs.

    Percentiles of the divergence from the model come with certificates.
    """
    from assay.pipeline.worst import pairs_of, sizes, with_findings, worst_case_stage

    protocol = _protocol(settings)
    _check(settings, protocol)
    size = call(settings, sizes, protocol)
    model = settings.load_model()
    circuit = settings.edge_circuit(model.graph)
    task, found_on = _inputs(settings, model, circuit, size)
    counted = settings.n_clean or settings.n_corrupted
    if protocol in ("file", "inputs", "all") and not settings.of_grammar and not counted:
        size = (task.n, task.n)
    check_outputs(settings, folders=(settings.resume,))
    store = settings.open_store()
    with progress_on_stderr() as progress:
        if circuit is None:
            ablation = _found_under(settings, task)
            more: dict[str, Any] = {"ablation": ablation, "store": store, "progress": progress}
            circuit = settings.runs(model, found_on, **more).circuit
        how = {name: getattr(settings, name) for name in ("ablation", "seed", "independent")}
        sample = pairs_of(model.bind(task), protocol, size, **how)
        stored = worst_case_stage(
            circuit,
            model,
            sample,
            divergence=settings.divergence,
            directory=settings.resume,
            progress=progress,
        ).run(store)
        result = call(
            settings,
            with_findings,
            *(stored.value, circuit, model, task),
            explained=settings.explain,
            progress=progress,
        )
    _deliver(settings, result, cached=stored.cached)


def _protocol(settings: AttackSettings) -> str:
    """The protocol that is asked for, else the usual one."""
    from assay.analyses.worst_case.sampling import DONOR, INPUTS, PROTOCOLS, edge_ablation
    from assay.core.errors import check_name

    usual = "all" if settings.of_grammar or settings.ablation == DONOR else "file"
    protocol = settings.protocol or (usual if edge_ablation(settings.ablation).paired else INPUTS)
    check_name("protocol", protocol, PROTOCOLS)
    return protocol


def _check(settings: AttackSettings, protocol: str) -> None:
    """Refuse names that are wrong, and options that would be ignored, before a model is loaded."""
    from assay.analyses.worst_case.divergence import get_divergence
    from assay.analyses.worst_case.sampling import check_ablation
    from assay.pipeline.stage import check_options

    task = None if settings.of_images else settings.task
    call(settings, check_options, task=task, ablation=None)
    get_divergence(settings.divergence)
    check_ablation(settings.ablation, protocol)
    if protocol == "inputs" and not settings.of_grammar and (settings.n_clean or settings.search):
        raise InputError(
            f"{settings.task} has no grammar, so all of its rows are run; leave out --n-clean and --search"
        )
    save = settings.save
    if save is not None and save.suffix not in (".safetensors", ".json"):
        raise InputError(f"--save is {save}; give NAME.safetensors, or NAME.json for the document alone")


def _inputs(
    settings: AttackSettings, model: "Model", circuit: "Circuit | None", size: "Counts"
) -> "tuple[Task, Task | Division | str]":
    """What is attacked, and what a circuit is found on: of images the other half."""
    from assay.pipeline.prompts import draw_inputs, read_inputs
    from assay.tasks import load_task

    if not settings.of_images:
        # Of a named task the grammar counts; as many rows as are drawn would be taken for the draw.
        drawn = (1 if size[0] != 1 else 2) if settings.of_grammar else None
        task = load_task(settings.task, model, n=drawn)
        return task, settings.task if settings.of_grammar else task
    if circuit is not None:
        images = read_inputs(settings.task, settings.images, model, n=settings.n, seed=settings.seed)
        return images, images
    source = settings.task if settings.images is None else f"images:{settings.images}"
    draws = draw_inputs(model, source, n=settings.n, seed=settings.seed)
    return draws.measured, draws


def _found_under(settings: AttackSettings, task: "Task") -> str:
    """The ablation under which a circuit is found; images may have no counterparts to resample from."""
    if settings.ablation != "resample-donor":
        return settings.ablation
    return "resample" if getattr(task, "corrupted", None) is not None else "mean-positional"


def _deliver(settings: AttackSettings, result: "WorstCase", *, cached: bool) -> None:
    """The result, with the certificates that are asked for, to files and to stdout."""
    import pandas as pd

    document = result.to_dict()
    if settings.percentile:
        document["certificates"] = result.listed_certificates(settings.percentile)
    if not settings.json:
        for warning in document["warnings"]:
            remark(warning["message"])
    files = settings.files(document, "worst-case.safetensors")
    path = files["document"].path
    if path is not None and path.suffix == ".safetensors":
        files["document"] = File(path, result.save)
    pairs = pd.json_normalize(document["worst"]).filter(COLUMNS)
    files["pairs"] = File(settings.path_of(None, "worst-pairs.csv"), partial(pairs.to_csv, index=False))
    settings.deliver(document, files, identity=result.id, cached=cached)
