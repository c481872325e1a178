"""Settings that mean the same in every command: one declaration of name, default, range and help each.

A command inherits the groups it needs and adds its own; of several bases, a help page shows the last first.
Nothing here imports the rest of the package.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from assay.app.names import EMBEDDED, completing, one_of


if TYPE_CHECKING:
    import torch

DEFAULT_STORE = Path("assay-out")

INPUTS, CIRCUIT, DISCOVERY, STORED, OUTPUT, RUNNING = (
    Parameter(group=Group(name, sort_key=place))
    for name, place in (
        ("Model and inputs", 10),
        ("Circuit", 20),
        ("Discovery", 30),
        ("Results", 70),
        ("Output", 80),
        ("Running", 90),
    )
)


def own_group(name: str, place: int = 40) -> Parameter:
    """A group of a command's own options, after those of the inputs and of discovery."""
    return Parameter(group=Group(name, sort_key=place))


def at_least(low: int, most: int | None = None) -> Parameter:
    """A range."""
    return Parameter(validator=Number(gte=low, lte=most))


def _steps(type_: Any, tokens: Sequence[Token]) -> int | str:
    """A count, or `auto`."""
    del type_
    value = tokens[0].value
    if value != "auto" and not (value.isdecimal() and int(value) > 0):
        raise ValueError(f"{value!r} is not valid; give a count of at least 1, or auto")
    return value if value == "auto" else int(value)


DType = Literal["auto", "float32", "float64", "bfloat16", "float16"]
Count = Annotated[int, at_least(1)]
STEPS = Parameter(converter=_steps, completer=lambda context: ["auto"], metavar="COUNT|auto")
Steps = int | Literal["auto"]


# Fields that mean something else, or nothing, to the function that a command calls.
_OF_THE_COMMAND = frozenset(
    ("model", "device", "dtype", "store", "out", "save", "report", "config", "quiet", "json", "traceback")
)


def keywords(settings: object, function: Callable[..., Any], /, **more: Any) -> dict[str, Any]:
    """The settings that a function takes as keywords of the same names, and other arguments for it.

    Args:
        settings: An instance of a dataclass of this module or of a command.
        function: What will be called.
        more: Arguments under names that are not fields, or with another value.
    """
    parameters = signature(function).parameters.values()
    taken = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} - _OF_THE_COMMAND
    return {name: value for name, value in vars(settings).items() if name in taken} | more


# ---- running and output -------------------------------------------------------------------------


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Quiet:
    """How a command runs.

    Attributes:
        quiet: Print no progress and no notes on stderr.
        config: TOML file of options.
        traceback: Show the traceback of an error.
    """

    quiet: Annotated[bool, RUNNING] = False
    config: Annotated[Path | None, RUNNING] = None
    traceback: Annotated[bool, RUNNING] = False


@dataclass(frozen=True, kw_only=True)
class Talking(Quiet):
    """How a command runs and prints.

    Attributes:
        json: Print one JSON document and nothing else on stdout.
    """

    json: Annotated[bool, OUTPUT] = False


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A plan instead of a run.

    Attributes:
        dry_run: Print the plan and its cost in passes; run nothing.
    """

    dry_run: Annotated[bool, RUNNING] = False


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """Where randomness starts.

    Attributes:
        seed: Root seed of all random draws.
    """

    seed: Annotated[int, RUNNING, at_least(0)] = 0


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a model runs.

    Attributes:
        device: cpu, cuda, cuda:1, ... auto picks the first accelerator, else cpu.
    """

    device: Annotated[str, RUNNING, one_of("auto", "cpu", "cuda")] = "auto"

    def place(self, tell: Callable[[str], None]) -> str | None:
        """The device to use, which must exist; None leaves a model on the CPU.

        Args:
            tell: Hears which accelerator `auto` takes.

        Raises:
            InputError: Naming the devices there are.
        """
        from assay.pipeline import check_options

        if self.device != "auto":
            check_options(device=self.device)
            return self.device
        import torch

        kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if kind is None or kind.type == "mps":  # which has no float64
            return None
        tell(f"device: {kind.type}:0")
        return f"{kind.type}:0"


@dataclass(frozen=True, kw_only=True)
class Batched(Placed):
    """Where a model runs, and how much at once.

    Attributes:
        batch_size: Prompts or images per pass. Default: by free memory.
    """

    batch_size: Annotated[Count | None, RUNNING] = None


@dataclass(frozen=True, kw_only=True)
class Storing:
    """Where results are kept.

    Attributes:
        store: Results store: a directory, or postgresql+psycopg://USER@HOST/DATABASE. Default: assay-out.
    """

    # Text, not Path: a path would take slashes from a URL.
    store: Annotated[str | None, STORED, Parameter(metavar="DIR|URL")] = None


@dataclass(frozen=True, kw_only=True)
class Computing(Talking, DryRun, Storing):
    """How a command that computes runs and prints, and where it keeps what it computed."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Files for the result.

    Attributes:
        out: Output directory; every file gets its usual name there.
        save: File for the result.
    """

    out: Annotated[Path | None, OUTPUT] = None
    save: Annotated[Path | None, OUTPUT] = None

    def path_of(self, file: Path | None, name: str) -> Path | None:
        """Where a file goes: where its own option says, else under a name in the output directory."""
        return self.out / name if file is None and self.out is not None else file


@dataclass(frozen=True, kw_only=True)
class Reporting(Saving):
    """Files for the result and its page.

    Attributes:
        report: HTML page to write.
    """

    report: Annotated[Path | None, OUTPUT] = None


# ---- model and inputs ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Typed:
    """Which numbers a model computes with.

    Attributes:
        dtype: auto (float32), float32, float64, bfloat16 or float16; float64 for exactness.
    """

    dtype: Annotated[DType, RUNNING] = "auto"

    @property
    def torch_dtype(self) -> "torch.dtype | None":
        """The number type; None leaves it to the loader."""
        import torch

        return None if self.dtype == "auto" else getattr(torch, self.dtype)


@dataclass(frozen=True, kw_only=True)
class OnModel(Typed):
    """The model.

    Attributes:
        model: mini, colour-digits, planted:NAME, a hub id, or a directory by save_pretrained.
    """

    model: Annotated[str, INPUTS, one_of(*EMBEDDED)] = "mini"


@dataclass(frozen=True, kw_only=True)
class OnTask(OnModel):
    """The model and what it does.

    Attributes:
        task: Registered task, JSONL file of prompts, or colour-digits.
    """

    task: Annotated[str, INPUTS, completing("tasks")] = "ioi"


@dataclass(frozen=True, kw_only=True)
class Counted:
    """How many prompts.

    Attributes:
        n: Prompts to draw. Default: 200; all rows of a file.
    """

    n: Annotated[Count | None, INPUTS] = None


@dataclass(frozen=True, kw_only=True)
class SkipBad:
    """What happens to images that cannot be read.

    Attributes:
        skip_bad: Skip and count image files that cannot be decoded.
    """

    skip_bad: Annotated[bool, INPUTS] = False


@dataclass(frozen=True, kw_only=True)
class OnImages(SkipBad):
    """Images instead of a task.

    Attributes:
        images: Images for an image classifier, instead of --task: shapes:DOMAIN, colour-digits:AGREEMENT, an
            .npz file, or a folder of one domain.
    """

    images: Annotated[str | None, INPUTS] = None


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Files for the two halves.

    Attributes:
        discover_on: JSONL file to discover the circuit on; --task is then used to measure.
        measure_on: JSONL file to measure on; --task is then used to discover.
    """

    discover_on: Annotated[str | None, INPUTS] = None
    measure_on: Annotated[str | None, INPUTS] = None


# ---- discovery ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What is measured of the output.

    Attributes:
        objective: Loss that defines the behaviour. Default: the task's own.
    """

    objective: Annotated[str | None, DISCOVERY, completing("objectives")] = None


@dataclass(frozen=True, kw_only=True)
class Ablating(Behaviour):
    """What is measured, and what a cut edge carries.

    Attributes:
        ablation: Value that replaces a removed edge. Default: the task's own.
    """

    ablation: Annotated[str | None, DISCOVERY, completing("ablations")] = None


@dataclass(frozen=True, kw_only=True)
class Discovering(Behaviour):
    """How a circuit is discovered.

    Attributes:
        method: Discovery method; `assay list methods` lists them.
        steps: Number of quadrature nodes of the method, or auto.
    """

    method: Annotated[str, DISCOVERY, completing("methods")] = "eap-ig-inputs"
    steps: Annotated[Steps, DISCOVERY, STEPS] = 5


@dataclass(frozen=True, kw_only=True)
class Sizing(Discovering):
    """How a circuit is discovered and how large it becomes.

    Attributes:
        target: Normalised faithfulness that a discovered circuit must reach.
    """

    target: Annotated[float, DISCOVERY] = 0.9


@dataclass(frozen=True, kw_only=True)
class OfCircuit(Storing, Seeded, Batched, Sizing, Counted, OnModel):
    """The circuit that is judged, given or discovered.

    Attributes:
        circuit: Circuit file, published circuit, heads as a2.h3,a3.h0, head JSON, or id in the store.
            Default: discover one, as audit does.
    """

    circuit: Annotated[str | None, CIRCUIT] = None


@dataclass(frozen=True, kw_only=True)
class OfEdges(OfCircuit):
    """The circuit that is judged, or the size of a discovered one.

    Attributes:
        edges: Number of edges of a discovered circuit, instead of --target.
    """

    edges: Annotated[Count | None, CIRCUIT] = None


@dataclass(frozen=True, kw_only=True)
class Independent:
    """What is known of the rows of a file.

    Attributes:
        independent: Treat rows as independent samples not used for discovery, and compute certificates.
    """

    independent: Annotated[bool, INPUTS] = False
