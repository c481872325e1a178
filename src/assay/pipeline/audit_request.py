"""Asking a store for an audit by the options of its command: what needs no model to be found again."""

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from assay.core.errors import InputError
from assay.core.record import library_version, record_id
from assay.models.loading import EMBEDDED
from assay.pipeline.audit import read_audit, repeat_notes
from assay.pipeline.audit_result import Audit
from assay.store import Store
from assay.tasks import TASKS, is_task_file


READERS = ("numpy", "tokenizers", "torch", "transformers")  # they decide what weights and prompts are
# Options that say how a command runs and where its results go.
_UNCOUNTED = frozenset(("batch_size", "config", "json", "out", "quiet", "store", "traceback", "workers"))


def stored_answer(request: str, location: str | Path) -> Audit | None:
    """The audit that a store holds for a request; None where there is none, or no store.

    Args:
        request: What `request_of` gives.
        location: Of the store.
    """
    try:
        store = Store(location, create=False)
    except InputError:  # nothing was stored there yet
        return None
    if (identity := store.answer(request)) is None:
        return None
    audit = read_audit(store.get(identity))
    repeat_notes(audit.notes)
    return audit


def request_of(options: Mapping[str, Any], device: str | None) -> str | None:
    """Hash of all that an audit is a function of; None where only loading tells that.

    Args:
        options: Those of `assay audit`.
        device: Where the model would run; it can choose the number type.
    """
    tasks = [options[name] for name in ("task", "discover_on", "measure_on") if options[name] is not None]
    files = [task for task in tasks if is_task_file(task)]
    keys = [task.replace("_", "-") for task in tasks if task not in files]
    # Images come from elsewhere, and a chat template can tell the date.
    elsewhere = options["images"] is not None or options["chat"] or options["device_map"] is not None
    ours = all(key in TASKS and TASKS[key].__module__.startswith("assay.") for key in keys)
    checkpoint = EMBEDDED.get(options["model"], Path(options["model"]))
    if elsewhere or not ours or not (checkpoint / "config.json").is_file():
        return None
    paths = [path for path in checkpoint.iterdir() if not path.name.startswith(".")]
    if options["model"] == "colour-digits" or not all(map(Path.is_file, paths)):
        return None
    try:
        request = {
            "options": {name: value for name, value in options.items() if name not in _UNCOUNTED},
            "device": device,
            "library": library_version(),
            "readers": [version(name) for name in READERS],
            "model": {path.name: _digest(path) for path in paths},
            "tasks": [_digest(Path(task)) for task in files],
        }
    except OSError:  # loading says what is wrong with a file
        return None
    return record_id("request", request)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
