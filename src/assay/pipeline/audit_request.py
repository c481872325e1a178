"""The audit of a command that was run before, found by what was asked for: no model is loaded for it.

A file of the store, by the hash of a request, names the audit that answered it. The hash covers every option
that can change a result and the content of all files that are read, so whatever differs is computed anew.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from assay.circuits import write_atomically
from assay.core.errors import AssayWarning, InputError
from assay.core.record import library_version, record_id
from assay.models.loading import EMBEDDED
from assay.models.merging import CONFIG as ADAPTER
from assay.pipeline.audit import Audit, load_audit
from assay.pipeline.checks import check_writable
from assay.store import Store
from assay.tasks import TASKS, is_task_file


SOURCE = Path(__file__).parents[1]
READERS = ("numpy", "tokenizers", "torch", "transformers")  # they decide what weights and prompts are
# Options that say how a command runs and where its results go.
_UNCOUNTED = frozenset(("batch_size", "config", "json", "out", "quiet", "store", "traceback", "workers"))
FILES = ("audit.json", "circuit.safetensors", "report.html", "scores.safetensors")


def request_of(options: Mapping[str, Any], device: str | None) -> str | None:
    """Hash of all that an audit is a function of; None where only loading tells that.

    Args:
        options: Those of `assay audit`.
        device: Where the model would run; it can choose the number type.
    """
    folder = EMBEDDED.get(options["model"], Path(options["model"]))
    tasks = [options[name] for name in ("task", "discover_on", "measure_on") if options[name] is not None]
    if (
        # Images come from elsewhere, a chat template can tell the date, an adapter names another model.
        options["images"] is not None
        or options["model"] == "colour-digits"
        or options["chat"]
        or options["device_map"] is not None
        or not (folder / "config.json").is_file()
        or (folder / ADAPTER).exists()
        or not all(map(_is_known, tasks))
    ):
        return None
    paths = [*folder.iterdir()]
    if any(path.is_dir() and not path.name.startswith(".") for path in paths):
        return None
    request = {
        "options": {name: value for name, value in options.items() if name not in _UNCOUNTED},
        "device": device,
        "library": library_version(),
        "source": sorted([str(path), path.stat().st_mtime_ns] for path in SOURCE.rglob("*.py")),
        "readers": [version(name) for name in READERS],
        "model": {path.name: _digest(path) for path in paths if path.is_file()},
        "tasks": [_digest(Path(task)) for task in tasks if is_task_file(task)],
    }
    return record_id("request", request)


def _is_known(task: str) -> bool:
    """Whether a task is a file, or one of this package."""
    if is_task_file(task):
        return Path(task).is_file()
    key = task.replace("_", "-")
    return key in TASKS and TASKS[key].__module__.startswith("assay.")


def _digest(path: Path) -> str | None:
    """SHA-256 of a file; None where there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _digests(folder: Path) -> dict[str, str | None]:
    return {name: _digest(folder / name) for name in FILES}


def audit_of(request: str, store: str | Path, out: Path) -> Audit | None:
    """The audit that a store holds for a request, in its files; None where it holds none.

    Args:
        request: What `request_of` gives.
        store: A results store, which need not exist.
        out: Directory of the files; those that are there already and as they should be are left alone.
    """
    try:
        place = Store(store, create=False)
        answer = json.loads(_answer(place, request).read_bytes())
        audit, digests, remarks = load_audit(place, answer["audit"]), answer["files"], answer["remarks"]
    except (InputError, OSError, ValueError, KeyError, TypeError):  # not stored, or removed
        return None
    for remark in remarks:
        warnings.warn(remark, AssayWarning, stacklevel=2)
    if _digests(out) != digests:
        audit.save(out)
        keep_request(request, store, audit, out, remarks)
    return audit


def keep_request(request: str, store: str | Path, audit: Audit, out: Path, remarks: Sequence[str]) -> None:
    """Let a store know which audit answers a request.

    Args:
        request: What `request_of` gives.
        store: The results store, which holds the audit.
        audit: The answer.
        out: Directory of its files.
        remarks: Warnings on the way to it, to be repeated with it.
    """
    path = _answer(Store(store), request)
    check_writable(path.parent, make=True)
    answer = {"audit": audit.id, "files": _digests(out), "remarks": [*remarks]}
    write_atomically(path, json.dumps(answer).encode())


def _answer(store: Store, request: str) -> Path:
    return store.directory / "requests" / f"{request}.json"


@contextmanager
def remarks() -> Iterator[list[str]]:
    """The warnings that are shown while entered."""
    show, texts = warnings.showwarning, list[str]()

    def note(message: Warning | str, *rest: Any, **more: Any) -> None:
        texts.append(str(message))
        show(message, *rest, **more)

    warnings.showwarning = note
    try:
        yield texts
    finally:
        warnings.showwarning = show
