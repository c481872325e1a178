"""`assay lock` and `assay check`: circuits as regression tests of models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import GATE_FIRED, TRUST, command
from assay.app.delivery import File, Reporting, Talking, check_outputs, echo, progress_on_stderr, say
from assay.app.options import INPUTS, OUTPUT, RUNNING, at_least, call, own_group
from assay.app.settings import Batched, OnModel


@dataclass(frozen=True, kw_only=True)
class LockSettings(Talking, Batched, OnModel):
    """What is locked, and where the lock goes.

    Attributes:
        n: Prompts to measure each circuit on.
        files: File of prompts of an audit; repeat for several. Default: as the audit names it.
        metric: Key or code of the metric of the circuits.
        margin: How far below its value a circuit is lost. Default: the larger of .05 and half the interval.
        save: Lock to write, NAME.toml; circuits go to the folder NAME beside it.
    """

    n: Annotated[int, INPUTS, at_least(25)] = 200
    files: Annotated[tuple[Path, ...], INPUTS, Parameter(name="--prompts", metavar="FILE")] = ()
    metric: Annotated[str, own_group("Threshold")] = "faithfulness-norm"
    margin: Annotated[float | None, own_group("Threshold")] = None
    save: Annotated[Path, OUTPUT] = Path("circuits.lock.toml")


@command(TRUST, example="assay lock ioi greater-than --save circuits.lock.toml")
def lock(*audits: Annotated[Path, Parameter(name="DIR")], settings: LockSettings) -> None:
    """Lock the circuits that a model carries.

    `assay check` compares models with the lock, a file to keep beside the model's code. Circuits are
    measured on fresh prompts.

    Args:
        audits: Output directories of audits of one model.
        settings: The options.
    """
    from assay.page.text import interval, number
    from assay.pipeline.lock import lock_audits

    check_outputs(settings)
    with progress_on_stderr() as progress:
        model = settings.load_model()
        result = call(settings, lock_audits, model, audits, settings.save, progress=progress)

    def show() -> None:
        for each in result.circuits:
            value = each.parts[0]
            ends, limit = interval(value.low, value.high), number(value.threshold)
            heads = ", ".join(part.name for part in each.parts[1:])
            echo(f"{each.name:<16} {number(value.value)} {ends}  lost below {limit}; heads {heads or 'none'}")

    settings.deliver(result.to_dict(), {"lock": File(settings.save, lambda path: None)}, show=show)


@dataclass(frozen=True, kw_only=True)
class CheckSettings(Reporting, Talking, Batched, OnModel):
    """Which model is checked, on how many prompts, and where the result goes.

    Attributes:
        most: Prompts of a circuit, at most.
        seed: Root seed of the prompts. Default: the next that audit and lock have not used.
        junit: XML file of test cases, as JUnit writes it.
        gate: Exit with code 3 if a circuit is lost or its task unsolved.
    """

    most: Annotated[int, INPUTS, at_least(25)] = 400
    seed: Annotated[int | None, RUNNING, at_least(0)] = None
    junit: Annotated[Path | None, OUTPUT] = None
    gate: Annotated[bool, RUNNING] = False


@command(TRUST, example="assay check circuits.lock.toml --model checkpoint --gate")
def check(lock: Annotated[Path, Parameter(name="LOCK")], /, *, settings: CheckSettings) -> int:
    """Check whether a model still carries locked circuits.

    Each is kept, lost, unsolved or open, with an error of 5 % over the file.

    Args:
        lock: What `assay lock` wrote.
        settings: The options.
    """
    from assay.circuits import write_atomically
    from assay.pipeline.check import check_lock
    from assay.pipeline.lock import read_lock

    check_outputs(settings, settings.junit)
    read = read_lock(lock)
    with progress_on_stderr() as progress:
        result = call(settings, check_lock, settings.load_model(), read, progress=progress)
    document = result.to_dict()
    files = settings.files(document, "check.json")
    files["tests"] = File(
        settings.path_of(settings.junit, "check.xml"), lambda path: write_atomically(path, result.junit())
    )
    settings.deliver(document, files)
    if settings.gate and result.failed:
        say(f"gate: {', '.join(result.failed)} lost or unsolved")
        return GATE_FIRED
    return 0
