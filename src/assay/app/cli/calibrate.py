"""`assay calibrate`: the sixteen gates on the measurements of a circuit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import GATE_FIRED, TRUST, command
from assay.app.delivery import Reporting, check_outputs, progress_on_stderr, say
from assay.app.options import DISCOVERY, INPUTS, RARE, RUNNING, Count, at_least, call, own_group
from assay.app.settings import Behaviour, HeldOut, JudgedCircuit, OnTask, RunningModels
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.discovery.heads.table import AnyCircuit
    from assay.models import Model
    from assay.pipeline.gates import StoredCalibration
    from assay.pipeline.prompts import DrawnPrompts

GATES = own_group("Gates")


@dataclass(frozen=True, kw_only=True)
class CalibrateSettings(Reporting, RunningModels, Behaviour, JudgedCircuit, HeldOut, OnTask):
    """Which circuit is judged, and what the gates compare it with.

    Attributes:
        against: Another task for C17, with its own discovered circuit; repeat for several.
        published: Published head circuit to compare with, for C14.
        groups: Field of the prompts that defines the groups of C13 and S3, e.g. object.
        random_sets: Random head sets of each kind, for C36.
        gate: Exit with code 3 if a gate fails with confidence.
        prompts: Prompts of the measurement table; the rest of a file forms the pool.
        ablation: Value of removed parts. Default: mean for heads, the task's own for edges.
    """

    against: Annotated[tuple[str, ...], GATES] = ()
    published: Annotated[str | None, GATES] = None
    groups: Annotated[str | None, GATES] = None
    random_sets: Annotated[int, RARE, at_least(0)] = 0
    gate: Annotated[bool, RUNNING] = False
    prompts: Annotated[Count, INPUTS] = 100
    ablation: Annotated[str | None, DISCOVERY] = None


@command(TRUST, example="assay calibrate C11 C13 --circuit circuit.safetensors --gate")
def calibrate(*gates: Annotated[str, Parameter(name="GATE")], settings: CalibrateSettings) -> int:
    """Judge whether a circuit's measurements can be trusted.

    Sixteen checks, each with a published and a rigorous verdict.

    Args:
        gates: Keys or codes of single gates, e.g. C11. Default: all.
        settings: The options.
    """
    from assay.analyses.calibration import find_gate
    from assay.discovery.heads import INTERVENTIONS
    from assay.pipeline.stage import check_options

    call(settings, check_options, ablation=None)
    if settings.ablation is not None:
        INTERVENTIONS[settings.ablation]
    for other in settings.against:
        check_options(task=other)
        if other.replace("_", "-") == settings.task.replace("_", "-"):
            raise InputError(f"--against {other} is the task itself; name another, see `assay list tasks`")
    chosen = [find_gate(name).key for name in gates] if gates else None
    model = settings.load_model()
    circuit = settings.named_circuit(model.graph)
    check_outputs(settings)
    result = _run(settings, model, circuit, chosen)
    files = settings.files(result.document, "calibration.json")
    settings.deliver(result.document, files, identity=result.document["id"], cached=result.cached)
    if settings.gate and result.failed:
        say(f"gate: {', '.join(result.failed)} failed with confidence")
        return GATE_FIRED
    return 0


def _run(
    settings: CalibrateSettings, model: "Model", circuit: "AnyCircuit | None", gates: list[str] | None
) -> "StoredCalibration":
    """The gates on a circuit that is given, or on one that is discovered here."""
    from assay.analyses.calibration.battery import gates_on_same_prompts
    from assay.circuits import load_head_circuit
    from assay.execution import ABLATIONS
    from assay.pipeline.gates import calibrate_stored, usual_prompts
    from assay.pipeline.prompts import draw_prompts, prompts_to_measure

    published = None if settings.published is None else load_head_circuit(settings.published)
    store = settings.open_store()
    seed, drawn = settings.seed, settings.prompts
    # More ablations are defined for heads than for edges.
    ablation = settings.ablation if settings.ablation in ABLATIONS else None
    with progress_on_stderr() as progress:

        def discovered(draws: "DrawnPrompts", top: int | None) -> "AnyCircuit":
            return settings.runs(
                model, draws, top=top, ablation=ablation, store=store, progress=progress
            ).circuit

        if circuit is None:
            draws = call(settings, draw_prompts, model, settings.task)
            circuit, measured = discovered(draws, settings.top), draws.measured
        else:
            measured = call(settings, prompts_to_measure, model, settings.task, drawn=drawn, circuit=circuit)
        draws_of_others = [draw_prompts(model, other, n=settings.n, seed=seed) for other in settings.against]
        others = [(each.measured, discovered(each, None)) for each in draws_of_others]
        task, pool = usual_prompts(measured, drawn, seed=seed)
        return calibrate_stored(
            circuit,
            model,
            task,
            pool=pool,
            same_prompts=gates_on_same_prompts(circuit, measured, others),
            against=[(usual_prompts(prompts, drawn, seed=seed)[0], its) for prompts, its in others],
            published=published,
            gates=gates,
            groups=settings.groups,
            random_sets=settings.random_sets,
            objective=settings.objective,
            ablation=settings.ablation,
            batch_size=settings.batch_size,
            store=store,
            progress=progress,
        )
