"""Work for scheduler tests: jobs of other kinds than real ones, as ill-behaved as their records say.

Each attempt leaves a line in a journal beside the store, so that tests see what ran how often and in which
order, whatever became of the worker.
"""

import os
import signal
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from assay.core.errors import AssayWarning, InputError, NonFiniteError
from assay.pipeline.jobs import Job  # its module takes seconds to load: before a worker says that it is ready
from assay.store import Store


def folder(location: str) -> Path:
    """Where the files of a store lie: its directory, or what its URL names for arrays."""
    if "://" not in location:
        return Path(location)
    return Path(parse_qs(urlsplit(location).query)["arrays"][0])


def journal(location: str) -> list[tuple[str, str, int]]:
    """What began and ended, in order: (`begin` | `end`, name, process id)."""
    path = folder(location) / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(what, name, int(process)) for what, name, process in (line.split("\t") for line in lines)]


def note(location: str, what: str, name: str) -> None:
    with (folder(location) / "journal").open("a") as file:  # one short write at the end is atomic
        file.write(f"{what}\t{name}\t{os.getpid()}\n")


def begun(location: str, name: str) -> int:
    """How many attempts of a job have begun."""
    return sum(what == "begin" and each == name for what, each, _ in journal(location))


def behave(job: Job, location: str) -> tuple[str, ...]:
    """Do what `record["acts"]` says for this attempt, the last act for all further ones; store the row."""
    note(location, "begin", job.name)
    acts = job.record.get("acts", ["work"])
    act = acts[min(begun(location, job.name), len(acts)) - 1]
    what, _, argument = act.partition(" ")
    if what == "sleep":
        time.sleep(float(argument))
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        os._exit(int(argument))
    elif what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "hang":
        while True:
            time.sleep(3600)
    elif what == "eat":
        held = bytearray(int(argument))
        held[::4096] = b"x" * len(held[::4096])  # touched, so resident
        time.sleep(3600)
    elif what == "fail":
        raise NonFiniteError("the logits are NaN")
    elif what == "refuse":
        raise InputError("n is 1; at least 2 are needed")
    elif what == "crash":
        raise ZeroDivisionError("by zero")
    elif what == "forget":
        return ()
    elif what == "print":
        print("a line that no reader of JSON wants")
    elif what == "see":
        note(location, "see " + os.environ.get("CUDA_VISIBLE_DEVICES", "all"), job.name)
        time.sleep(0.5)  # so that the other worker gets a job too
    elif what == "warn":
        import warnings

        warnings.warn("one value is constant", AssayWarning, stacklevel=1)
    store = Store(location)
    result = store.put("number", {"name": job.name}, {"value": len(job.name)})
    store.put("job", job.provenance, {"results": [result]})
    note(location, "end", job.name)
    return (result,)
