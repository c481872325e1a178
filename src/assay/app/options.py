"""Settings of models, inputs and circuits that mean the same in every command, declared once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.console import note
from assay.app.option_groups import (
    CIRCUIT,
    DEFAULT_STORE,
    DISCOVERY,
    INPUTS,
    RUNNING,
    STEPS,
    Count,
    DType,
    Steps,
    own_group,
)
from assay.app.running import Batched, ImageWorkers, Placed, Seeded, Storing, call
from assay.core.errors import InputError


if TYPE_CHECKING:
    import torch

    from assay.circuits import Circuit, HeadCircuit
    from assay.execution import CircuitRuns
    from assay.graph import Graph
    from assay.models import Model
    from assay.pipeline.prompts import Division
    from assay.tasks import Task


# ---- model and inputs ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Typed:
    """Which numbers a model computes with.

    Attributes:
        dtype: Number type of the weights; auto: float32 on a CPU, the checkpoint's on an accelerator.
    """

    dtype: Annotated[DType, RUNNING] = "auto"

    @property
    def dtype_name(self) -> str | None:
        """The name of the number type; None leaves it to the loader."""
        return None if self.dtype == "auto" else self.dtype

    @property
    def torch_dtype(self) -> "torch.dtype | None":
        """The number type; None leaves it to the loader."""
        from assay.models.placing import number_type

        return number_type(self.dtype_name)


@dataclass(frozen=True, kw_only=True)
class Revised:
    """Which state of a repository is loaded.

    Attributes:
        revision: Branch, tag or commit of a hub id. Default: its main branch.
    """

    revision: Annotated[str | None, INPUTS] = None


@dataclass(frozen=True, kw_only=True)
class Mapped(Placed):
    """Where the parts of a model go.

    Attributes:
        device_map: Spread the model over devices (auto, balanced, sequential), or stream its weights.
    """

    device_map: Annotated[str | None, RUNNING] = None

    @property
    def spreads(self) -> bool:
        """Whether a model is dealt to several devices, so that the map says where it all goes."""
        return self.device_map not in (None, "stream")

    def place(self, tell: Callable[[str], None] = note) -> str | None:
        """The device to use; as it was given where the model is spread."""
        return self.device if self.spreads else super().place(tell)


@dataclass(frozen=True, kw_only=True)
class OnModel(Typed, Revised, Mapped):
    """The model.

    Attributes:
        model: mini, colour-digits, planted:NAME, a hub id, a directory by save_pretrained, or a .gguf file.
        post_norm: Norms behind branches (Gemma 2 and 3, OLMo 2) in ablated runs: exact, frozen or per-target.
        experts: A mixture of experts as one MLP node per block (together), or a node per expert (nodes).
    """

    model: Annotated[str, INPUTS] = "mini"
    post_norm: Annotated[str | None, CIRCUIT] = None
    experts: Annotated[str, CIRCUIT] = "together"

    def load_model(self) -> "Model":
        """The model on its device, with numbers of the type and norms of the treatment asked for."""
        from assay.models import load_model

        loaded = load_model(
            self.model,
            device=self.place(),
            device_map=self.device_map,
            dtype=self.torch_dtype,
            revision=self.revision,
            experts=self.experts,
        )
        return loaded.treating(self.post_norm)


@dataclass(frozen=True, kw_only=True)
class OnClassifier(Typed, Revised, Mapped):
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

        name, style, revision = self.model, None, self.revision
        if name is None:
            zoo = Zoo.embedded()
            best = max(zoo.keys, key=lambda key: zoo.entry(key).id_accuracy or 0.0)
            name, style, revision = str(zoo.folder(best)), zoo.id_domain, None
        loaded = load_model(
            name,
            device=self.place(tell),
            device_map=self.device_map,
            dtype=self.torch_dtype,
            revision=revision,
        )
        if not loaded.vision:
            raise InputError(f"{self.model} reads text; this command takes image classifiers")
        return loaded, style


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """How prompts begin.

    Attributes:
        bos: Begin prompts with the BOS token, or do not. Default: as the tokenizer does.
    """

    bos: Annotated[bool | None, INPUTS, Parameter(negative="--no-bos")] = None


@dataclass(frozen=True, kw_only=True)
class Prompted(Beginning, OnModel):
    """How prompts are given to the model.

    Attributes:
        chat: Make each prompt the user's turn of the tokenizer's chat template.
        answer_tokens: one; or answers of several tokens are scored by their first, or by each.
        lengths: equal; or clean and corrupted prompts of other lengths are aligned.
    """

    chat: Annotated[bool, INPUTS] = False
    answer_tokens: Annotated[str, INPUTS] = "one"
    lengths: Annotated[str, INPUTS] = "equal"

    @property
    def prompt_rules(self) -> dict[str, Any]:
        """What `prompted` is asked for: all that is not the default."""
        names = ("bos", "chat", "answer_tokens", "lengths")
        return {name: value for name in names if (value := getattr(self, name)) != getattr(Prompted, name)}

    def load_model(self) -> "Model":
        """The model, with what holds for its prompts."""
        model = super().load_model()
        if not self.prompt_rules:
            return model
        from assay.models import prompted

        return prompted(model, **self.prompt_rules)


@dataclass(frozen=True, kw_only=True)
class OnTask(Prompted):
    """The model and what it does.

    Attributes:
        task: Registered task, JSONL or parquet file of prompts, or colour-digits.
    """

    task: Annotated[str, INPUTS] = "ioi"


@dataclass(frozen=True, kw_only=True)
class Counted:
    """How many inputs.

    Attributes:
        n: Prompts or images to discover on, in total. Default: 200; all of a file or folder.
    """

    n: Annotated[Count | None, INPUTS] = None


@dataclass(frozen=True, kw_only=True)
class SkipBad(ImageWorkers):
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

    objective: Annotated[str | None, DISCOVERY] = None


@dataclass(frozen=True, kw_only=True)
class Ablating(Behaviour):
    """What is measured, and what a cut edge carries.

    Attributes:
        ablation: Value that replaces a removed edge. Default: the task's own.
    """

    ablation: Annotated[str | None, DISCOVERY] = None


@dataclass(frozen=True, kw_only=True)
class Quadrature:
    """Where the nodes of an integral lie.

    Attributes:
        quadrature: Quadrature rule: midpoint, left (as published), right or gauss-legendre.
    """

    quadrature: Annotated[str, DISCOVERY] = "midpoint"


@dataclass(frozen=True, kw_only=True)
class Discovering(Behaviour):
    """How a circuit is discovered.

    Attributes:
        method: Discovery method; `assay list methods` lists them.
        steps: Number of quadrature nodes of the method, or auto.
    """

    method: Annotated[str, DISCOVERY] = "eap-ig-inputs"
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
        n: Prompts in each half, to discover on and to measure on; with --circuit, in total. Default: 200; all
            rows of a file.
        circuit: Circuit file, hf://OWNER/NAME, published circuit, heads as a2.h3,a3.h0, head JSON, or id in
            the store. Default: discover one, as audit does.
        top: Cut a discovered circuit from this many of the strongest edges, instead of --target.
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
        from assay.pipeline import runs_of

        return call(self, runs_of, model, prompts, circuit, **more)


@dataclass(frozen=True, kw_only=True)
class Independent:
    """What is known of the rows of a file.

    Attributes:
        independent: Treat rows as independent samples not used for discovery, and compute certificates.
    """

    independent: Annotated[bool, INPUTS] = False


# ---- what is read off circuits of image classifiers ----------------------------------------------

COMPARING = own_group("Comparing circuits", 42)


@dataclass(frozen=True, kw_only=True)
class ComparingCircuits:
    """What the distance of two circuits compares.

    Attributes:
        distance: Distance: spearman, cosine, l2, laplacian, netlsd or jaccard.
        weights: abs (magnitudes) or signed scores.
        top_k: Strongest edges that graph distances compare. Default: 200; all for laplacian.
        compat: reference: graphs as the authors' code makes them, to compare with published numbers.
        normalized: Scale Laplacians by the degrees.
    """

    distance: Annotated[str, COMPARING] = "spearman"
    weights: Annotated[str, COMPARING] = "abs"
    top_k: Annotated[Count | None, COMPARING] = None
    compat: Annotated[str | None, COMPARING] = None
    normalized: Annotated[bool, COMPARING, Parameter(negative="--no-normalized")] = True


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Which layers count as shallow and deep.

    Attributes:
        granularity: Layers of dependency matrices and maps: block, or sublayer (heads and MLP apart).
        ratio: Share of blocks counted as deep, and as shallow; at most 0.5.
        sets: Shallow and deep layers of the depth bias: symmetric, or reference (the authors', 12 blocks).
        include_input: Count the input as a shallow layer.
    """

    granularity: Annotated[str, COMPARING] = "block"
    ratio: Annotated[float, COMPARING] = 0.3
    sets: Annotated[str, COMPARING] = "symmetric"
    include_input: Annotated[bool, COMPARING] = False
