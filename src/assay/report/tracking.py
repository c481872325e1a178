"""Results as runs of a tracker, MLflow or trackio: parameters, metrics, tags and files."""

import json
import math
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import InputError, check_name
from assay.core.extras import needs_extra
from assay.core.record import library_version, plain, record_id
from assay.report.save import save_report


LONGEST_KEY, LONGEST_PARAMETER, LONGEST_TAG = 250, 6000, 5000  # characters that MLflow keeps
MOST_PARAMETERS, MOST_METRICS = 500, 500  # of one result: a page of numbers is a file, not a list of metrics
PER_BATCH = 100  # parameters and tags of one request
DEEPEST = 3  # levels of a document whose numbers become metrics
NOT_METRICS = ("provenance", "details", "settings", "reference", "thresholds", "statistic", "seed")
FOLDER = "assay"  # of the artifacts


@dataclass(kw_only=True)
class _Entry:
    """One result as a tracker takes it."""

    name: str
    id: str
    parameters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)
    document: Any = None
    files: tuple[Circuit | EdgeScores, ...] = ()
    source: Any = None  # for the page; None where there is none of it


def log_results(
    *results: Any, tracker: str = "mlflow", run_id: str | None = None, experiment: str | None = None
) -> str:
    """Log results to a run of a tracker: the active one, a given one, or a new one.

    Parameters are the flattened provenance; one that differs between results, or from what the run holds,
    has the name of its result in front. Metrics are `NAME/value`, `NAME/low`, `NAME/high` and `NAME/n` of
    measurements, and the numbers of other documents; what is undefined is left out. Tags `assay.NAME.id` and
    `assay.NAME.verdict` hold identity and judgement. The files, in `assay/`, are a JSON document per result,
    circuits and scores as safetensors, and `report.html`.

    Args:
        results: Measurements, circuits, edge scores, audits, calibration reports, worst cases, stored
            results, or documents of such.
        tracker: `mlflow` or `trackio`.
        run_id: The run to add to: its id in MLflow, which keeps its status; its name in trackio, where
            `experiment` names its project.
        experiment: Name of the experiment (MLflow) or project (trackio) of a new run; made if need be.
            Default: the active run, else a new one in MLflow's default experiment or the project `assay`.

    Returns:
        The id of the run in MLflow, its name in trackio.

    Raises:
        MissingExtraError: If the tracker is not installed.
        InputError: If there is nothing to log, a result is none, or the run is not named as the tracker
            needs it.
        UnknownNameError: For another tracker.

    Notes:
        Where runs are kept is the tracker's choice: `MLFLOW_TRACKING_URI`, `TRACKIO_DIR`. Parameters and tags
        are the config of a new run of trackio; a run that exists keeps its own, and they are in the file
        `config.json` beside the others.
    """
    check_name("tracker", tracker, _TRACKERS)
    if not results:
        raise InputError("nothing to log; give one result or more")
    entries = _named([each for result in results for each in _entries(result)])
    return _TRACKERS[tracker](entries, run_id, experiment)


# ----------------------------------------------------------------------------------------------------- MLflow


def _to_mlflow(entries: Sequence[_Entry], run_id: str | None, experiment: str | None) -> str:
    if run_id is not None and experiment is not None:
        raise InputError(
            "run and experiment exclude each other, because a run belongs to its experiment; give one"
        )
    with needs_extra("mlflow", "logging to MLflow needs mlflow-skinny"):
        import mlflow
    client = mlflow.MlflowClient()
    active = mlflow.active_run()
    new = run_id is None and (experiment is not None or active is None)
    if new:
        run_id = client.create_run(_experiment(client, experiment)).info.run_id
    elif run_id is None:
        assert active is not None
        run_id = active.info.run_id
    assert run_id is not None
    try:
        _log(client, run_id, entries)
    except BaseException:
        if new:
            client.set_terminated(run_id, status="FAILED")
        raise
    if new:
        client.set_terminated(run_id)
    return run_id


def _experiment(client: Any, name: str | None) -> str:
    if name is None:
        return "0"  # MLflow's default experiment
    found = client.get_experiment_by_name(name)
    made: str = client.create_experiment(name) if found is None else found.experiment_id
    return made


def _log(client: Any, run_id: str, entries: Sequence[_Entry]) -> None:
    from mlflow.entities import Metric, Param, RunTag

    held: Mapping[str, str] = client.get_run(run_id).data.params
    parameters = [Param(key, value) for key, value in _parameters(entries, held).items()]
    now = int(time.time() * 1000)
    metrics = [Metric(key, value, now, 0) for key, value in _metrics(entries).items()]
    listed = [RunTag(key, value) for key, value in _tags(entries).items()]
    for start in range(0, max(len(parameters), len(metrics), len(listed)), PER_BATCH):
        part = slice(start, start + PER_BATCH)
        client.log_batch(run_id, metrics=metrics[part], params=parameters[part], tags=listed[part])
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), entries)
        client.log_artifacts(run_id, folder, artifact_path=FOLDER)


# ---------------------------------------------------------------------------------------------------- trackio


def _to_trackio(entries: Sequence[_Entry], run_id: str | None, experiment: str | None) -> str:
    if run_id is not None and experiment is None:
        raise InputError(
            "trackio finds a run by its name in a project; give the project too: experiment='PROJECT'"
        )
    with needs_extra("trackio", "logging to trackio needs trackio"):
        import trackio
        from trackio.context_vars import current_run
    active = current_run.get()
    if active is not None and experiment is not None:
        raise InputError(
            f"the run {active.name!r} is active, and trackio has one run at a time; call trackio.finish() "
            "first, or leave out experiment to add to it"
        )
    config = {**_parameters(entries, {}), **_tags(entries)}
    if active is not None:
        _log_to_run(active, entries, config)
        return str(active.name)
    named = {} if run_id is None else {"name": run_id, "resume": "must"}
    try:
        run = trackio.init(
            experiment or FOLDER,
            config=config if run_id is None else None,
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
            **named,
        )
    except ValueError as error:  # of names, and of a run that is not there
        raise InputError(f"trackio has no such run: {error}") from error
    try:
        _log_to_run(run, entries, config)
    finally:
        trackio.finish()
    return str(run.name)


def _log_to_run(run: Any, entries: Sequence[_Entry], config: Mapping[str, str]) -> None:
    run.log(_metrics(entries))
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), entries)
        (Path(folder) / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        run.log_artifact(folder, name=FOLDER, type="results")


_TRACKERS = {"mlflow": _to_mlflow, "trackio": _to_trackio}


# ---------------------------------------------------------------------------------------- what both are given


def _metrics(entries: Sequence[_Entry]) -> dict[str, float]:
    return {_key(f"{entry.name}/{key}"): value for entry in entries for key, value in entry.metrics.items()}


def _tags(entries: Sequence[_Entry]) -> dict[str, str]:
    tags = {"assay.version": library_version()}
    for entry in entries:
        tags[_key(f"assay.{entry.name}.id")] = entry.id
        for key, verdict in entry.verdicts.items():
            tags[_key(".".join(filter(None, ("assay", entry.name, key, "verdict"))))] = verdict[:LONGEST_TAG]
    return tags


def _parameters(entries: Sequence[_Entry], held: Mapping[str, str]) -> dict[str, str]:
    """Those that all results share by their own name, others after their result: a run has one of each."""
    found: dict[str, str] = {}
    for entry in entries:
        for name, value in entry.parameters.items():
            shared = all(each.parameters.get(name, value) == value for each in entries)
            key = _key(name)
            if not shared or held.get(key, value) != value:
                key = _key(f"{entry.name}.{name}")
            if held.get(key, value) != value:
                key = _key(f"{entry.name}.{entry.id}.{name}")
            if key not in held:
                found[key] = value
    return found


def _key(name: str) -> str:
    """A name that MLflow takes: letters, digits, `_ - . : /` and spaces, no path that leaves its folder."""
    clean = re.sub(r"[^\w\-.:/ ]", "_", name, flags=re.ASCII)
    parts = [part for part in clean.split("/") if part.strip(".")]
    return "/".join(parts)[:LONGEST_KEY] or "_"


def _named(entries: list[_Entry]) -> list[_Entry]:
    """No two of one name."""
    taken: set[str] = set()
    for entry in entries:
        base, number = re.sub(r"[^\w\-.]", "_", entry.name, flags=re.ASCII).strip(".")[:80] or "result", 1
        entry.name = base
        while entry.name in taken:
            number += 1
            entry.name = f"{base}-{number}"
        taken.add(entry.name)
    return entries


def _entries(result: Any) -> Iterator[_Entry]:
    """A result, and the measurements inside it."""
    if isinstance(result, Circuit | EdgeScores):
        kind = "circuit" if isinstance(result, Circuit) else "scores"
        yield _Entry(
            name=kind,
            id=result.hash if isinstance(result, Circuit) else record_id(kind, result.provenance),
            parameters=dict(_flat(result.provenance)),
            metrics={"n_edges": float(result.n_edges)} if isinstance(result, Circuit) else {},
            files=(result,),
        )
        return
    document = _document(result)
    inner = [getattr(result, name, None) for name in ("circuit", "scores")]
    provenance = document.get("provenance")
    name = str(document.get("name") or document.get("kind") or type(result).__name__.lower())
    yield _Entry(
        name=name,
        id=str(document.get("hash") or document.get("id") or record_id(name, document)),
        parameters=dict(_flat(provenance)) if isinstance(provenance, Mapping) else {},
        metrics=_measured(document) if "value" in document else dict(_numbers(document)),
        verdicts=dict(_verdicts(document)),
        document=document,
        files=tuple(each for each in inner if isinstance(each, Circuit | EdgeScores)),
        source=document if hasattr(result, "payload") else result,
    )
    measurements = document.get("measurements")
    for each in measurements if isinstance(measurements, list) else ():
        if isinstance(each, Mapping) and "value" in each:
            yield _Entry(
                name=str(each.get("name", "measurement")),
                id=str(each.get("hash") or each.get("id", "")),
                metrics=_measured(each),
                verdicts=dict(_verdicts(each)),
            )


def _document(result: Any) -> dict[str, Any]:
    """Plain JSON of a result."""
    if isinstance(result, Mapping):
        return dict(plain(result))
    payload = getattr(result, "payload", None)
    if isinstance(payload, Mapping):  # as a store keeps it
        return dict(plain({**payload, "id": result.id, "kind": result.kind, "provenance": result.provenance}))
    document = getattr(result, "document", None)
    if not isinstance(document, Mapping):
        to_dict = getattr(result, "to_dict", None)
        document = to_dict() if callable(to_dict) else None
    if not isinstance(document, Mapping):
        raise InputError(
            f"a {type(result).__name__} is not a result; give measurements, circuits, scores, audits, "
            "reports, stored results or documents of such"
        )
    return dict(plain(document))


def _measured(document: Mapping[str, Any]) -> dict[str, float]:
    interval = document.get("interval") or {}
    found: dict[str, Any] = {
        "value": document.get("value"),
        "low": interval.get("low"),
        "high": interval.get("high"),
        "n": document.get("n"),
    }
    return {name: float(value) for name, value in found.items() if _finite(value)}


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers near the top of a document, by their path."""
    waiting: list[tuple[str, Any, int]] = [("", document, 0)]
    given = 0
    while waiting and given < MOST_METRICS:
        path, value, depth = waiting.pop(0)
        if isinstance(value, Mapping) and depth < DEEPEST:
            waiting += [
                (f"{path}/{key}".lstrip("/"), item, depth + 1)
                for key, item in value.items()
                if key not in NOT_METRICS
            ]
        elif _finite(value):
            given += 1
            yield path, float(value)


def _verdicts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(status := document.get("status"), str):
        yield "", status
    gates = document.get("gates")
    for each in gates if isinstance(gates, list) else ():
        if isinstance(each, Mapping) and {"key", "status"} <= each.keys():
            yield str(each["key"]), str(each["status"])


def _flat(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Leaves of a record by their path; lists are JSON."""
    waiting: list[tuple[str, Any]] = [(str(key), value) for key, value in plain(dict(record)).items()]
    given = 0
    while waiting and given < MOST_PARAMETERS:
        path, value = waiting.pop(0)
        if isinstance(value, Mapping):
            waiting += [(f"{path}.{key}", item) for key, item in value.items()]
            continue
        given += 1
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        short = (
            text
            if len(text) <= LONGEST_PARAMETER
            else text[: LONGEST_PARAMETER - 1] + "\N{HORIZONTAL ELLIPSIS}"
        )
        yield path, short


def _write(folder: Path, entries: Sequence[_Entry]) -> None:
    """The artifacts."""
    for entry in entries:
        if entry.document is not None:
            text = json.dumps(entry.document, indent=1, allow_nan=False)
            (folder / f"{entry.name}.json").write_text(text, encoding="utf-8")
        for file in entry.files:
            kind = "circuit" if isinstance(file, Circuit) else "scores"
            file.save(
                folder / f"{entry.name if entry.document is None else f'{entry.name}-{kind}'}.safetensors"
            )
    sources = [entry.source for entry in entries if entry.source is not None]
    shown = [each for each in sources if _has_page(each, folder)]
    if shown:
        save_report(folder / "report.html", *shown)


def _has_page(result: Any, folder: Path) -> bool:
    """Whether a page can show it; what a page is made of is not decided here."""
    try:
        save_report(folder / "report.html", result)
    except InputError:
        return False
    return True
