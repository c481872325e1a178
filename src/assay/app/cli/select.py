"""`assay select`: the examples on which better models do worse, and whether that is more than chance."""

import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import GATE_FIRED, SUBSETS, app, command
from assay.app.delivery import (
    Computing,
    File,
    Storing,
    Talking,
    check_outputs,
    echo,
    json_file,
    note,
    print_json,
    print_table,
    progress_on_stderr,
    say,
)
from assay.app.options import INPUTS, OUTPUT, RARE, RUNNING, Count, at_least, own_group
from assay.app.settings import Seeded
from assay.core.errors import InputError, check_name


if TYPE_CHECKING:
    from assay.analyses.subsets.data import CorrectnessData
    from assay.analyses.subsets.selection import Evaluation
    from assay.core.measurement import Rule
    from assay.pipeline.stage import Progress
    from assay.pipeline.subsets import StoredSelection

SELECTION, VERDICT = own_group("Selection"), own_group("Verdict", 41)
GATE = re.compile(r"accuracy\s*(?P<sign>[<>]=?)\s*(?P<limit>[01]|0?\.\d+|1\.0+)")


@dataclass(frozen=True, kw_only=True)
class AnswerSettings:
    """Where answers of models on examples come from.

    Attributes:
        groups: Training run of each model: column, CSV, or model. For a supported verdict.
        families: Architecture family of each model: a column, a CSV file, or model.
        id_accuracy: Accuracies in distribution: a column, or a CSV file of model and accuracy.
        examples: CSV file of facts about the examples of a table, id first.
        columns: Columns of a table by role, if named otherwise: model=run,example=uid.
        orientation: How a table lies: long, wide or transposed. Default: by its column names.
        cells: What cells of a table hold: correct, prediction or score.
        scores: Worse and better end of scores, e.g. 5,0 for a loss. Default: 0,1.
        right: Word of a right answer, with --wrong. Default: true.
        wrong: Word of a wrong answer, with --right. Default: false.
        missing: Missing cells: refuse (the default), drop-models or drop-examples.
        filter: Filter of lm-eval logs with several rows a sample, e.g. first or last.
        id_envs: Environments, tasks, splits or domains in distribution, e.g. 0,1,2.
        ood_env: The same out of distribution, to select from.
        checkpoints: Checkpoints of a folder of CSVs: last of each run (the default) or all.
    """

    groups: Annotated[str | None, INPUTS] = None
    families: Annotated[str | None, INPUTS] = None
    id_accuracy: Annotated[str | None, INPUTS] = None
    examples: Annotated[Path | None, INPUTS] = None
    columns: Annotated[str | None, RARE] = None
    orientation: Annotated[str | None, RARE] = None
    cells: Annotated[str | None, RARE] = None
    scores: Annotated[str | None, RARE] = None
    right: Annotated[str | None, RARE] = None
    wrong: Annotated[str | None, RARE] = None
    missing: Annotated[str | None, RARE] = None
    filter: Annotated[str | None, RARE] = None
    id_envs: Annotated[str | None, RARE] = None
    ood_env: Annotated[str | None, RARE] = None
    checkpoints: Annotated[str | None, RARE] = None

    def read(self, source: str, progress: "Progress", **more: Any) -> "CorrectnessData":
        """The data that a source stands for; `more` are arguments of `read_source` that no option names."""
        from assay.pipeline.subsets import read_source

        plain = ("groups", "families", "id_accuracy", "examples", "orientation", "cells", "right", "wrong")
        options = {name: getattr(self, name) for name in (*plain, "missing", "checkpoints")}
        return read_source(
            source,
            columns=_roles(self.columns),
            scores=_ends(self.scores),
            log_filter=self.filter,
            id_envs=_listed(self.id_envs),
            ood_env=_listed(self.ood_env),
            progress=progress,
            **options,
            **more,
        )


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [each.strip() for each in text.split(",")]


def _roles(text: str | None) -> dict[str, str] | None:
    """Columns by role; a further name without a role belongs to the role before."""
    roles: dict[str, str] = {}
    for each in _listed(text) or ():
        role, equals, name = each.partition("=")
        if equals and name.strip():
            roles[role.strip()] = name.strip()
        elif roles and each:
            roles[next(reversed(roles))] += f",{each}"
        else:
            raise InputError(f"--columns is {text!r}; give ROLE=NAME,... e.g. model=run,example=uid")
    return roles or None


def _ends(text: str | None) -> tuple[float, float] | None:
    """The worse and the better end of scores."""
    try:
        worse, better = (None, None) if text is None else map(float, text.split(","))
    except ValueError:
        raise InputError(f"--scores is {text!r}; give two numbers, the worse end first, e.g. 5,0") from None
    return None if worse is None or better is None else (worse, better)


@dataclass(frozen=True, kw_only=True)
class SelectSettings(Seeded, AnswerSettings, Computing):
    """What subsets are selected from, how, and how they are tested.

    Attributes:
        sizes: Subset sizes, separated by commas. Default: 10, 20, 50, 100, 250, ... and all.
        solver: Solver: swap, or adam (the published optimiser).
        split: Unit kept whole by the split: group (the default), family or random (none).
        compat: Split models randomly as the authors do. If it cuts runs: inconclusive.
        strata: Keep the proportions of the classes (label), or of a column of facts.
        allowed: File of the ids that may be selected: one per line, or a table, ids first.
        permutations: Permutations of the test; a supported verdict needs at least 19. 0: no test.
        folds: Folds of the cross-fit of the test.
        workers: Threads of the permutations. Default: one per CPU.
        gate: Exit with code 3 if a subset is supported, or no verdict is possible.
        out: Directory of selection.json, report.html, subset.json, ids.csv and sizes.csv.
        report: HTML page to write.
    """

    sizes: Annotated[str | None, SELECTION] = None
    solver: Annotated[str, SELECTION] = "swap"
    split: Annotated[str | None, RARE] = None
    compat: Annotated[bool, RARE] = False
    strata: Annotated[str | None, SELECTION] = None
    allowed: Annotated[Path | None, RARE] = None
    permutations: Annotated[int, VERDICT, at_least(0)] = 99
    folds: Annotated[int, RARE, at_least(3)] = 5
    workers: Annotated[Count | None, RUNNING] = None
    gate: Annotated[bool, RUNNING] = False
    out: Annotated[Path | None, OUTPUT] = None
    report: Annotated[Path | None, OUTPUT] = None


@command(SUBSETS, example="assay select predictions.csv --groups run --sizes 50,100 --report subset.html")
def select(predictions: str = "digits", /, *, settings: SelectSettings) -> int:
    """Find the examples on which better models do worse.

    Better in distribution, that is; and the finding is tested.

    Args:
        predictions: Archive, table or folder of answers; or digits:N, N classifiers trained now.
        settings: The options.
    """
    from assay.analyses.subsets.verdict import LEAST_PERMUTATIONS
    from assay.pipeline.subsets import DIGITS, DIGITS_SIZES, select_stored

    if settings.gate and settings.permutations < LEAST_PERMUTATIONS:
        raise InputError(
            f"--gate needs a verdict, and {settings.permutations} permutations cannot support one; give "
            f"--permutations {LEAST_PERMUTATIONS} or more, or remove --gate"
        )
    sizes = _sizes(settings.sizes)
    check_outputs(settings)
    with progress_on_stderr() as progress:
        data = settings.read(predictions, progress, seed=settings.seed, folder=settings.store_folder())
        if sizes is None and predictions.partition(":")[0] == DIGITS:
            sizes = DIGITS_SIZES
        result = select_stored(
            data,
            sizes,
            n_permutations=settings.permutations,
            folds=settings.folds,
            workers=settings.workers,
            store=settings.open_store(),
            out=settings.out,
            progress=progress,
            solver=settings.solver,
            split=settings.split,
            compat=settings.compat,
            strata=settings.strata,
            allowed=None if settings.allowed is None else _places(settings.allowed, data),
            seed=settings.seed,
        )
    _hand_over(settings, result)
    verdict = result.subsets[0].known_verdict
    if not settings.gate or verdict is None:
        return 0
    if verdict.supported:
        say(f"gate: better models do worse on {result.document['size']} of the examples (supported)")
    elif verdict.obstacles:
        say(f"gate: failed, since no verdict was possible: {'; '.join(verdict.obstacles)}")
    return GATE_FIRED if verdict.supported or verdict.obstacles else 0


def _sizes(text: str | None) -> tuple[int, ...] | None:
    """The sizes asked for; None leaves them to the data."""
    try:
        return None if text is None else tuple(int(each.replace("_", "")) for each in text.split(","))
    except ValueError:
        raise InputError(f"--sizes is {text!r}; give numbers separated by commas, e.g. 100,250,500") from None


def _places(path: Path, data: "CorrectnessData") -> list[int]:
    """Places of the examples that a file names."""
    from assay.analyses.subsets.files import read_table

    names = path.read_text().splitlines() if path.suffix == ".txt" else read_table(path, n_names=1).iloc[:, 0]
    place = {name: at for at, name in enumerate(data.example_ids.tolist())}
    wanted = [str(name).strip() for name in names if str(name).strip()]
    if missing := [name for name in wanted if name not in place]:
        raise InputError(
            f"--allowed {path} names {missing[0]!r} ({len(missing)} of {len(wanted)} ids), which is not an "
            f"example of the data; the first is {data.example_ids[0]!r}"
        )
    return [place[name] for name in wanted]


def _hand_over(settings: SelectSettings, result: "StoredSelection") -> None:
    """The result to files and to stdout."""
    import pandas as pd

    from assay.analyses.subsets.path import size_table

    subsets, out = result.subsets, settings.out
    table = size_table(
        sorted(subsets, key=lambda each: each.size), pd.DataFrame(result.document["baselines"])
    )
    files = {"report": File(settings.report or (out and out / "report.html"))}
    if out is not None:
        files |= {
            "document": json_file(out / "selection.json", result.document),
            "subset": File(out / "subset.json", subsets[0].save),
            "ids": File(out / "ids.csv", partial(_write_csv, subsets[0].to_frame())),
            "sizes": File(out / "sizes.csv", partial(_write_csv, table)),
        }
    settings.deliver(result.document, files, identity=result.id, cached=result.cached)
    if files["report"].path is None and not settings.json:
        note("page     not written; add --report page.html, and the result is read from the store")


def _write_csv(table: Any, path: Path) -> Path:
    table.to_csv(path, index=False, lineterminator="\n")
    return path


# ---- what was understood ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class UnderstoodSettings(AnswerSettings, Talking):
    """What is read and shown."""


@command(parent=app["select"], example="assay select data answers.csv --id-accuracy accuracies.csv")
def data(predictions: str, /, *, settings: UnderstoodSettings) -> None:
    """Show how answers are understood, without selecting.

    Args:
        predictions: As for `assay select`.
        settings: The options.
    """
    with progress_on_stderr() as progress:
        facts = settings.read(predictions, progress).describe().dropna()
    if settings.json:
        print_json(facts.to_dict())
    else:
        rows = [[str(name), str(value)] for name, value in facts.items() if value != ""]
        print_table("", ["what", "understood"], rows)


# ---- other models on a subset -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EvaluateSubsetSettings(AnswerSettings, Talking, Storing):
    """What new models must reach on a subset.

    Attributes:
        order: data: columns without names, in the order of the data behind the subset.
        gate: Limit of the accuracy on the subset, 'accuracy >= 0.6'; exit code 3 if a model fails.
        undecided: What a gate does where a 95 % interval holds the limit: pass or fail.
    """

    order: Annotated[str | None, INPUTS] = None
    gate: Annotated[str | None, RUNNING] = None
    undecided: Annotated[str, RUNNING] = "pass"


@command(
    parent=app["select"],
    example="assay select evaluate subset.json new.csv --gate 'accuracy >= 0.6' --undecided fail",
)
def evaluate(
    subset: Annotated[str, Parameter(name="SUBSET")],
    predictions: Annotated[str, Parameter(name="PREDICTIONS")],
    /,
    *,
    settings: EvaluateSubsetSettings,
) -> int:
    """Evaluate new models on a saved subset.

    Accuracy on the subset and on all examples, and the correlations over the models.

    Args:
        subset: subset.json, selection.json (with all sizes), or the id of a stored selection.
        predictions: Answers of the new models on these examples, as `assay select` reads them.
        settings: The options.
    """
    from assay.pipeline.subsets import read_subsets

    rule = None if settings.gate is None else _gate(settings.gate)
    check_name("--undecided", settings.undecided, ("pass", "fail"))
    subsets = read_subsets(subset, settings.existing_store)
    with progress_on_stderr() as progress:
        data = settings.read(predictions, progress, for_selection=False)
    sizes = [each.evaluate(data, order=settings.order) for each in subsets]
    first, verdict = sizes[0], subsets[0].known_verdict
    statuses = [] if rule is None else _judged(first, rule)
    status = "" if verdict is None else verdict.status
    if settings.json:
        extra = {"subset": subsets[0].id, "verdict": status or None, "gate": settings.gate, "gates": statuses}
        print_json(first.to_dict() | extra | {"sizes": [each.to_dict() for each in sizes[1:]]})
    else:
        _show(sizes, status, statuses)
    failing = ("fail", "inconclusive") if settings.undecided == "fail" else ("fail",)
    failed = [name for name, each in zip(first.model_ids, statuses, strict=False) if each in failing]
    if failed:
        names = ", ".join(failed[:5])
        say(f"gate: {settings.gate} fails for {len(failed)} of {len(statuses)} models: {names}")
    return GATE_FIRED if failed else 0


def _gate(text: str) -> "Rule":
    from assay.core.measurement import Rule

    match = GATE.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"cannot read the gate {text!r}; write 'accuracy >= 0.6': one of < <= > >=, and a share"
        )
    return Rule(
        pass_at=float(match["limit"]), higher=match["sign"][0] == ">", strict="=" not in match["sign"]
    )


def _judged(evaluation: "Evaluation", rule: "Rule") -> list[str]:
    """`pass`, `fail` or, where the interval holds the limit, `inconclusive`, for each model."""
    from assay.core.measurement import Interval

    ends = zip(evaluation.low.tolist(), evaluation.high.tolist(), strict=True)
    return [rule.rigorous(Interval(low=low, high=high, level=0.95, method="exact")) for low, high in ends]


def _show(sizes: "list[Evaluation]", status: str, statuses: list[str]) -> None:
    """Models and correlations for reading."""
    first = sizes[0]
    table: Any = first.to_frame()
    rows = [
        [
            row.model,
            row.part,
            f"{row.accuracy:.3f} [{row.low:.3f}, {row.high:.3f}]",
            f"{row.accuracy_all:.3f}",
            gate,
        ]
        for row, gate in zip(table.itertuples(), statuses or [""] * len(table), strict=True)
    ]
    heads = ["model", "part", f"accuracy on {first.n_matched} of {first.size}", "on all", "gate"]
    print_table("", heads[: 5 if statuses else 4], [row[: 5 if statuses else 4] for row in rows])
    for each in sizes:
        pairs = {"in distribution": each.correlation.r, "all examples": each.with_all.r}
        known = (f"{r:.2f} with accuracy {name}" for name, r in pairs.items() if not math.isnan(r))
        echo(f"{each.size} examples: R {', '.join(known) or 'undefined'}")
    if status != "supported":
        note(f"The verdict of the subset is {status or 'not known'}: better models need not do worse on it.")
    seen = sum(part in ("train", "validation") for part in first.part)
    if seen:
        note(f"{seen} of the models selected the subset; they do worse on it than new ones would.")
