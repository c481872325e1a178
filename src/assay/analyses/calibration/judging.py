"""`calibrate`: any gate on what a user holds, with one adapter per gate from objects to its arrays."""

import inspect
from collections.abc import Mapping
from typing import Any

from assay.analyses.calibration._adapters import ADAPTERS, Adapter, all_arrays, as_they_came, groups_of_task
from assay.analyses.calibration._rows import estimate
from assay.analyses.calibration._things import Things, array, flags, is_heads, labels, task_name
from assay.analyses.calibration.gate import find_gate
from assay.circuits import Circuit, HeadCircuit
from assay.core.errors import InputError, check_name
from assay.core.measurement import Measurement
from assay.core.verdict import Verdict
from assay.discovery.heads import HeadScores
from assay.tasks import PairTask


_LABELS = ("groups", "lengths", "unit_id", "strata", "effect_units", "pair_id", "sample_id", "prompt_hash")
_MEMBERS = ("members", "baseline_members", "published_members", "predicted")


def calibrate(gate: str, *things: Any, **options: Any) -> Verdict:
    """Judge by one gate whether measurements, head scores or circuits can be trusted.

    What each gate takes after its name; things in brackets may be left out, and what a list holds may also be
    given one by one. Every gate takes the arrays of its own function (`assay.analyses.calibration`), too.

    | gate | code | takes |
    |---|---|---|
    | `bootstrap-stability` | C11 | a measurement [, its circuit] |
    | `convergent-validity` | C12 | two or more head scores, or {method: scores} [, a circuit] |
    | `measurement-invariance` | C13 | a measurement [, its circuit], with `groups=` or `task=` |
    | `derived-metrics` | C14 | a circuit, head scores [, compositions, measurements, a prediction] |
    | `reliability-suite` | C16 | a measurement of a pool, or of each sample; drop effects; a circuit |
    | `discriminant-validity` | C17 | {task: activation-patching scores} and {task: circuit} |
    | `nomological-validity` | C23 | a head circuit: the object, a shipped name, or a JSON file |
    | `seed-variance` | C30 | a measurement of a pool [, of another circuit] [, the circuit] |
    | `incremental-validity` | C36 | measurements of circuit and baseline [, of others] [, both circuits] |
    | `inter-rater` | F59 | two or more head scores, or {rater: scores} [, a circuit] |
    | `distributional-characterization` | S1 | direct attributions, a circuit [, head outputs] |
    | `distributional-stability` | S3 | direct attributions, a circuit |
    | `multiple-comparisons` | M93 | {gate: verdict} or {task: {gate: verdict}}, measurements, p-values |
    | `ablation-invariance` | M98 | measurements under two or more ablations [, their circuit] |
    | `method-invariance` | E1b | the same, usually under zero, mean and noise |
    | `certified-stability` | M3b | drop effects, a circuit |

    A measurement is one of faithfulness or completeness, made by `assay.measure`; head scores are those of
    `assay.discover_heads`; a circuit is a `Circuit`, a `HeadCircuit`, one flag per head, or (layer, head)
    pairs beside head scores. An edge circuit counts with the heads of its connected form.

    - C11, C13, C30, M98, E1b: `inner` follows from the measurement; a circuit beside it, so that an empty or
      full one is flagged.
    - C12, F59: names are those of the scores, `C10` for learning coefficients (so that `llc_direction` finds
      them). Prompts count where every method has scores per prompt; then all must be of the same prompts.
    - C13: `groups` is an array, or the name of a field of `task=`. With a task alone its field `template`,
      `type`, `category`, `class`, `domain` or `corruption` (or the same with `_id`) is used, else thirds of
      the token lengths.
    - C14: rows are found by the names of the scores: `activation-patching` (d'), `llc...` (sign reversed),
      `attribution-patching` (AUROC of magnitudes), `ov-spectral-norm`, `ov-sv-entropy`; `faithfulness`,
      `completeness`, `minimality` and `scrub-recovery` measurements; composition with a `HeadCircuit`.
    - C16: one measurement is a pool, dealt into three blocks; several are samples.
    - C17: patching scores come with the gaps that normalise them, so that effects are ratios of sums.
    - C30: `n_prompts=` is the size of the samples drawn from the pool.
    - M98, E1b: methods are named by the ablation of each measurement, or by the keys of a mapping;
      several of one method with different seeds are draws, which are averaged.
    - C36: a list or {name: measurements} of further baselines; a list of several measurements under one name
      is a group of random sets and gives a p.
    - S1, S3: as published, attributions to the correct answer that ignore the final norm,
      `assay.discover_heads(model, task, "dla", direction="correct", norm="none")`.
    - M93: see `pooled_results` for which p-values count; bare p-values are taken for exact unless `p_kind=`
      says otherwise, and claimed where below 0.05. A bare verdict counts with its published word alone.

    Args:
        gate: Key or published code.
        *things: See the table.
        **options: Options of the gate's function, see its documentation. Labels of prompts (`groups`,
            `unit_id`, `strata`, `pair_id`, ...) may name a field of `task=`; heads (`members`, `predicted`,
            ...) may be circuits. `task` is a task, or the name of the random stream; by default that of what
            is judged.

    Returns:
        The verdict of the gate's function on the arrays.

    Raises:
        UnknownNameError: For an unknown gate, option or field.
        InputError: For things that the gate does not take, that keep nothing per prompt, or that do not
            belong together (another model, other prompts, another circuit).
        ShapeError: For a circuit of another shape than the scores, or arrays that do not fit.

    Example:
        >>> y_full = np.array([2.0, 3.0, 2.5, 3.5] * 10)
        >>> calibrate("C11", y_full, 0.9 * y_full).status
        'pass'
    """
    found = find_gate(gate)
    # A gate of another package takes its arrays as they come.
    adapter = ADAPTERS.get(found.key) or Adapter(takes=f"({', '.join(found.needs)})", read=as_they_came)
    known = found.options | {"task"} | adapter.options
    for name in options:
        check_name(f"option of gate {found.key!r}", name, known)
    task = options.pop("task", None)
    if task is not None and not isinstance(task, PairTask | str):
        raise InputError(f"task is of type {type(task).__name__}; give a task, or its name")
    about = task if isinstance(task, PairTask) else None
    stream = about.name if about else task_name(things) if task is None else str(task)
    given = Things(found.code, adapter.takes, list(things), {}, about, stream)
    given.options = {name: _option(given, name, value) for name, value in options.items()}
    given.agree(adapter.same)
    arrays, more = as_they_came(given) if adapter.plain and all_arrays(given) else adapter.read(given)
    if "groups" in found.options and len(arrays) < 3:
        more |= {name: value for name, value in groups_of_task(given).items() if name in found.options}
    given.none_left()
    if "inner" in more and given.options.get("inner", more["inner"]) != more["inner"]:
        raise InputError(
            f"inner is {given.options['inner']!r}, but the measurement is of {more['inner']}; remove inner"
        )
    chosen = {name: value for name, value in given.options.items() if name not in adapter.options}
    if "task" in found.options:
        more["task"] = stream
    try:
        call = inspect.signature(found.function).bind(*arrays, **(more | chosen))
    except TypeError as error:
        raise InputError(f"{found.code} takes {adapter.takes}; as arrays: {error}") from None
    return found(*call.args, **call.kwargs)


def _option(given: Things, name: str, value: Any) -> Any:
    """An option as the gate's function takes it."""
    if name in _LABELS:
        if isinstance(value, Mapping):
            return {key: labels(name, each, given.task) for key, each in value.items()}
        return labels(name, value, given.task)
    if name in _MEMBERS and (isinstance(value, Circuit | HeadCircuit) or is_heads(value)):
        return flags(given.code, value, next(iter(given.of(HeadScores)), None))
    if isinstance(value, HeadScores):
        return value.flat
    return estimate(value) if isinstance(value, Measurement) else array(value)
