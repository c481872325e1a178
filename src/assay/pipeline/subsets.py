"""A subset as a job: data from files, selections of several sizes with their verdicts, kept in the store."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.digits import digits_data
from assay.analyses.subsets.files import read_data
from assay.analyses.subsets.path import selection_path
from assay.analyses.subsets.problem import Problem, checked_sizes, default_sizes, make_problem
from assay.analyses.subsets.selection import Subset, read_subset
from assay.analyses.subsets.verdict import FOLDS, N_PERMUTATIONS
from assay.core.errors import FileFormatError, InputError
from assay.core.record import canonical_json, library_version, record_id
from assay.core.untrusted import parse_json
from assay.pipeline.stage import Content, Progress, Stage, check_writable
from assay.store import About, Store


KIND = "subset-path"
DIGITS = "digits"  # source of the demonstration; `digits:48` trains 48 classifiers
DIGITS_SIZES = (50, 100, 200)
_FOLDER = "select"  # of a store: data that were expensive to make


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSelection:
    """Subsets of several sizes, and whether a store already held them.

    Attributes:
        id: Identity of the job.
        document: What `SelectionPath.to_dict` gives.
        cached: Whether the store held it.
    """

    id: str
    document: dict[str, Any]
    cached: bool

    @property
    def subsets(self) -> list[Subset]:
        """Its subsets, that of the page first."""
        return _subsets(self.document, self.id)


def read_source(
    source: str,
    *,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> CorrectnessData:
    """The data that a path or `digits` stands for.

    Args:
        source: As of `read_data`; or `digits`, `digits:N`: classifiers of digits, trained now.
        seed: Root seed of the digits.
        folder: A store; trained digits are kept in its folder `select`.
        progress: Told of models trained.
        options: As of `read_data`; for the digits they have no effect.

    Raises:
        InputError: For an option that the source has no use for, or lacks.
        FileFormatError: If nothing is there, or nothing that can be read.
    """
    name, _, count = source.partition(":")
    if name != DIGITS or Path(source).exists():
        return read_data(Path(source), **options)
    if count and not count.isdigit():
        raise InputError(f"the source is {source!r}; give digits, or digits:N for N classifiers")
    import sklearn

    how = {"n_models": int(count or 320), "seed": seed}
    record = {"library": library_version(), "scikit-learn": sklearn.__version__, **how}
    digest = hashlib.sha256(canonical_json(record).encode()).hexdigest()[:16]
    kept = None if folder is None else folder / _FOLDER / f"digits-{digest}.npz"
    if kept is not None and kept.is_file():
        return CorrectnessData.load(kept)
    data = digits_data(**how, progress=progress or (lambda stage, done, total: None))
    if kept is not None:
        check_writable(kept.parent, make=True)
        data.save(kept)
    return data


def select_stored(
    data: CorrectnessData,
    sizes: Sequence[int] | None = None,
    *,
    n_permutations: int = N_PERMUTATIONS,
    folds: int = FOLDS,
    workers: int | None = None,
    store: Store | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> StoredSelection:
    """`assay.selection_path` with verdicts, taken from the store where it was computed before.

    Args:
        data: Models by examples.
        sizes: Subset sizes; None: the usual grid.
        n_permutations: Behind the verdicts; 0: none.
        folds: Of the cross-fit.
        workers: Threads of the permutations; nothing depends on them.
        store: Where the document is kept.
        out: Directory in which finished permutations are kept until the verdict is there: a job that was
            killed goes on from them.
        progress: Told of each stage.
        settings: All others of `assay.oodselect`.

    Raises:
        InputError: As `assay.selection_path`.
    """
    problem = make_problem(data, **settings)
    wanted = default_sizes(problem) if sizes is None else checked_sizes(sizes, problem)
    record = _record(problem, wanted, n_permutations, folds)
    identity = record_id(KIND, record)

    def compute() -> Content:
        path = selection_path(problem, sizes=wanted, progress=progress)
        if n_permutations:
            keep = None if out is None else out / f"permutations-{identity}.jsonl"
            if out is not None:
                check_writable(out, make=True)
            path.judge(
                n_permutations=n_permutations, folds=folds, workers=workers, keep=keep, progress=progress
            )
            if keep is not None:
                keep.unlink(missing_ok=True)
        verdict, source = path.headline.known_verdict, data.source.get("name") or data.source.get("kind")
        about = About(
            task=" ".join(part for part in (source, data.hash[:8]) if part),
            seed=problem.settings.seed,
            status="unjudged" if verdict is None else verdict.status,
            name=f"subsets of {', '.join(map(str, wanted))}",
        )
        return Content(payload=path.to_dict() | {"id": identity}, about=about)

    memo = Stage(kind=KIND, record=record, compute=compute).run(store)
    return StoredSelection(id=identity, document=memo.value.payload, cached=memo.cached)


def _record(problem: Problem, sizes: Sequence[int], n_permutations: int, folds: int) -> dict[str, Any]:
    """What the document of a job depends on."""
    data = problem.data
    return {
        "library": library_version(),
        "data": {"hash": data.hash, "described": _digest(data), "source": data.origin},
        "split": problem.split.to_dict(),
        "sizes": list(sizes),
        "settings": problem.settings.to_dict(),
        # Without a test nothing depends on its folds.
        "verdict": {"n_permutations": n_permutations, "folds": folds if n_permutations else FOLDS},
    }


def _digest(data: CorrectnessData) -> str:
    """Hash of what the document depends on beside the selection: names, classes, facts, pictures."""
    digest = hashlib.sha256(repr((data.label_names, data.meta.to_dict("list"))).encode())
    names = ("model_ids", "groups", "families", "labels", "embedding", "id_embedding", "images")
    for name in names:
        values = getattr(data, name)
        if values is not None:
            digest.update(f"{name} {values.dtype} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def read_subsets(name: str, store: Callable[[], Store]) -> list[Subset]:
    """The subset of a file of `Subset.save`; or those of a selection, its headline first.

    Args:
        name: subset.json, selection.json, or the id of a stored selection.
        store: Opens the store.

    Raises:
        InputError: If there is neither.
        FileFormatError: If the file is damaged or something else.
    """
    path = Path(name)
    if not path.exists() and not path.suffix:  # an id
        return _subsets(store().get(name).payload, name)
    try:
        document = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{path} is not a subset: {error}. Give subset.json or selection.json"
        ) from error
    return _subsets(document, name)


def _subsets(document: Any, name: str) -> list[Subset]:
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        return [read_subset(document, name)]
    subsets = [read_subset(each, name) for each in document.get("subsets", ())]
    if not subsets:
        raise FileFormatError(f"{name} holds no subset; run `assay select` again")
    return sorted(subsets, key=lambda each: each.size != document["size"])
