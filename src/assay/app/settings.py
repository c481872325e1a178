"""Settings that commands share, each declared once: devices, models, inputs, circuits.

A command's settings are one frozen dataclass made of these, of those of `delivery`, and of fields of its own.
The `Attributes` of the docstrings are the help; of several bases, a help page shows the last first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from assay.app.delivery import DEFAULT_STORE, Computing, note
from assay.app.options import (
    CIRCUIT,
    DISCOVERY,
    INPUTS,
    RARE,
    RUNNING,
    STEPS,
    Count,
    DType,
    Steps,
    at_least,
    call,
)
from assay.core.errors import InputError


if TYPE_CHECKING:
    import torch

    from assay.circuits import Circuit, HeadCircuit
    from assay.execution import CircuitRuns
    from assay.graph import Graph
    from assay.models import Model
    from assay.pipeline.prompts import Division
    from assay.tasks import Task


# ---- where it computes --------------------------------------------------------------------------


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

    device: Annotated[str, RUNNING] = "auto"

    def place(self, tell: Callable[[str], None] = note) -> str | None:
        """The device to use, which must exist; None leaves a model on the CPU.

        Args:
            tell: Hears which accelerator `auto` takes. Default: stderr, unless quiet.

        Raises:
            InputError: Naming the devices there are.
        """
        from assay.models.loading import accelerator, check_device

        if self.device != "auto":
            check_device(self.device)
            return self.device
        device = accelerator()
        if device is None:
            return None
        tell(f"device: {device}")
        return str(device)


@dataclass(frozen=True, kw_only=True)
class Mapped(Placed):
    """Where the parts of a model go.

    Attributes:
        device_map: Spread the model over devices: auto, balanced or sequential.
    """

    device_map: Annotated[str | None, RARE] = None

    @property
    def spreads(self) -> bool:
        """Whether a model is dealt to several devices, so that the map says where it all goes."""
        return self.device_map is not None

    def place(self, tell: Callable[[str], None] = note) -> str | None:
        """The device to use; as it was given where the model is spread."""
        return self.device if self.spreads else super().place(tell)


@dataclass(frozen=True, kw_only=True)
class Batched(Placed):
    """Where a model runs, and how much at once.

    Attributes:
        batch_size: Prompts or images per pass. Default: by free memory.
    """

    batch_size: Annotated[Count | None, RARE] = None


@dataclass(frozen=True, kw_only=True)
class RunningModels(Computing, Seeded, Batched):
    """How a command that runs models runs and prints, and where it keeps what it computed."""


@dataclass(frozen=True, kw_only=True)
class Typed:
    """Which numbers a model computes with.

    Attributes:
        dtype: Number type of the weights; auto: float32 on a CPU, the checkpoint's on an accelerator.
    """

    dtype: Annotated[DType, RARE] = "auto"

    @property
    def dtype_name(self) -> str | None:
        """The name of the number type; None leaves it to the loader."""
        return None if self.dtype == "auto" else self.dtype

    @property
    def torch_dtype(self) -> "torch.dtype | None":
        """The number type; None leaves it to the loader."""
        from assay.models.loading import number_type

        return number_type(self.dtype_name)


@dataclass(frozen=True, kw_only=True)
class ImageWorkers:
    """Where images are decoded.

    Attributes:
        workers: Threads that decode images; 0 for none. Default: one per core, at most 8.
        exif: Turn images as their EXIF orientation says (turn), or leave them as stored (ignore).
    """

    workers: Annotated[int | None, RARE, at_least(0)] = None
    exif: Annotated[Literal["turn", "ignore"], RARE] = "turn"


# ---- model and inputs ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OnModel(Typed, Placed):
    """The model.

    Attributes:
        model: mini, colour-digits, planted:NAME, a hub id, or a directory by save_pretrained.
        revision: Branch, tag or commit of a hub id. Default: its main branch.
    """

    model: Annotated[str, INPUTS] = "mini"
    revision: Annotated[str | None, RARE] = None

    def load_model(self) -> "Model":
        """The model on its device, with numbers of the type asked for."""
        from assay.models import load_model

        return call(self, load_model, self.model, device=self.place(), dtype=self.torch_dtype)


@dataclass(frozen=True, kw_only=True)
class OnAnyModel(OnModel, Mapped):
    """The model, with options that few models need.

    Attributes:
        post_norm: Norms behind branches (Gemma 2 and 3, OLMo 2) in ablated runs: exact or eap-ig.
        bos: Begin prompts with the BOS token, or do not. Default: as the tokenizer does.
    """

    post_norm: Annotated[str | None, RARE] = None
    bos: Annotated[bool | None, RARE, Parameter(negative="--no-bos")] = None

    def load_model(self) -> "Model":
        """The model, with norms of the treatment asked for."""
        return super().load_model().treating(self.post_norm)


@dataclass(frozen=True, kw_only=True)
class OnClassifier(Placed):
    """A deployed image classifier.

    Attributes:
        model: Directory, hub id or timm:NAME. Default: the best of the embedded zoo.
    """

    model: Annotated[str | None, INPUTS] = None

    def load_classifier(self, tell: Callable[[str], None] = note) -> "tuple[Model, str | None]":
        """The model, and the style of shapes that an embedded one was trained on; None for your own.

        Args:
            tell: Hears which accelerator is taken.

        Raises:
            InputError: If it reads text.
        """
        from assay.models import load_model
        from assay.zoo import Zoo

        device = self.place(tell)
        if self.model is None:
            zoo = Zoo.embedded()
            best = max(zoo.keys, key=lambda key: zoo.entry(key).id_accuracy or 0.0)
            return load_model(str(zoo.folder(best)), device=device), zoo.id_domain
        model = load_model(self.model, device=device)
        if not model.vision:
            raise InputError(f"{self.model} reads text; this command takes image classifiers")
        return model, None


@dataclass(frozen=True, kw_only=True)
class Prompted(OnAnyModel):
    """How prompts are given to the model.

    Attributes:
        chat: Make each prompt the user's turn of the tokenizer's chat template.
        answer_tokens: one, or first: answers of several tokens are scored by their first.
        where: Field of a file that must have a value, FIELD=VALUE; repeat for several.
    """

    chat: Annotated[bool, RARE] = False
    answer_tokens: Annotated[str, RARE] = "one"
    where: Annotated[tuple[str, ...], RARE] = ()

    @property
    def prompt_rules(self) -> dict[str, Any]:
        """What `prompted` is asked for: all that is not the default."""
        names = ("bos", "chat", "answer_tokens")
        rules = {name: value for name in names if (value := getattr(self, name)) != getattr(Prompted, name)}
        return rules | ({"where": dict(each.split("=", 1) for each in self.where)} if self.where else {})

    def load_model(self) -> "Model":
        """The model, with what holds for its prompts."""
        from assay.models import prompted

        model = super().load_model()
        return prompted(model, **self.prompt_rules) if self.prompt_rules else model


@dataclass(frozen=True, kw_only=True)
class OnTask(OnModel):
    """The model and what it does.

    Attributes:
        task: Registered task, JSONL or parquet file of prompts, or colour-digits.
    """

    task: Annotated[str, INPUTS] = "ioi"


@dataclass(frozen=True, kw_only=True)
class SkipBad(ImageWorkers):
    """What happens to images that cannot be read.

    Attributes:
        skip_bad: Skip and count image files that cannot be decoded.
    """

    skip_bad: Annotated[bool, RARE] = False


@dataclass(frozen=True, kw_only=True)
class OnImages:
    """Images instead of a task.

    Attributes:
        images: Images for an image classifier, instead of --task: shapes:DOMAIN, colour-digits:AGREEMENT, or
            a folder of one domain.
    """

    images: Annotated[str | None, INPUTS] = None


@dataclass(frozen=True, kw_only=True)
class OnAnyTask(OnTask, Prompted):
    """The model, its task, and how prompts are given to it."""


@dataclass(frozen=True, kw_only=True)
class OnAnyImages(OnImages, SkipBad):
    """Images instead of a task, and what happens to those that cannot be read."""


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

    objective: Annotated[str | None, RARE] = None


@dataclass(frozen=True, kw_only=True)
class Ablating(Behaviour):
    """What is measured, and what a cut edge carries.

    Attributes:
        ablation: Value that replaces a removed edge. Default: the task's own.
        reference: Task or JSONL file whose prompts --ablation mean, or mean-positional, is taken over.
            Default: those that are run.
    """

    ablation: Annotated[str | None, DISCOVERY] = None
    reference: Annotated[str | None, RARE] = None

    def __post_init__(self) -> None:
        if self.reference is not None:
            if self.ablation is None or ":" in self.ablation:
                raise InputError("--reference says what a mean is taken over; give --ablation mean with it")
            object.__setattr__(self, "ablation", f"{self.ablation}:{self.reference}")


@dataclass(frozen=True, kw_only=True)
class Quadrature:
    """Where the nodes of an integral lie.

    Attributes:
        quadrature: Quadrature rule: midpoint, left (as published), right or gauss-legendre.
    """

    quadrature: Annotated[str, RARE] = "midpoint"


@dataclass(frozen=True, kw_only=True)
class Discovering(Behaviour):
    """How a circuit is discovered.

    Attributes:
        method: Discovery method; `assay list methods` lists them. Default: eap-ig-inputs; where a size is
            searched for, the one of two-target and eap-ig-inputs that needs fewer edges.
        steps: Number of quadrature nodes of the method.
    """

    method: Annotated[str | None, DISCOVERY] = None
    steps: Annotated[Steps, DISCOVERY, STEPS] = 5


@dataclass(frozen=True, kw_only=True)
class Sizing(Discovering):
    """How a circuit is discovered and how large it becomes.

    Attributes:
        target: Normalised faithfulness that a discovered circuit must reach; its interval lies in T to 2 - T.
        target_kl: Share of the output distribution that it must keep; 0: any.
    """

    target: Annotated[float, DISCOVERY] = 0.9
    target_kl: Annotated[float, DISCOVERY] = 0.9


@dataclass(frozen=True, kw_only=True)
class JudgedCircuit(Computing, Seeded, OnModel):
    """The circuit that is judged, given or discovered as an audit does.

    Attributes:
        n: Prompts in each half, to discover on and to measure on; with --circuit, in total. Default: 200; all
            rows of a file.
        circuit: Circuit file, hf://OWNER/NAME, published circuit, heads as a2.h3,a3.h0, head JSON, or id in
            the store. Default: discover one, as audit does.
        top: Cut a discovered circuit from this many of the strongest edges. Default: as an audit.
    """

    n: Annotated[Count | None, INPUTS] = None
    circuit: Annotated[str | None, CIRCUIT] = None
    top: Annotated[Count | None, CIRCUIT] = None

    def named_circuit(self, graph: "Graph") -> "Circuit | HeadCircuit | None":
        """The circuit of `--circuit`, as it is described; None where one is to be discovered."""
        from assay.pipeline.circuits import read_circuit

        if self.circuit is None:
            return None
        if self.top is not None:
            raise InputError(
                "--top sets the size of a discovered circuit, but --circuit gives a circuit; use only one"
            )
        exists = self.store is not None or DEFAULT_STORE.exists()
        return read_circuit(self.circuit, graph, lambda: self.existing_store() if exists else None)

    def edge_circuit(self, graph: "Graph") -> "Circuit | None":
        """`named_circuit` as the edges to keep."""
        from assay.circuits import Circuit, HeadCircuit

        circuit = self.named_circuit(graph)
        return Circuit.from_heads(graph, circuit) if isinstance(circuit, HeadCircuit) else circuit

    def runs(
        self, model: "Model", prompts: "Task | Division | str", circuit: "Circuit | None" = None, **more: Any
    ) -> "CircuitRuns":
        """Runs of a circuit on prompts; without one, of the circuit that these settings discover."""
        from assay.pipeline.sizing import runs_of

        return call(self, runs_of, model, prompts, circuit, **more)
