"""Work for tests of sweeps: jobs of other kinds than real ones, as ill-behaved as their records say.

Each attempt leaves a line in a journal beside the store, so that tests see what ran how often and in which
order, whatever became of the worker.
"""

import os
import pickle
import signal
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from assay.core.errors import AssayWarning, InputError, NonFiniteError, StoreError
from assay.pipeline.jobs import Job
from assay.pipeline.plan import Limits
from assay.pipeline.workers import Worker, Workers, attempt
from assay.store import Store


def job(name: str, *acts: str, needs: Sequence[Job] = ()) -> Job:
    """A job that acts so in its attempts, the last act for all further ones."""
    record = {"name": name, "acts": list(acts or ["work"]), "needs": [each.id for each in needs]}
    return Job(name=name, kind="test", record=record, needs=tuple(each.id for each in needs))


def journal(folder: Path) -> list[tuple[str, str, int]]:
    """What began and ended, in order: (`begin` | `end`, name, process id)."""
    path = folder / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(what, name, int(process)) for what, name, process in (line.split("\t") for line in lines)]


def note(folder: Path, what: str, name: str) -> None:
    with (folder / "journal").open("a") as file:  # one short write at the end is atomic
        file.write(f"{what}\t{name}\t{os.getpid()}\n")


def begun(folder: Path, name: str) -> int:
    """How many attempts of a job have begun."""
    return sum(what == "begin" and each == name for what, each, _ in journal(folder))


def behave(job: Job, store: Store) -> tuple[str, ...]:
    """Do what `record["acts"]` says for this attempt; put a result and the row of the job."""
    note(store.directory, "begin", job.name)
    acts = job.record["acts"]
    what, _, argument = acts[min(begun(store.directory, job.name), len(acts)) - 1].partition(" ")
    if what == "sleep":
        time.sleep(float(argument))
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        os._exit(int(argument))
    elif what == "hang":
        time.sleep(3600)
    elif what == "fail":
        raise NonFiniteError("the logits are NaN")
    elif what == "refuse":
        raise InputError("n is 1; at least 2 are needed")
    elif what == "lose":
        raise StoreError("cannot use the results store at S: connection refused")
    elif what == "print":
        print("a line that no reader of JSON wants")
    elif what == "warn":
        warnings.warn("one value is constant", AssayWarning, stacklevel=1)
    result = store.put("number", {"name": job.name}, {"value": len(job.name)}, {"x": torch.arange(9)})
    store.put("job", job.provenance, {"results": [result]})
    note(store.directory, "end", job.name)
    return (result,)


class InProcess(Workers):
    """Jobs one after the other in this process."""

    def room(self, limits: Limits) -> int:
        return 2

    def begin(self, place: int) -> Worker:
        return _Here(pickle.loads(self.work), self.location)  # noqa: S301 - of this process

    def rest(self, busy: Sequence[Any], seconds: float) -> None:
        pass


class _Here(Worker):
    job, ready, began = None, True, 0.0

    def __init__(self, work: Any, location: str) -> None:
        self.work, self.location = work, location

    def send(self, job: Job) -> None:
        self.answer = attempt(self.work, job, self.location)

    def receive(self) -> Any:
        return self.answer

    def kill(self) -> None:
        pass
