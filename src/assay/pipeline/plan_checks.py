"""What a plan names: whether it exists and fits together; names become registered keys."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from assay.analyses.calibration import find_gate
from assay.analyses.generalization.predictor import PREDICTORS
from assay.analyses.worst_case import PROTOCOLS
from assay.core.errors import InputError, UnknownNameError, near_matches, unknown_name
from assay.discovery.edges import EdgeMethod, get_method
from assay.discovery.edges.quadrature import Rule
from assay.metrics import find_metric
from assay.models.loading import EMBEDDED
from assay.models.planted import planted_names
from assay.pipeline.checks import check_options
from assay.pipeline.order import in_order
from assay.pipeline.plan import DEFAULT_TARGET, IMAGES, AttackChoice, MethodChoice, Plan, distinct
from assay.pipeline.worst import sizes
from assay.tasks import TASKS, digits_source, is_shapes


T = TypeVar("T")
PLANTED = "planted"  # begins a model that is planted, and names its own examples


def checked(plan: Plan, origin: str) -> Plan:
    """The plan with registered keys for names, once everything in it exists and fits together."""

    def at(place: str, check: Any, /, *arguments: Any, **named: Any) -> Any:
        try:
            return check(*arguments, **named)
        except InputError as error:
            raise type(error)(f"{origin}: {place}: {error}") from error

    product = {"models": plan.models, "tasks": plan.tasks, "methods": plan.methods}
    missing = [key for key, values in product.items() if not values]
    if missing and (len(missing) < len(product) or not (plan.job or plan.rank)):
        raise InputError(
            f"{origin}: {missing[0]} is missing; a sweep needs models, tasks and methods, or [[job]]s alone"
        )
    if plan.sizes and plan.target is not None:
        raise InputError(f"{origin}: sizes and target exclude each other; give one of them")
    _check_shape(plan, origin)
    changes: dict[str, Any] = {
        "tasks": tuple(at("tasks", _task, name, plan) for name in plan.tasks),
        "metrics": tuple(at("metrics", find_metric, name).key for name in plan.metrics),
        "gates": tuple(at("gates", find_gate, name).key for name in plan.gates),
        "methods": tuple(_canonical(each, at) for each in plan.methods),
    }
    for name in plan.models:
        at("models", check_model, name, plan)
    at("ablation", check_options, ablation=plan.ablation)
    at("objective", check_options, objective=plan.objective)
    if plan.attack is not None:
        at("[attack] protocol", _check_attack, plan.attack)
    if plan.rank is not None:
        for metric in plan.rank.metrics:
            at("[rank] metrics", PREDICTORS.__getitem__, metric)
        for images in plan.rank.images:
            at("[rank] images", is_shapes, images)
    jobs = []
    for place, job in enumerate(plan.job, start=1):
        where = f"[[job]] {place}"
        at(f"{where} model", check_model, job.model, plan)
        task = at(f"{where} task", _task, job.task, plan)
        metrics = tuple(at(f"{where} metrics", find_metric, name).key for name in job.metrics)
        if not _is_file(plan.folder / job.circuit):
            raise InputError(f"{origin}: {where} circuit: {plan.folder / job.circuit} does not exist")
        jobs.append(job.model_copy(update={"task": task, "metrics": at(where, _unrepeated, metrics)}))
    changes["job"] = tuple(jobs)
    for key in ("tasks", "metrics", "gates", "methods"):
        at(key, _unrepeated, changes[key])
    if not plan.sizes and plan.target is None:
        changes["target"] = DEFAULT_TARGET
    return plan.model_copy(update=changes)


def _is_file(path: Path) -> bool:
    """Whether a file is there; a name that no file can have is none."""
    try:
        return path.is_file()
    except OSError:  # too long for the file system
        return False


def _unrepeated(values: tuple[T, ...]) -> tuple[T, ...]:
    try:
        return distinct(values)
    except ValueError as error:
        raise InputError(str(error)) from error


def _canonical(choice: MethodChoice, at: Any) -> MethodChoice:
    chosen = at("methods", get_method, choice.method, **choice.options)
    at("methods", _check_name, "quadrature", choice.quadrature, get_args(Rule))
    at("methods", _check_steps, chosen, choice)
    return choice.model_copy(update={"method": chosen.key})


def _check_steps(method: EdgeMethod, choice: MethodChoice) -> None:
    """Refuse steps and quadrature of a method that has no use for them: its numbers would not change."""
    given = [name for name in ("steps", "quadrature") if name in choice.model_fields_set]
    if not given or method.uses_steps():
        return
    options = [each.name for each in dataclasses.fields(method)]
    takes = f"its options are {', '.join(options)}" if options else "it has no options"
    raise InputError(f"method {method.key!r} does not use {' and '.join(given)}, remove it; {takes}")


def _check_name(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise unknown_name(kind, name, known)


def _check_attack(attack: AttackChoice) -> None:
    protocol = attack.protocol or "all"
    # The pairs of a file are what a file has anyway, and a plan may name other tasks beside it.
    _check_name("protocol", protocol, [name for name in PROTOCOLS if name != "file"])
    sizes(protocol, n_clean=attack.n_clean, n_corrupted=attack.n_corrupted, n_pairs=attack.n_pairs)


def _task(name: str, plan: Plan) -> str:
    """A registered key, or a file or source of images as it is named."""
    own = name == PLANTED and all(model.startswith(f"{PLANTED}:") for model in plan.models)
    if name.startswith(IMAGES) or digits_source(name) is not None or own:
        return name
    if Path(name).suffix == ".jsonl":
        if not (plan.folder / name).is_file():
            raise InputError(f"{plan.folder / name} does not exist")
        return name
    check_options(task=name)
    return name if name in TASKS else name.replace("_", "-")


def check_model(name: str, plan: Plan) -> None:
    """Refuse a name that no model can have: an unknown planted one, a slip of an embedded one.

    Hub ids cannot be told from slips without asking the hub; those with an owner, and directories, pass.

    Raises:
        UnknownNameError: Naming what was probably meant.
    """
    known = [*EMBEDDED, *(f"planted:{each}" for each in planted_names())]
    if name in known or name.startswith("timm:") or (plan.folder / name).is_dir():
        return
    near = near_matches(name, known, limit=1)
    if name.startswith("planted:"):
        raise unknown_name("model", name, known)
    if "/" not in name and near and _alike(name, near[0]):
        raise UnknownNameError(
            f"unknown model {name!r}; did you mean {near[0]!r}? (write a hub id of that name with its owner)"
        )


def _alike(name: str, known: str) -> bool:
    """Whether a name is a slip of a known one: as long, but for one letter, and mostly the same letters."""
    common = sum(min(name.count(letter), known.count(letter)) for letter in set(name))
    return abs(len(name) - len(known)) <= 1 and common >= len(known) - 1


def _check_shape(plan: Plan, origin: str) -> None:
    """Names of single jobs are unique, exist where they are needed, and need no circle of each other."""
    names = [job.name for job in plan.job]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{origin}: two [[job]]s are named {name!r}; give each its own name")
    for place, job in enumerate(plan.job, start=1):
        for need in job.needs:
            if need not in names:
                near = near_matches(need, names)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
                raise UnknownNameError(f"{origin}: [[job]] {place} needs: no job {need!r}; {hint}")
    try:
        in_order({job.name: job.needs for job in plan.job})
    except InputError as error:
        raise InputError(f"{origin}: {error}") from error
