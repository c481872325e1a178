"""`assay select`: the examples on which better models do worse, and whether that is more than chance."""

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from assay.app.cli.parsing import GATE_FIRED, SUBSETS, app, command
from assay.app.console import note, print_json, print_table, progress_on_stderr, say
from assay.app.delivery import Computing, File, Reporting, Talking, check_outputs, json_file
from assay.app.options import INPUTS, OUTPUT, RARE, RUNNING, Count, at_least, call, count_or, own_group
from assay.app.settings import Placed, Seeded
from assay.core.errors import InputError, check_name


if TYPE_CHECKING:
    from assay.analyses.subsets.data import CorrectnessData
    from assay.pipeline import Progress
    from assay.pipeline.subset_data import GivenData
    from assay.pipeline.subset_description import SubsetDescriber
    from assay.pipeline.subsets import StoredSelection

IDS = (".csv", ".parquet", ".txt")
OF_ADAM = ("trials", "epochs", "patience", "penalty")
OBJECTIVES = {"pearson": "r", "r2": "r2"}
REFINEMENTS: dict[int | str | None, bool] = {None: False, "bisection": True}
NAME = re.compile(r"([^\s,=\"'{}\[\]]+)\s*=\s*")  # of a parameter of an endpoint
WORD = re.compile(r"[^\W\d][^,=\"'{}\[\]]*")  # a value of one that needs no quotes
ENDED = re.compile(r"\s*(?:,\s*|\Z)")
NOT_JSON = ("True", "False", "None")  # words of Python that are not meant as texts
SELECTION, VERDICT = own_group("Selection"), own_group("Verdict", 41)
DESCRIPTION = own_group("Description", 42)


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(Placed):
    """Where answers of models on examples come from.

    Attributes:
        groups: Training run of each model: column, CSV, or model. For a supported verdict.
        families: Architecture family of each model: a column, a CSV file, or model.
        columns: Columns of a table by role, if named otherwise: model=run,example=uid.
        id_accuracy: Accuracies in distribution: a column, or a CSV file of model and accuracy.
        orientation: How a table lies, if detection fails: long, wide or transposed.
        cells: What cells of a table hold, if detection fails: correct, prediction or score.
        scores: Worse and better end of scores, e.g. 5,0 for a loss. Default: 0,1.
        missing: Missing cells: refuse, drop, drop-models or drop-examples. Default: refuse.
        id_envs: Environments, tasks, splits or domains in distribution, e.g. 0,1,2.
        ood_env: The same out of distribution, to select from.
        checkpoints: Checkpoints of a folder of CSVs: last of each run, all, or steps (300,600).
        facts: Columns of a table with facts about the examples, separated by commas.
        examples: CSV file of facts about the examples of a table, id first.
        images: Labelled images to select from, for a zoo: a folder or shapes:STYLE.
        id_images: Labelled in-distribution images, unused in training, that rate a zoo's models.
    """

    groups: Annotated[str | None, INPUTS] = None
    families: Annotated[str | None, INPUTS] = None
    columns: Annotated[str | None, RARE] = None
    id_accuracy: Annotated[str | None, INPUTS] = None
    orientation: Annotated[str | None, RARE] = None
    cells: Annotated[str | None, RARE] = None
    scores: Annotated[str | None, RARE] = None
    missing: Annotated[str | None, RARE] = None
    id_envs: Annotated[str | None, RARE] = None
    ood_env: Annotated[str | None, RARE] = None
    checkpoints: Annotated[str, RARE] = "last"
    facts: Annotated[str | None, INPUTS] = None
    examples: Annotated[Path | None, INPUTS] = None
    images: Annotated[str | None, INPUTS] = None
    id_images: Annotated[str | None, INPUTS] = None

    def read(self, predictions: Path | None, progress: "Progress", **more: Any) -> "GivenData":
        """The data that a path stands for; `more` are arguments of `read_data` that no option names."""
        from assay.pipeline.subset_data import read_data

        facts = [each.strip() for each in self.facts.split(",")] if self.facts else ()
        return call(self, read_data, predictions, facts=facts, device=self.place(), progress=progress, **more)


@dataclass(frozen=True, kw_only=True)
class PoolSettings(Seeded, AnswerSettings):
    """Where the answers to select from come from; trained classifiers of digits, if from nowhere.

    Attributes:
        digits_models: Number of digit classifiers to train if no predictions are given.
        cross: Facts to combine into one, e.g. sex,age or label,light; repeat for several.
        embeddings: Embeddings of the examples: .npz, .npy, or a table with a column example_id.
        id_embeddings: Embeddings of in-distribution examples, for the distance baseline.
    """

    digits_models: Annotated[int | None, INPUTS, at_least(32)] = None
    cross: Annotated[tuple[str, ...], RARE] = ()
    embeddings: Annotated[Path | None, INPUTS] = None
    id_embeddings: Annotated[Path | None, RARE] = None

    def read(self, predictions: Path | None, progress: "Progress", **more: Any) -> "GivenData":
        """As that of answers, and what is given of the examples beside."""
        from assay.analyses.subsets.example_files import with_crossed, with_embeddings

        given = super().read(predictions, progress, **more)
        data = with_embeddings(given.data, self.embeddings, self.id_embeddings)
        return replace(given, data=with_crossed(data, self.cross) if self.cross else data)


@dataclass(frozen=True, kw_only=True)
class SelectSettings(PoolSettings, Computing, Reporting):
    """What subsets are selected from, how, and how they are tested.

    Attributes:
        sizes: Subset sizes, separated by commas. Default: 10, 20, 50, 100, 250, ... and all.
        size: One subset size, instead of --sizes.
        refine: Try more sizes above the largest on the inverse line: bisection, or a step.
        solver: Solver: swap, or adam (the published optimiser).
        trials: Restarts of adam. Default: 20.
        epochs: Most epochs of each restart. Default: 3000.
        patience: Epochs without a lower validation R that end a restart. Default: 500.
        penalty: Penalty of adam: softplus (published code, the default) or squared (paper).
        objective: Correlation: pearson (most negative), or r2 (weakest; needs --permutations 0).
        clip: Clip of reported accuracies: eps (1e-6), or half an example.
        allowed: File of the ids that may be selected: one per line, or a table as of --ids.
        must_include: The same for ids that are selected in any case.
        split: Unit kept whole by the split: group (the default), family or random (none).
        compat: Split models randomly as the authors do. If it cuts runs: inconclusive.
        path: Path over the sizes: independent, warm (from the previous size) or nested.
        strata: Keep the proportions of the classes (label), or of a column of facts.
        permutations: Permutations of the test; a supported verdict needs at least 19. 0: no test.
        folds: Folds of the cross-fit of the test.
        workers: Threads of the permutations. Default: one per CPU, or one on an accelerator.
        layout: Matrix layout: auto, dense, packed (32 times smaller) or accelerator.
        encoder: Model that embeds the examples: a directory, hub id or timm:NAME.
        text: Column of facts with the text of each example, for n-grams and --encoder.
        phrases: Phrases to score by --encoder, separated by semicolons.
        endpoint: Address of a language model for captions and phrases (protocol of OpenAI).
        endpoint_model: Name of the model at --endpoint.
        endpoint_key: Environment variable with the API key of --endpoint. Default: no key is sent.
        endpoint_parameters: NAME=VALUE,... (JSON) in each request for a caption or phrases.
        gate: Exit with code 3 if such a subset is supported, or no verdict is possible.
        table: CSV file of R by size and baseline, as Table A.3 of the paper.
        ids: File for the examples of the chosen subset: .csv, .parquet, or .txt of ids.
        subset: JSON file for the chosen subset, for assay.load_subset.
    """

    sizes: Annotated[str | None, SELECTION] = None
    size: Annotated[Count | None, SELECTION] = None
    refine: Annotated[int | Literal["bisection"] | None, RARE, count_or("bisection")] = None
    solver: Annotated[str, SELECTION] = "swap"
    trials: Annotated[Count | None, RARE] = None
    epochs: Annotated[Count | None, RARE] = None
    patience: Annotated[Count | None, RARE] = None
    penalty: Annotated[str | None, RARE] = None
    objective: Annotated[str, RARE] = "pearson"
    clip: Annotated[str, RARE] = "eps"
    allowed: Annotated[Path | None, RARE] = None
    must_include: Annotated[Path | None, RARE] = None
    split: Annotated[str | None, RARE] = None
    compat: Annotated[bool, RARE] = False
    path: Annotated[str, RARE] = "independent"
    strata: Annotated[str | None, SELECTION] = None
    permutations: Annotated[int, VERDICT, at_least(0)] = 99
    folds: Annotated[int, RARE, at_least(3)] = 5
    encoder: Annotated[str | None, DESCRIPTION] = None
    text: Annotated[str | None, DESCRIPTION] = None
    phrases: Annotated[str | None, DESCRIPTION] = None
    endpoint: Annotated[str | None, DESCRIPTION] = None
    endpoint_model: Annotated[str | None, DESCRIPTION] = None
    endpoint_key: Annotated[str | None, RARE] = None
    endpoint_parameters: Annotated[str | None, RARE] = None
    workers: Annotated[Count | None, RUNNING] = None
    layout: Annotated[str, RARE] = "auto"
    gate: Annotated[bool, RUNNING] = False
    table: Annotated[Path | None, OUTPUT] = None
    ids: Annotated[Path | None, OUTPUT] = None
    subset: Annotated[Path | None, OUTPUT] = None

    def solving(self, data: "CorrectnessData") -> dict[str, Any]:
        """Arguments beside data and sizes; only a device given by name gets the matrix."""
        from assay.analyses.subsets.example_files import read_places

        names = ("path", "folds", "solver", "split", "compat", "strata", "clip", "layout", "seed")
        options = {name: getattr(self, name) for name in names}
        options |= {name: value for name in OF_ADAM if (value := getattr(self, name)) is not None}
        for name in ("allowed", "must_include"):
            if (path := getattr(self, name)) is not None:
                options[name] = read_places(path, data, name.replace("_", "-"))
        return options | {
            "n_permutations": self.permutations,
            "device": None if self.device == "auto" else self.device,
            "objective": OBJECTIVES[self.objective],
            "refine": REFINEMENTS.get(self.refine, self.refine),
        }

    def describer(self) -> "SubsetDescriber":
        """What embeds the examples and describes the subset; loads the encoder."""
        from assay.pipeline.subset_description import SubsetDescriber

        if (self.endpoint is None) != (self.endpoint_model is None):
            raise InputError("--endpoint and --endpoint-model belong together; give both")
        given = {"key": self.endpoint_key, "parameters": self.endpoint_parameters}
        for name, value in given.items():
            if self.endpoint is None and value is not None:
                raise InputError(f"--endpoint-{name} has no effect without --endpoint; give both")
        return SubsetDescriber.of(
            encoder=self.encoder,
            phrases=None
            if self.phrases is None
            else list(filter(None, map(str.strip, self.phrases.split(";")))),
            endpoint=None
            if self.endpoint is None
            else {
                "url": self.endpoint,
                "model": self.endpoint_model,
                "key_variable": self.endpoint_key,
                **_parameters(self.endpoint_parameters),
            },
            device=self.place(),
        )


@command(SUBSETS, example="assay select predictions.csv --groups run --sizes 50,100 --report subset.html")
def select(predictions: Path | None = None, /, *, settings: SelectSettings) -> int:
    """Find the examples on which better models do worse.

    Better in distribution, that is; and the finding is tested.

    Args:
        predictions: Archive, table or folder of answers, or a zoo (--images). Default: digits.
        settings: The options.
    """
    from assay.analyses.subsets.verdict import SubsetVerdict
    from assay.pipeline.subsets import select_stored

    sizes, describer = _check(settings), settings.describer()
    with progress_on_stderr() as progress:
        folder = settings.store_folder()
        read = settings.read(predictions, progress, folder=folder, encoder=describer.encoder)
        describer.check(read.data)
        result = select_stored(
            read.data,
            sizes or read.sizes,
            workers=settings.workers,
            store=settings.open_store(),
            progress=progress,
            **settings.solving(read.data),
        )
        described = describer.described(result, read.data)
    _hand_over(settings, result, described)
    failed = described.get("description", {}).get("failed")
    if failed:
        say(f"error: the subset is selected, but not described: {failed}")
    if settings.gate and result.document["verdict"]["status"] == "supported":
        say(f"gate: better models do worse on {result.document['size']} of the examples (supported)")
        return GATE_FIRED
    if settings.gate and (missing := SubsetVerdict.from_dict(result.document["verdict"]).obstacles):
        say(f"gate: failed, since no verdict was possible: {'; '.join(missing)}")
        return GATE_FIRED
    return 1 if failed else 0


def _check(settings: SelectSettings) -> tuple[int, ...] | None:
    """Refuse settings that do not go together; returns the sizes asked for."""
    sizes = _sizes(settings.sizes, settings.size)
    check_name("objective", settings.objective, OBJECTIVES)
    if settings.gate and settings.objective == "r2":
        raise InputError(
            "--gate asks for examples on which better models do worse, but --objective r2 selects the "
            "weakest correlation; remove one of them"
        )
    if settings.gate:
        from assay.analyses.subsets.verdict import LEAST_PERMUTATIONS

        if settings.permutations < LEAST_PERMUTATIONS:
            raise InputError(
                f"--gate needs a verdict, and {settings.permutations} permutations cannot support one; give "
                f"--permutations {LEAST_PERMUTATIONS} or more, or remove --gate"
            )
    if settings.ids is not None and settings.ids.suffix not in IDS:
        raise InputError(
            f"--ids is {settings.ids}; give NAME.csv or NAME.parquet, or NAME.txt for the ids alone"
        )
    if settings.table is not None and settings.table.suffix != ".csv":
        raise InputError(f"--table is {settings.table}; give NAME.csv, the format that is written")
    if settings.encoder is not None and settings.embeddings is not None:
        raise InputError(
            "--encoder and --embeddings both give the embeddings of the examples; give one of them"
        )
    table, ids = settings.path_of(settings.table, "sizes.csv"), settings.path_of(settings.ids, "ids.csv")
    check_outputs(settings, table, ids, settings.path_of(settings.subset, "subset.json"))
    return sizes


def _hand_over(settings: SelectSettings, result: "StoredSelection", described: dict[str, Any]) -> None:
    """The result to files and to stdout."""
    from assay.analyses.subsets.export import export_sizes, export_subset

    document = {**result.document, **described}
    ids = partial(export_subset, document=result.document)
    files = settings.files(document, "selection.json") | {
        "table": File(
            settings.path_of(settings.table, "sizes.csv"), partial(export_sizes, document=result.document)
        ),
        "ids": File(settings.path_of(settings.ids, "ids.csv"), ids),
        "subset": json_file(settings.path_of(settings.subset, "subset.json"), result.headline),
    }
    settings.deliver(document, files, identity=result.id, cached=result.cached)
    if files["report"].path is None and not settings.json:
        note("page     not written; add --report page.html, and the result is read from the store")


def _sizes(sizes: str | None, size: int | None) -> tuple[int, ...] | None:
    """The sizes asked for; None leaves them to the data."""
    if sizes is not None and size is not None:
        raise InputError("--sizes and --size exclude each other; give one of them")
    if size is not None:
        return (size,)
    if sizes is None:
        return None
    try:
        return tuple(int(each.replace("_", "")) for each in sizes.split(","))
    except ValueError:
        raise InputError(
            f"--sizes is {sizes!r}; give numbers separated by commas, e.g. 100,250,500"
        ) from None


def _parameters(text: str | None) -> dict[str, Any]:
    """The argument `parameters` of an endpoint: values are JSON, or plain words, which are texts."""
    if text is None:
        return {}
    parameters: dict[str, Any] = {}
    rest = text.strip()
    while rest:
        if (named := NAME.match(rest)) is None:
            raise InputError(
                f"--endpoint-parameters has {rest.partition('=')[0]!r} where a name was expected; give "
                "NAME=VALUE,... or an empty text"
            )
        name, rest = named[1], rest[named.end() :]
        if name in parameters:
            raise InputError(f"--endpoint-parameters gives {name} twice; give it once")
        parameters[name], rest = _value(name, rest)
    return {"parameters": parameters}


def _value(name: str, text: str) -> tuple[Any, str]:
    """The value at the beginning of a text, and the text after the comma that ends it."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        value, end = None, 0
    if not (ended := ENDED.match(text, end) if end else None) and (word := WORD.match(text)):
        value = word[0].strip()
        ended = None if value in NOT_JSON else ENDED.match(text, word.end())
    if ended is None:
        raise InputError(
            f"the value of {name} in --endpoint-parameters is neither JSON nor a plain word; write e.g. "
            f'{name}=0.5, {name}=true, {name}=null, {name}={{"a": 1}} or, for any text, {name}="..."'
        )
    return value, text[ended.end() :]


# ---- what was understood ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class UnderstoodSettings(PoolSettings, Talking):
    """What is read and shown."""


@command(parent=app["select"], example="assay select data answers.csv --id-accuracy accuracies.csv")
def data(predictions: Path | None = None, /, *, settings: UnderstoodSettings) -> None:
    """Show how answers are understood, without selecting.

    Args:
        predictions: As for `assay select`.
        settings: The options.
    """
    with progress_on_stderr() as progress:
        understood = settings.read(predictions, progress).data.understood()
    if settings.json:
        print_json(understood.to_dict())
    else:
        print_table("", ["what", "understood"], [list(row) for row in understood.rows()])
