"""A subset as a job: selections of several sizes, their verdicts and their document, kept in the store."""

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from assay.analyses.subsets.crossfit import plan_folds
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.example_files import made_from
from assay.analyses.subsets.objective import check_inverse
from assay.analyses.subsets.path import SelectionPath, check_refinement, path_of
from assay.analyses.subsets.problem import Problem, make_problem
from assay.analyses.subsets.verdict import LEAST_PERMUTATIONS, untested
from assay.core.errors import InputError, UnknownNameError
from assay.core.record import library_version, plain, record_id
from assay.pipeline.stage import Content, Progress, document_stage
from assay.store import About, ResultSummary, Store


KIND, PART = "subset-path", "subset-part"
PERMUTATIONS, FOLDS = 99, 5
NOT_TESTED = "not tested: no permutation of the accuracies was asked for, and without them nothing is shown"


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSelection:
    """Selections of several sizes, and whether a store already held them.

    Attributes:
        id: Identity of the job.
        document: What the page of a path shows.
        selections: By size, what `Subset.save` writes.
        cached: Whether the store held it.
    """

    id: str
    document: dict[str, Any]
    selections: Mapping[int, dict[str, Any]]
    cached: bool

    @property
    def headline(self) -> dict[str, Any]:
        """The selection that the document puts first."""
        return self.selections[self.document["size"]]


def _checked(
    data: CorrectnessData,
    sizes: Sequence[int] | None,
    path: str,
    n_permutations: int,
    refine: bool | int,
    options: Mapping[str, Any],
) -> tuple[Problem, tuple[int, ...], bool | int]:
    """The problem of a job, its sizes and how they are refined, before anything is solved."""
    if n_permutations < 0:
        raise InputError(
            f"n_permutations is {n_permutations}; give 0 (no test) or at least {LEAST_PERMUTATIONS}"
        )
    problem = make_problem(data, **options)
    wanted = problem.grid(sizes, path=path)
    if refine:
        refine = check_refinement(refine, path, wanted)
        check_inverse(problem.settings.objective, "the refinement of sizes (--refine)")
    if n_permutations:
        check_inverse(
            problem.settings.objective,
            f"the test that n_permutations={n_permutations} (--permutations {n_permutations}) asks for "
            "(0: none)",
        )
    return problem, wanted, refine


def select_stored(
    data: CorrectnessData,
    sizes: Sequence[int] | None = None,
    *,
    path: str = "independent",
    n_permutations: int = PERMUTATIONS,
    folds: int = FOLDS,
    refine: bool | int = False,
    workers: int | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> StoredSelection:
    """`assay.selection_path` with verdicts, taken from the store where it was computed before.

    Args:
        data: Models by examples.
        sizes: Subset sizes; None: `default_sizes`.
        path: `independent`, `warm` or `nested`.
        n_permutations: Behind the verdicts; 0: none are tested, all are inconclusive, and the solver runs no
            more than for the selections.
        folds: Of the cross-fit.
        refine: Try more sizes around the largest subset on the inverse line, as `SelectionPath.refined`; the
            verdicts are corrected for them too.
        workers: Threads of the permutations; nothing depends on them.
        store: Where the document is kept.
        progress: Told of each stage.
        options: All others of `assay.oodselect`.

    Raises:
        InputError: As `assay.selection_path`.

    Notes:
        An interrupted job goes on where it ended, with the same result: the store holds the selections,
        every finished fold of the cross-fit and of its reruns (one, three or nine together) and the overlap
        of halves, as rows of kind `subset-part`, until the document is there. What begins anew is the part
        that was under way. Two processes that run the same job on one store may compute the same parts.
    """
    problem, wanted, refine = _checked(data, sizes, path, n_permutations, refine, options)
    record = _record_of(problem, wanted, path, n_permutations, folds, refine)
    parts = _Parts(store=store, job=record_id(KIND, record))

    def compute() -> Content:
        shared: dict[str, Any] = {"progress": progress, "shelf": parts.value}
        found = path_of(problem, wanted, path=path, **shared)
        unrefined: dict[str, str] = {}
        if refine:
            coarse, found = found, found.refined(refine, **shared)
            unrefined = {"unrefined": _unrefined(coarse)} if found.sizes == coarse.sizes else {}
        if n_permutations:
            found.judge(n_permutations=n_permutations, folds=folds, workers=workers, **shared)
        else:
            _keep_untested(found)
        document = found.to_document(
            n_halves=None if n_permutations else 0, workers=workers, shelf=parts.value
        )
        selections = [each.to_dict() for each in found]
        payload = document | unrefined | {"id": record_id(KIND, record), "selections": selections}
        return Content(payload=payload, about=_about(data, record, document))

    stage = document_stage(KIND, record, compute)
    memo = stage.run(store)
    parts.remove()
    payload = memo.value.payload
    return StoredSelection(
        id=stage.id,
        document={name: value for name, value in payload.items() if name != "selections"},
        selections={each["size"]: each for each in payload["selections"]},
        cached=memo.cached,
    )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Finished parts of one job, each a row of the store, so that it goes on when interrupted."""

    store: Store | None
    job: str

    def value(self, part: str, compute: Callable[[], Any]) -> Any:
        """A `Shelf`; threads ask for different parts."""

        def content() -> Content:
            return Content(payload={"value": plain(compute())}, about=About(name=self.job))

        stage = document_stage(PART, {"job": self.job, "part": part}, content)
        return stage.run(self.store).value.payload["value"]

    def remove(self) -> None:
        """Forget them, once the document is there."""
        if self.store is not None:
            remove_parts(self.store, self.store.query(PART, name=self.job))


def abandoned_parts(store: Store, *, older_than: float) -> list[ResultSummary]:
    """Parts that interrupted jobs left: of jobs that are done, or older than so many seconds."""
    parts = store.query(PART)
    done = {job for job in {each.name for each in parts} if job is not None and store.has(job)}
    now = datetime.now(UTC)
    ages = [(now - datetime.fromisoformat(each.created)).total_seconds() for each in parts]
    return [each for each, age in zip(parts, ages, strict=True) if each.name in done or age > older_than]


def remove_parts(store: Store, parts: Sequence[ResultSummary]) -> None:
    """Remove parts of jobs; another process may do so at the same time."""
    for each in parts:
        with contextlib.suppress(UnknownNameError):
            store.remove([each.id], force=True)  # nothing refers to a part


def _unrefined(path: SelectionPath) -> str:
    """Why no size was tried between those of a path."""
    largest = path.largest_aotil(refine=False).size
    if largest is None:
        return "No size was refined: on none of them are the validation models on the inverse line."
    if largest == path.sizes[-1]:
        return (
            f"No size was refined: the largest, {largest}, is on the inverse line by the validation models."
        )
    return f"No size was refined: the step leaves none between {largest} and the next one."


def _about(data: CorrectnessData, record: Mapping[str, Any], document: Mapping[str, Any]) -> About:
    """What selections are found by; the hash distinguishes data of one kind."""
    source = data.source.get("name") or data.source.get("kind")
    return About(
        task=" ".join(part for part in (source, record["data"]["hash"][:8]) if part),
        seed=record["settings"]["seed"],
        status=document["verdict"]["status"],
        name=f"subsets of {', '.join(map(str, record['sizes']))}",
    )


def job_record(
    data: CorrectnessData,
    sizes: Sequence[int] | None = None,
    *,
    path: str = "independent",
    n_permutations: int = PERMUTATIONS,
    folds: int = FOLDS,
    refine: bool | int = False,
    **options: Any,
) -> dict[str, Any]:
    """What the document of a job is a function of; its hash is the job's identity.

    Args:
        data: Models by examples.
        sizes: Subset sizes; None: `default_sizes`.
        path: `independent`, `warm` or `nested`.
        n_permutations: Behind the verdicts.
        folds: Of the cross-fit.
        refine: As `select_stored`.
        options: All others of `assay.oodselect`.

    Raises:
        InputError: For whatever `select_stored` would refuse.
    """
    problem, wanted, refine = _checked(data, sizes, path, n_permutations, refine, options)
    return _record_of(problem, wanted, path, n_permutations, folds, refine)


def _record_of(
    problem: Problem,
    sizes: Sequence[int],
    path: str,
    n_permutations: int,
    folds: int,
    refine: bool | int,
) -> dict[str, Any]:
    data = problem.data
    return {
        "library": library_version(),
        "data": {
            "hash": data.hash,
            "described": _digest_of_descriptions(data),
            "n_models": data.n_models,
            "n_examples": data.n_examples,
            "source": data.origin,
        },
        "split": problem.split.to_dict(),
        "sizes": list(sizes),
        "path": path,
        "settings": problem.settings.record(),
        # Without a test nothing depends on its folds.
        "verdict": {"n_permutations": n_permutations, "folds": folds if n_permutations else FOLDS},
        **({"refine": refine} if refine else {}),
    }


def _digest_of_descriptions(data: CorrectnessData) -> str:
    """Hash of what the selection does not depend on but its document does: classes, columns, pictures."""
    told = [data.source[name] for name in ("text", "encoder") if name in data.source]
    names = data.model_ids, data.groups, data.families, data.label_names, sorted(data.meta)
    digest = hashlib.sha256(repr([each if each is None else list(each) for each in names] + told).encode())
    arrays = {
        "labels": data.labels,
        "n_id": data.n_id,
        "embedding": data.embedding,
        "id_embedding": data.id_embedding,
        "images": data.images,
        **{f"meta {name}": column for name, column in data.meta.items()},
    }
    for name, values in arrays.items():
        if values is None:
            continue
        # Numbers of an encoder differ between devices, what they are a function of does not.
        if (origin := made_from(data.source, name, values)) is not None:
            digest.update(f"{name} from {origin}".encode())
            continue
        # Columns of objects hold addresses, not values.
        found = values.astype(str) if values.dtype == object else np.ascontiguousarray(values)
        digest.update(f"{name} {found.dtype} {found.shape}".encode())
        digest.update(found.tobytes())
    return digest.hexdigest()[:16]


def _keep_untested(path: SelectionPath) -> None:
    """Give every size the verdict that nothing was tested."""
    plan = plan_folds(path.data)
    for selection in path:
        selection.keep_verdict(untested(path.data, selection, plan, path.sizes, (NOT_TESTED,)))
