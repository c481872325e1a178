"""`assay select`: the examples on which better models do worse, and whether that is more than chance."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.border import (
    check_outputs,
    device_of,
    echo,
    echo_files,
    echo_result,
    make_room,
    noting,
    open_store,
    print_json,
    print_table,
    progress_on_stderr,
    say,
    store_folder,
    write_files,
)
from assay.app.cli.parsing import SUBSETS, command
from assay.app.names import one_of
from assay.app.settings import (
    INPUTS,
    OUTPUT,
    RUNNING,
    Count,
    Placed,
    Reporting,
    Seeded,
    Storing,
    Talking,
    at_least,
    own_group,
)
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.pipeline import Progress
    from assay.pipeline.subset_data import GivenData
    from assay.pipeline.subsets import SelectionPlan, StoredSelection

GATE_FIRED = 3
FIRST_IDS, SHOWN_ROWS = 5, 8
IDS_COLUMNS = ("rank", "example_id", "index", "score")
SELECTION, VERDICT = own_group("Selection"), own_group("Verdict", 41)


@dataclass(frozen=True, kw_only=True)
class SelectSettings(Talking, Seeded, Placed, Storing, Reporting):
    """What subsets are selected from, how, and how they are tested.

    Attributes:
        groups: Training run of each model: a column of the table, a CSV file of model and run, or model where
            each model is a run of its own.
        families: Architecture family of each model: a column, or a CSV file of model and family.
        id_envs: Folder of CSVs: environments trained on, e.g. 0,1,2.
        ood_env: Folder of CSVs: environment to select from, or several.
        checkpoints: Folder of CSVs: last (one per run), all, or steps, e.g. 300,600.
        facts: Table: columns with facts about the examples, separated by commas.
        examples: Table: CSV file of facts about the examples, id first.
        images: Zoo: labelled images to select from; a folder or shapes:STYLE.
        id_images: Zoo: labelled in-distribution images, not trained on, to rate models by.
        digits_models: Without an argument: how many classifiers to train.
        sizes: Subset sizes, separated by commas. Default: 10, 20, 50, 100, 250, ... and all.
        size: One subset size, instead of --sizes.
        solver: swap, or adam (as published).
        split: What stays on one side of the split of the models: group (training run), family, or random
            (nothing). Default: group.
        compat: Split the models at random as the authors' code does.
        path: Over the sizes: independent, warm (started from the one before) or nested.
        strata: Keep the share of each class (label), or of each value of a column of facts.
        permutations: Reruns behind a verdict, at least 19; 0: no test.
        folds: Folds of the cross-fit behind a verdict.
        workers: Threads of the reruns. Default: one per CPU.
        layout: Matrix layout: auto, dense, packed (32 times smaller) or accelerator.
        gate: Exit with 3 where such a subset is supported: a failure the average hides.
        ids: File for the examples of the chosen subset: .csv, or .txt of ids.
        save: JSON file for the chosen subset, for assay.load_subset.
        dry_run: Print how often the solver would run; select nothing.
    """

    groups: Annotated[str | None, INPUTS] = None
    families: Annotated[str | None, INPUTS] = None
    id_envs: Annotated[str | None, INPUTS] = None
    ood_env: Annotated[str | None, INPUTS] = None
    checkpoints: Annotated[str, INPUTS] = "last"
    facts: Annotated[str | None, INPUTS] = None
    examples: Annotated[Path | None, INPUTS] = None
    images: Annotated[str | None, INPUTS] = None
    id_images: Annotated[str | None, INPUTS] = None
    digits_models: Annotated[int | None, INPUTS, at_least(32)] = None
    sizes: Annotated[str | None, SELECTION] = None
    size: Annotated[Count | None, SELECTION] = None
    solver: Annotated[str, SELECTION, one_of("swap", "adam")] = "swap"
    split: Annotated[str | None, SELECTION, one_of("group", "family", "random")] = None
    compat: Annotated[bool, SELECTION] = False
    path: Annotated[str, SELECTION, one_of("independent", "warm", "nested")] = "independent"
    strata: Annotated[str | None, SELECTION] = None
    permutations: Annotated[int, VERDICT, at_least(0)] = 99
    folds: Annotated[int, VERDICT, at_least(3)] = 5
    workers: Annotated[Count | None, RUNNING] = None
    layout: Annotated[str, RUNNING, one_of("auto", "dense", "packed", "accelerator")] = "auto"
    gate: Annotated[bool, RUNNING] = False
    ids: Annotated[Path | None, OUTPUT] = None
    save: Annotated[Path | None, OUTPUT] = None
    dry_run: Annotated[bool, RUNNING] = False

    @property
    def solving(self) -> dict[str, Any]:
        """Arguments beside data and sizes; only a device given by name gets the matrix."""
        return {
            "path": self.path,
            "n_permutations": self.permutations,
            "folds": self.folds,
            "solver": self.solver,
            "split": self.split,
            "compat": self.compat,
            "strata": self.strata,
            "layout": self.layout,
            "device": None if self.device == "auto" else self.device,
            "seed": self.seed,
        }


@command(SUBSETS, example="assay select predictions.csv --groups run --sizes 50,100 --report subset.html")
def select(predictions: Path | None = None, /, *, settings: SelectSettings) -> int:
    """Find the examples on which better models do worse.

    Better in distribution, that is; and the finding is tested.

    Args:
        predictions: Correctness archive (.npz, .parquet), table of predictions (.csv, .parquet), folder of
            prediction CSVs by checkpoint, or a zoo with --images. Default: classifiers of digits, trained on
            the spot.
        settings: The options.
    """
    from assay.pipeline.subsets import plan_selection, select_stored

    device, sizes = device_of(settings), _check(settings)
    with progress_on_stderr(quiet=settings.quiet) as progress:
        read = _read(predictions, settings, device, progress)
        solving = settings.solving
        if settings.dry_run:
            _show_plan(plan_selection(read.data, sizes or read.sizes, **solving), as_json=settings.json)
            return 0
        result = select_stored(
            read.data,
            sizes or read.sizes,
            workers=settings.workers,
            store=open_store(settings.store),
            progress=progress,
            note=noting(settings),
            **solving,
        )
    _hand_over(settings, result)
    if settings.gate and result.document["verdict"]["status"] == "supported":
        say(f"gate: on {result.document['size']} of the examples better models do worse (supported)")
        return GATE_FIRED
    return 0


def _check(settings: SelectSettings) -> tuple[int, ...] | None:
    """Refuse settings that do not go together; returns the sizes asked for."""
    sizes = _sizes(settings.sizes, settings.size)
    if settings.ids is not None and settings.ids.suffix not in (".csv", ".txt"):
        raise InputError(f"--ids is {settings.ids}; give NAME.csv, or NAME.txt for the ids alone")
    if not settings.dry_run:
        check_outputs(settings.out, settings.report, settings.ids, settings.save, store=settings.store)
    return sizes


def _read(
    predictions: Path | None, settings: SelectSettings, device: str | None, progress: "Progress"
) -> "GivenData":
    from assay.pipeline.subset_data import read_data

    facts = [each.strip() for each in settings.facts.split(",")] if settings.facts else ()
    return read_data(
        predictions,
        groups=settings.groups,
        families=settings.families,
        id_envs=settings.id_envs,
        ood_env=settings.ood_env,
        checkpoints=settings.checkpoints,
        facts=facts,
        examples=settings.examples,
        images=settings.images,
        id_images=settings.id_images,
        digits_models=settings.digits_models,
        device=device,
        seed=settings.seed,
        folder=None if settings.dry_run else store_folder(settings.store),
        progress=progress,
    )


def _hand_over(settings: SelectSettings, result: "StoredSelection") -> None:
    """The result to files and to stdout."""
    from assay.circuits import write_atomically

    write_files(settings, result.document)
    if settings.ids is not None:
        write_atomically(make_room(settings.ids), _ids(result, settings.ids.suffix).encode())
    if settings.save is not None:
        write_atomically(make_room(settings.save), json.dumps(result.headline, allow_nan=False).encode())
    if settings.json:
        print_json(result.document)
        return
    print_subset(result.document)
    echo_files(document=settings.out, report=settings.report, ids=settings.ids, subset=settings.save)
    echo_result(result.id, cached=result.cached)


def _sizes(sizes: str | None, size: int | None) -> tuple[int, ...] | None:
    """The sizes asked for; None leaves them to the data."""
    if sizes is not None and size is not None:
        raise InputError("--sizes lists subset sizes and --size is one; give one of them")
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


def _ids(result: "StoredSelection", suffix: str) -> str:
    """The chosen examples, most harmful first."""
    record = result.headline
    names = record["example_ids"]
    if suffix == ".txt":
        return "".join(f"{name}\n" for name in names)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(IDS_COLUMNS)
    for rank, row in enumerate(zip(names, record["indices"], record["scores"], strict=True), start=1):
        writer.writerow([rank, *row])
    return text.getvalue()


def _show_plan(plan: "SelectionPlan", *, as_json: bool) -> None:
    if as_json:
        print_json(plan.to_dict())
        return
    echo(
        f"{plan.n_models} models, {plan.n_train} of them to select on; {plan.n_examples:,} examples; "
        f"sizes {', '.join(f'{size:,}' for size in plan.sizes)}"
    )
    rows = [
        ["selection", f"{plan.n_selections:,}"],
        [f"verdict, {plan.n_folds} folds", f"{plan.n_reruns:,} at most"],
        ["overlap of two halves", f"{plan.n_halves:,} at most"],
    ]
    print_table("", ["stage", "runs of the solver"], rows, right="runs of the solver")


# --------------------------------------------------------------------------------------------- for reading


def print_subset(document: Mapping[str, Any]) -> None:
    """A row per size, each with its verdict; then the chosen subset: what it is and what is in it."""
    from assay.analyses.subsets import page_words as subset_page

    echo(_about(document))
    echo()
    columns = ["size", "R validation", "R test, 95 % interval", *_baselines(document), "verdict"]
    print_table("", columns, [_row(document, row) for row in document["rows"]], right="size")
    echo()
    echo(subset_page.verdict(document))
    for reason in (document["verdict"] or {}).get("reasons") or ():
        echo(f"- {reason}")
    echo()
    for text in subset_page.caveats(document):
        echo(text)
    for text in _contents(document):
        echo(text)
    first = ", ".join(document["example_ids"][:FIRST_IDS])
    echo(f"most harmful: {first}{', ...' if document['size'] > FIRST_IDS else ''}")
    echo()


def _about(document: Mapping[str, Any]) -> str:
    data, full = document["data"], document["full"]["test"]
    known = [
        f"{data[name]} {word}"
        for name, word in (("n_groups", "training runs"), ("n_families", "families"))
        if data[name] is not None
    ]
    models = f"{data['n_models']} models" + (f" ({', '.join(known)})" if known else "")
    low, high = data["quality"]["id_accuracy"]
    return (
        f"{models}, {data['n_examples']:,} examples; in-distribution accuracy {low:.3f} to {high:.3f}; "
        f"over all examples R = {_number(full, interval=True)} on the test models"
    )


def _baselines(document: Mapping[str, Any]) -> list[str]:
    return [
        kind
        for kind in ("random", "hard", "marginal", "distance")
        if any(row.get(kind) for row in document["rows"])
    ]


def _row(document: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    shown = [
        f"{row['size']:,}",
        _number(row["validation"]),
        _number(row["test"], interval=True),
        *(_number(row.get(kind), interval=kind == "random") for kind in _baselines(document)),
    ]
    return [*shown, _judged(row["verdict"])]


def _judged(verdict: Mapping[str, Any] | None) -> str:
    """A verdict in the few words of a cell."""
    if verdict is None or (verdict["status"] != "supported" and verdict["p_value"] is None):
        return "inconclusive: not tested" if verdict is None or not verdict["fold_sizes"] else "inconclusive"
    numbers = f"cross-fit R {_number(verdict)}, p {verdict['p_value']:.2g}"
    line = ", inverse line" if verdict["aotil"] else ""
    return f"{verdict['status']}{line} ({numbers})"


def _number(record: Mapping[str, Any] | None, *, interval: bool = False) -> str:
    """R, with its interval where that is wanted and there is one."""
    if record is None or record.get("r") is None:
        return "" if record is None else "undefined"
    shown = _signed(record["r"])
    if not interval or record.get("low") is None or record.get("high") is None:
        return shown
    return f"{shown} [{_signed(record['low'])}, {_signed(record['high'])}]"


def _signed(value: float) -> str:
    from assay.page import text as words

    return f"{value:.2f}".replace("-", words.MINUS)


def _contents(document: Mapping[str, Any]) -> list[str]:
    """Classes and facts that the chosen subset has more or less of than all examples."""
    from assay.page import text as words

    found = document["prevalence"]
    if not found:
        return []
    classes = [row for row in found["rows"] if row["attribute"] == "label"]
    lines = []
    if classes:
        listed = sorted(classes, key=lambda row: -row["selected"])
        shown = [
            f"{row['value']}: {words.percent(row['selected'])} ({words.percent(row['pool'])} of all)"
            for row in listed[:SHOWN_ROWS]
            if row["selected"] > 0
        ]
        more = ", ..." if sum(row["selected"] > 0 for row in listed) > len(shown) else ""
        lines.append(f"classes, share in the subset: {', '.join(shown)}{more}")
    shifted = [row for row in found["rows"] if row["attribute"] != "label" and row["significant"]]
    shifted.sort(key=lambda row: (row["q_value"], -abs(row["difference"] or 0.0)))
    for row in shifted[:SHOWN_ROWS]:
        plainly = (lambda value: words.number(value, 3)) if row["numeric"] else words.percent
        name = row["attribute"] if row["numeric"] else f"{row['attribute']} = {row['value']}"
        lines.append(
            f"{name}: {plainly(row['selected'])} in the subset, {plainly(row['pool'])} of all "
            f"(q {row['q_value']:.2g})"
        )
    if len(shifted) > SHOWN_ROWS:
        lines.append(f"... and {len(shifted) - SHOWN_ROWS} more facts that differ, see the report")
    return lines
