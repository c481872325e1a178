"""`assay select`: the examples on which better models do worse, and whether that is more than chance."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.app.cli.border import (
    check_outputs,
    command,
    echo,
    make_room,
    open_store,
    print_json,
    print_table,
    progress_on_stderr,
    store_folder,
)
from assay.app.cli.commands import app
from assay.app.cli.options import (
    ConfigOption,
    DeviceOption,
    JsonOption,
    QuietOption,
    SeedOption,
    StoreOption,
    TracebackOption,
    option,
)
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.pipeline.subsets import SelectionPlan, StoredSelection

GATE_FIRED = 3
FIRST_IDS, SHOWN_ROWS = 5, 8
IDS_COLUMNS = ("rank", "example_id", "index", "score")


@app.command()
@command
def select(
    predictions: Annotated[
        Path | None,
        typer.Argument(
            help="Correctness archive (.npz, .parquet), table of predictions (.csv, .parquet), folder of "
            "prediction CSVs by checkpoint, or a zoo with --images.  [default: classifiers of digits, "
            "trained on the spot]"
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        option("--sizes", "Subset sizes, separated by commas.  [default: 10, 20, 50, 100, 250, ... and all]"),
    ] = None,
    size: Annotated[int | None, option("--size", "One subset size, instead of --sizes.", min=1)] = None,
    solver: Annotated[str, option("--solver", "swap, or adam (as published).")] = "swap",
    split: Annotated[
        str | None,
        option(
            "--split",
            "What stays on one side of the split of the models: group (training run), family, or random "
            "(nothing).  [default: group]",
        ),
    ] = None,
    compat: Annotated[
        bool, option("--compat", "Split the models at random as the authors' code does.")
    ] = False,
    path: Annotated[
        str, option("--path", "Over the sizes: independent, warm (started from the one before) or nested.")
    ] = "independent",
    strata: Annotated[
        str | None,
        option("--strata", "Keep the share of each class (label), or of each value of a column of facts."),
    ] = None,
    groups: Annotated[
        str | None,
        option(
            "--groups",
            "Training run of each model: a column of the table, a CSV file of model and run, or model where "
            "each model is a run of its own.",
        ),
    ] = None,
    families: Annotated[
        str | None,
        option(
            "--families", "Architecture family of each model: a column, or a CSV file of model and family."
        ),
    ] = None,
    id_envs: Annotated[
        str | None, option("--id-envs", "Folder of CSVs: environments trained on, e.g. 0,1,2.")
    ] = None,
    ood_env: Annotated[
        str | None, option("--ood-env", "Folder of CSVs: environment to select from, or several.")
    ] = None,
    checkpoints: Annotated[
        str, option("--checkpoints", "Folder of CSVs: last (one per run), all, or steps, e.g. 300,600.")
    ] = "last",
    facts: Annotated[
        str | None,
        option("--facts", "Table: columns with facts about the examples, separated by commas."),
    ] = None,
    examples: Annotated[
        Path | None, option("--examples", "Table: CSV file of facts about the examples, id first.")
    ] = None,
    images: Annotated[
        str | None, option("--images", "Zoo: labelled images to select from; a folder or shapes:STYLE.")
    ] = None,
    id_images: Annotated[
        str | None,
        option("--id-images", "Zoo: labelled in-distribution images, not trained on, to rate models by."),
    ] = None,
    digits_models: Annotated[
        int | None, option("--digits-models", "Without an argument: how many classifiers to train.", min=32)
    ] = None,
    permutations: Annotated[
        int, option("--permutations", "Reruns behind a verdict, at least 19; 0: no test.", min=0)
    ] = 99,
    folds: Annotated[int, option("--folds", "Folds of the cross-fit behind a verdict.", min=3)] = 5,
    workers: Annotated[
        int | None, option("--workers", "Threads of the reruns.  [default: one per CPU]", min=1)
    ] = None,
    layout: Annotated[
        str, option("--layout", "Matrix layout: auto, dense, packed (32 times smaller) or accelerator.")
    ] = "auto",
    device: DeviceOption = None,
    seed: SeedOption = 0,
    gate: Annotated[
        bool, option("--gate", "Exit with 3 where such a subset is supported: a failure the average hides.")
    ] = False,
    ids: Annotated[
        Path | None, option("--ids", "File for the examples of the chosen subset: .csv, or .txt of ids.")
    ] = None,
    save: Annotated[
        Path | None, option("--save", "JSON file for the chosen subset, for assay.load_subset.")
    ] = None,
    store: StoreOption = None,
    out: Annotated[Path | None, option("--out", "JSON document to write.")] = None,
    report: Annotated[Path | None, option("--report", "HTML page to write.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: Annotated[
        bool, option("--dry-run", "Print how often the solver would run; select nothing.")
    ] = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Find the examples on which models that are better in distribution do worse, and test the finding."""
    from assay.circuits import write_atomically
    from assay.pipeline import check_options
    from assay.pipeline.subset_data import read_data
    from assay.pipeline.subsets import plan_selection, select_stored
    from assay.report import save_report

    check_options(device=device)
    asked = _sizes(sizes, size)
    if ids is not None and ids.suffix not in (".csv", ".txt"):
        raise InputError(f"--ids is {ids}; give NAME.csv, or NAME.txt for the ids alone")
    if not dry_run:
        check_outputs(out, report, ids, save, store=store)
    with progress_on_stderr(quiet=quiet) as progress:
        found = read_data(
            predictions,
            groups=groups,
            families=families,
            id_envs=id_envs,
            ood_env=ood_env,
            checkpoints=checkpoints,
            facts=[each.strip() for each in facts.split(",")] if facts else (),
            examples=examples,
            images=images,
            id_images=id_images,
            digits_models=digits_models,
            device=device,
            seed=seed,
            folder=None if dry_run else store_folder(store),
            progress=progress,
        )
        settings: dict[str, Any] = {
            "path": path,
            "n_permutations": permutations,
            "folds": folds,
            "solver": solver,
            "split": split,
            "compat": compat,
            "strata": strata,
            "layout": layout,
            "device": device,
            "seed": seed,
        }
        chosen = asked or found.sizes
        if dry_run:
            _show_plan(plan_selection(found.data, chosen, **settings), as_json=as_json)
            return

        def note(text: str) -> None:
            if not quiet:
                echo(f"note: {text}", err=True)

        result = select_stored(
            found.data,
            chosen,
            workers=workers,
            store=open_store(store),
            progress=progress,
            note=note,
            **settings,
        )
    if out is not None:
        write_atomically(make_room(out), json.dumps(result.document, indent=1, allow_nan=False).encode())
    if report is not None:
        save_report(make_room(report), result.document)
    if ids is not None:
        write_atomically(make_room(ids), _ids(result, ids.suffix).encode())
    if save is not None:
        write_atomically(make_room(save), json.dumps(result.headline, allow_nan=False).encode())
    if as_json:
        print_json(result.document)
    else:
        print_subset(result.document)
        for name, written in (("document", out), ("report", report), ("ids", ids), ("subset", save)):
            if written is not None:
                echo(f"{name:<8} {written}")
        echo(f"result   {result.id}{' (taken from the store)' if result.cached else ''}")
    if gate and result.document["verdict"]["status"] == "supported":
        echo(
            f"gate: on {result.document['size']} of the examples better models do worse (supported)", err=True
        )
        raise typer.Exit(GATE_FIRED)


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
