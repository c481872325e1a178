"""What a command asks for as a hash that needs no model, under which a store keeps which result answered it.

The hash covers every option that can change a result and the content of all files that are read, so whatever
differs is computed anew.
"""

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from assay.core.record import library_version, record_id
from assay.models.loading import EMBEDDED
from assay.models.merging import CONFIG as ADAPTER
from assay.tasks import TASKS, is_task_file


READERS = ("numpy", "tokenizers", "torch", "transformers")  # they decide what weights and prompts are
# Options that say how a command runs and where its results go.
_UNCOUNTED = frozenset(("batch_size", "config", "json", "out", "quiet", "store", "traceback", "workers"))


def request_of(options: Mapping[str, Any], device: str | None) -> str | None:
    """Hash of all that an audit is a function of; None where only loading tells that.

    Args:
        options: Those of `assay audit`.
        device: Where the model would run; it can choose the number type.
    """
    tasks = [options[name] for name in ("task", "discover_on", "measure_on") if options[name] is not None]
    # Images come from elsewhere, and a chat template can tell the date.
    elsewhere = options["images"] is not None or options["chat"] or options["device_map"] is not None
    if elsewhere or not all(map(_is_known, tasks)):
        return None
    try:
        model = _checkpoint(options["model"])
        digests = [_digest(Path(task)) for task in tasks if is_task_file(task)]
    except OSError:  # loading says what is wrong with a file
        return None
    if model is None:
        return None
    request = {
        "options": {name: value for name, value in options.items() if name not in _UNCOUNTED},
        "device": device,
        "library": library_version(),
        "readers": [version(name) for name in READERS],
        "model": model,
        "tasks": digests,
    }
    return record_id("request", request)


def _checkpoint(model: str) -> dict[str, str] | None:
    """SHA-256 of the files of a language model by name; None where they do not tell all that it is."""
    folder = EMBEDDED.get(model, Path(model))
    described = (folder / "config.json").is_file() and not (folder / ADAPTER).exists()
    if not described or model == "colour-digits":
        return None
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return {path.name: _digest(path) for path in paths} if all(map(Path.is_file, paths)) else None


def _is_known(task: str) -> bool:
    """Whether a task is a file, or one of this package."""
    if is_task_file(task):
        return Path(task).is_file()
    key = task.replace("_", "-")
    return key in TASKS and TASKS[key].__module__.startswith("assay.")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
