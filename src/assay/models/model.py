"""A native transformer seen through one interface: where its parts are, and how to run them.

A `Family` is a frozen description (module paths, layouts); `Model` binds it to a live module. The
module itself is never changed: hooks live inside context managers, and gradients are taken with
respect to activations only.
"""

import copy
import hashlib
import json
import warnings
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.errors import AssayWarning, InputError, NonFiniteError, UnsupportedModelError, unknown_name
from assay.core.record import MACHINE
from assay.graph import Graph, build_graph
from assay.models.attention import Tables
from assay.models.block import bind_blocks, bind_norm
from assay.models.family import Config, Family, PostNorm, Vision, home_of, submodule
from assay.models.tracing import Recorder, StopForward, Trace


T = TypeVar("T")  # a task, whose types live beside this package


class Model:
    """A supported transformer with its graph. Make one with `load_model`.

    Attributes:
        module: The native module, untouched.
        tokenizer: Its tokenizer, or None.
        family: The description that fits it.
        graph: Its residual-stream graph.
        id: Hub id, directory name, `mini`, or the class name of a live module.
        preprocessing: For an image classifier, what was stored with it about resizing and normalising
            (`preprocessor_config.json`, or timm's `pretrained_cfg`); None if nothing was.
        origin: Where the weights come from, beyond their hash: the commit of a hub repository.
    """

    def __init__(
        self,
        module: nn.Module,
        family: Family,
        *,
        tokenizer: Any = None,
        name: str,
        preprocessing: Mapping[str, Any] | None = None,
        origin: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.module = module
        self.family = family = replace(family, **family.variant(module))
        self.tokenizer = tokenizer
        self.id = name
        self.post_norm: PostNorm | None = "exact"  # None: see `uncut`
        self.preprocessing = preprocessing
        self.origin = dict(origin)
        self._hashed: dict[tuple[Any, ...], str] = {}  # of the present weights; shared by copies
        self.prompt_rules: Mapping[str, Any] = {}  # see `prompted`
        reason = family.refuse(module) or (family.vision and family.vision.refuse(module))
        if reason:
            raise UnsupportedModelError(f"{type(module).__name__}: {reason}")
        sizes = family.sizes(module)
        self.n_heads, self.n_kv_heads = sizes.n_heads, sizes.n_kv_heads
        self.d_model, self.d_head = sizes.d_model, sizes.d_head
        self.blocks = bind_blocks(module, family, sizes)
        self.n_layers = len(self.blocks)
        self.rules = tuple(block.rule for block in self.blocks)
        self.final_norm = bind_norm(module, family, family.final_norm)
        self.graph: Graph = build_graph(
            self.n_layers,
            self.n_heads,
            self.n_kv_heads,
            parallel=family.parallel(module),
            mlps=family.mlps,
        )
        self.n_parameters = sum(parameter.numel() for parameter in module.parameters())
        check_weights(module, name)

    def __repr__(self) -> str:
        return (
            f"Model({self.id!r}, family={self.family.key!r}, n_layers={self.n_layers}, "
            f"n_heads={self.n_heads}, d_model={self.d_model}, n_edges={self.graph.n_edges})"
        )

    # ---- what it is ---------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Identity of the model as it enters provenance and reports."""
        behind = self.family.branch_norm is not None and self.post_norm is not None
        return {
            "id": self.id,
            "family": self.family.key,
            "weight_hash": self.weight_hash,
            "dtype": str(self.dtype)[6:],
            **self.origin,
            **({"post_norm": self.post_norm} if behind else {}),
        }

    def machine(self) -> dict[str, Any]:
        """The entry of a provenance that names the kind of device, which is not part of an identity."""
        return {} if self.device.type == "cpu" else {MACHINE: {"device": self.device.type}}

    @property
    def weight_hash(self) -> str:
        """SHA-256 over the configuration and all parameters: names, shapes, types, bytes (16 hex digits).

        Made when it is first asked for, and again once parameters have changed. A change of few numbers of a
        parameter of more than 2^15 through `.data` or a NumPy view may go unseen: call `refresh` after it.
        """
        parameters = sorted(self.module.named_parameters())
        state = weight_state(parameters)
        if state not in self._hashed:
            facts = json.dumps(self.family.facts(self.module), sort_keys=True, default=str)
            digest = hashlib.sha256(facts.encode())
            for name, parameter in parameters:
                digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
                digest.update(_bytes(parameter))
            self._hashed.clear()
            self._hashed[state] = digest.hexdigest()[:16]
        return self._hashed[state]

    def refresh(self) -> None:
        """Have the weights hashed anew, after a change that may go unseen (see `weight_hash`)."""
        self._hashed.clear()

    @property
    def dtype(self) -> torch.dtype:
        """Number type of the weights."""
        return next(self.module.parameters()).dtype

    @property
    def result_dtype(self) -> torch.dtype:
        """Number type of results: float64 for a float64 model, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        """Where the weights are; of a model on several devices, see `home_of`."""
        return home_of(self.module)

    @cached_property
    def unembed_module(self) -> nn.Module:
        """The module from the normalised stream to logits.

        Raises:
            UnsupportedModelError: If several modules share that work (a distilled classifier).
        """
        return submodule(self.module, self.family.unembed)

    @property
    def causal(self) -> bool:
        """Whether a position attends only to itself and earlier ones."""
        return self.vision is None

    @property
    def n_vocab(self) -> int:
        """Width of the logits: rows of the token embedding, or classes."""
        if self.vision is not None:
            return self.n_classes
        embedding = self.module.get_input_embeddings()  # type: ignore[operator]  # every pre-trained model class has it
        return int(embedding.weight.shape[0])

    @property
    def n_positions(self) -> int | None:
        """Longest prompt that can be read; None where only the training of the model sets a limit.

        Rows of a table of positions, or the original length of rotary positions whose frequencies depend on
        the longest prompt of a batch beyond it, so that logits would depend on padding and on earlier passes.
        """
        config: Config = getattr(self.module, "config", None)
        if self.family.learned_positions:
            return int(config.max_position_embeddings)
        rotary = getattr(config, "rope_parameters", None) or {}
        kinds = [each for each in rotary.values() if isinstance(each, dict)] or [rotary]
        longest = [each for each in kinds if each.get("rope_type") == "longrope"]
        lengths = [int(each["original_max_position_embeddings"]) for each in longest]
        if any(each.get("rope_type") == "dynamic" for each in kinds):
            # transformers returns to the first frequencies only for prompts shorter than the length.
            lengths.append(int(config.max_position_embeddings) - 1)
        return min(lengths, default=None)

    # ---- images -------------------------------------------------------------------------------

    @property
    def vision(self) -> Vision | None:
        """How images are run and read; None for a language model."""
        return self.family.vision

    def _classifier(self) -> Vision:
        if self.vision is None:
            raise InputError(
                f"{self.id} is a language model: images, image tokens and classes do not apply to it"
            )
        return self.vision

    @cached_property
    def pools(self) -> bool:
        """Whether the logits read the final stream at more positions than one."""
        return self.vision is not None and self.vision.pools(self.module)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images an image classifier takes."""
        return self._classifier().image_size(self.module)

    @property
    def n_tokens(self) -> int:
        """Positions an image classifier makes of an image: patches and prefix tokens."""
        return self._classifier().n_tokens(self.module)

    @property
    def n_classes(self) -> int:
        """Classes of an image classifier."""
        return self._classifier().n_classes(self.module)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, label 0 first; None if the model does not know them."""
        return self._classifier().classes(self.module)

    def features(self, images: Float[Tensor, "batch 3 h w"]) -> Float[Tensor, "batch d_features"]:
        """What the classifier of an image model reads: the final-norm CLS token, or the pooled tokens."""
        with torch.no_grad():
            return self._classifier().features(self.module, self.forward(images))

    # ---- norms behind branches ----------------------------------------------------------------

    def treating(self, post_norm: str | None) -> "Model":
        """This model with another treatment of the norms behind its branches; the module is shared.

        Args:
            post_norm: Which 1/rms the heads of a block get in ablated runs. `exact`: that of the run.
                `eap-ig`: that of what each target reads, as in EAP-IG's `evaluate.py`, with the scores of its
                `attribute.py`, which take heads before the norm and are first order for neither. None: as it
                is.

        Raises:
            UnknownNameError: For another name.
            InputError: If the model has no such norms.
        """
        if post_norm is None or post_norm == self.post_norm:
            return self
        if post_norm not in (names := get_args(PostNorm)):
            raise unknown_name("treatment of norms behind branches", post_norm, names)
        if self.family.branch_norm is None:
            raise InputError(
                f"{self.id} has no norms behind its branches, so post_norm={post_norm!r} does not apply; "
                "leave it out"
            )
        other = copy.copy(self)
        other.post_norm = cast(PostNorm, post_norm)
        sizes = self.family.sizes(self.module)
        other.blocks = bind_blocks(self.module, self.family, sizes, per_target=post_norm == "eap-ig")
        return other

    def ungrouped(self) -> "Model":
        """This model with a key and a value for each query head: its graph is that of EAP-IG and MIB.

        Query heads that share a key/value head get copies of it, so every output is the same, edges into the
        k and v of single query heads exist, and so do files and published numbers of such graphs. Other
        weights are shared with this model. Where no heads share keys and values, it is this model.

        Raises:
            UnsupportedModelError: If its keys and values are not projections of their own, or their norms
                differ by head.

        Example:
            >>> load_model("mini").ungrouped().graph.n_kv_heads
            8
        """
        copies = self.n_heads // self.n_kv_heads
        if copies == 1:
            return self
        if len(self.family.qkv) != 3 or self.family.norms_over != "head":
            raise UnsupportedModelError(
                f"{self.id} ({self.family.key}) cannot be ungrouped: that takes keys and values that are "
                "projections of their own and norms that are the same for all heads"
            )
        kept = {id(each): each for each in (*self.module.parameters(), *self.module.buffers())}
        module: Any = copy.deepcopy(self.module, kept)
        module.config.num_key_value_heads = self.n_heads
        for block in submodule(module, self.family.blocks).children():
            attention: Any = submodule(block, self.family.attention)
            attention.num_key_value_groups = 1
            for path in self.family.qkv[1:]:
                projection: Any = submodule(block, path)
                projection.out_features *= copies
                for name, values in [*projection.named_parameters()]:
                    heads = values.detach().unflatten(0, (self.n_kv_heads, -1)).repeat_interleave(copies, 0)
                    setattr(projection, name, nn.Parameter(heads.flatten(0, 1), values.requires_grad))
        how: dict[str, Any] = {"tokenizer": self.tokenizer, "name": self.id}
        other = Model(module, self.family, **how, origin={**self.origin, "ungrouped": True})
        other.prompt_rules = self.prompt_rules
        return other.treating(self.post_norm)

    @property
    def uncut(self) -> "Model":
        """This model for numbers that no edge is cut for: heads write what they add to the stream.

        No treatment of norms behind branches changes such numbers, so its description names none.
        """
        if self.family.branch_norm is None or self.post_norm is None:
            return self
        other = copy.copy(self.treating("exact"))
        other.post_norm = None
        return other

    @property
    def coupling(self) -> Literal["none", "queries", "heads"]:
        """How heads of one block depend on each other.

        `queries`: through a norm over all queries or keys; `heads`: through one of what they write together.
        """
        if self.family.branch_norm is not None and self.post_norm in ("exact", None):
            return "heads"
        return "queries" if any(rule.couples for rule in self.rules) else "none"

    # ---- running ------------------------------------------------------------------------------

    def bind(self, task: T) -> T:
        """The task as this model reads it, after checking that it can; for images, cut into its positions.

        Images without a transform get the model's own.

        Raises:
            InputError: If the task holds prompts and the model reads images, or the other way round, or if
                labels or class names do not fit the model.
            ShapeError: If the images have another size.
            TokenizationError: If a token id or the length does not fit the model.
        """
        inputs: Any = task
        has_images = hasattr(task, "image_size")
        if has_images is (self.vision is None):
            reads, holds = ("prompts", "images") if self.vision is None else ("images", "prompts")
            raise InputError(
                f"{self.id} reads {reads}, but the task {inputs.name!r} holds {holds}; give a model and a "
                "task of the same kind"
            )
        if self.vision is not None:
            inputs = inputs.for_model(self)
            inputs.validate(self.image_size, self.classes, n_classes=self.n_classes)
            return cast(T, inputs.bound(self.n_tokens))
        inputs.validate(self.n_vocab, self.n_positions)
        most = getattr(self.module.config, "max_position_embeddings", None)
        if most is not None and inputs.length > most:
            warnings.warn(
                f"the longest prompt of {inputs.name!r} has {inputs.length} tokens, but {self.id} was made "
                f"for {most}. Results on longer prompts are unreliable; make the prompts shorter",
                AssayWarning,
                stacklevel=2,
            )
        return task

    def check_text(self, what: str) -> None:
        """Refuse an image classifier where only language models are served.

        Raises:
            UnsupportedModelError: Naming `what` asked for it.
        """
        if self.vision is not None:
            raise UnsupportedModelError(
                f"{what} supports only language models so far, but {self.id} is an image classifier; "
                "discover, discover_heads, measure, faithfulness_curve and run_circuit support both"
            )

    def forward(self, inputs: Tensor) -> Float[Tensor, "batch pos d_model"]:
        """Output of the final norm, by the native modules.

        Args:
            inputs: Token ids `[batch, pos]`, or images `[batch, 3, h, w]` for an image classifier. Right
                padding of tokens needs no mask: a causal position never attends to later ones.

        Raises:
            InputError: If the module is in training mode.
        """
        training = next((path for path, part in self.module.named_modules() if part.training), None)
        if training is not None:
            raise InputError(
                f"{f'{training} of ' if training else ''}{self.id} is in training mode, where dropout "
                "changes its outputs; call module.eval() first"
            )
        if self.vision is not None:
            return self.vision.hidden(self.module, inputs.to(self.dtype)).to(inputs.device)
        embedding = self.module.get_input_embeddings()  # type: ignore[operator]  # all of transformers have it
        backbone = submodule(self.module, self.family.backbone)
        run = backbone(inputs_embeds=embedding(inputs), use_cache=False)
        return run.last_hidden_state.to(inputs.device)  # type: ignore[no-any-return]  # a tensor

    def resume(
        self, hidden: Float[Tensor, "batch pos d_model"], trace: Trace, *, layer: int = 0
    ) -> Float[Tensor, "batch pos d_model"]:
        """Run the native blocks from `layer` on and the final norm, with the arguments of a traced pass."""
        return self.final_norm(self.through(hidden, trace, layer=layer))

    def through(
        self, hidden: Float[Tensor, "batch pos d_model"], trace: Trace, *, layer: int = 0
    ) -> Float[Tensor, "batch pos d_model"]:
        """Run the native blocks from `layer` on, with the arguments a traced pass gave them."""
        for block, (args, kwargs) in zip(self.blocks[layer:], trace.calls[layer:], strict=True):
            output = block.module(hidden, *args, **kwargs)
            hidden = output[0] if isinstance(output, tuple) else output
        return hidden.to(self.device)

    @contextmanager
    def reading(self, positions: Int[Tensor, " batch"], length: int) -> Iterator[None]:
        """Inside, the last block runs its output projection and its MLP at the read positions only.

        They give 0 at the others of `length` positions, which no logits read. Gradients have all positions.
        Nothing changes where the logits read more positions than one (`pools`).
        """
        block, read = self.blocks[-1], torch.arange(length, device=positions.device) == positions[:, None]

        def narrow(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            x = args[0]  # some MLPs are given the tokens of all examples in one row
            return (at_reads(x, positions.to(x.device))[:, None], *args[1:]) if x.ndim == 3 else None

        def widen(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            return output * read[..., None].to(output.device) if output.ndim == 3 else None

        pairs = [(block.out, block.out), (block.mlp, block.mlp_out)][: 1 + self.graph.mlps]
        with ExitStack() as hooks:
            for first, last in () if self.pools else pairs:
                hooks.callback(first.register_forward_pre_hook(narrow).remove)
                hooks.callback(last.register_forward_hook(widen).remove)
            yield

    def unembed(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Logits of final-norm outputs at single positions.

        An image classifier that pools is read with `read`, from all positions.
        """
        if self.vision is not None:
            if self.pools:
                raise InputError(f"{self.id} pools positions, so its logits cannot be read at one position")
            single = self.vision.logits(self.module, hidden.reshape(-1, 1, self.d_model))
            return single.reshape(*hidden.shape[:-1], -1).to(hidden.device)
        head = self.family.head
        logits: Tensor = self.unembed_module(hidden) if head is None else head(self.module, hidden)
        return logits.to(hidden.device)

    def read(
        self, hidden: Float[Tensor, "batch pos d_model"], positions: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch d_vocab"]:
        """Logits from final-norm outputs: at one position per example, or pooled."""
        if self.vision is not None and self.pools:
            return self.vision.logits(self.module, hidden).to(hidden.device)
        assert positions is not None
        return self.unembed(at_reads(hidden, positions))

    def finish(
        self,
        stream: Float[Tensor, "batch *pos d_model"],
        positions: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch d_vocab"]:
        """Logits of the stream leaving the last block: at the read position, or all of it (`pools`)."""
        normed = self.final_norm(stream.to(self.dtype))
        return self.unembed(normed) if normed.ndim == 2 else self.read(normed, positions)

    def tables(self, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> dict[Hashable, Tables]:
        """Rotary tables by kind, from the arguments that a traced pass gave its blocks."""
        tables: dict[Hashable, Tables] = {}
        for block, (_, kwargs) in zip(self.blocks, calls, strict=False):
            kind = block.rule.table
            if kind is not None and kind not in tables:
                cos, sin = self.family.tables(block.module, kwargs)
                tables[kind] = (cos.to(self.device), sin.to(self.device))
        return tables

    @cached_property
    def table_depth(self) -> int:
        """How many blocks a pass must enter to see rotary tables of every kind."""
        kinds = [rule.table for rule in self.rules]
        return max((kinds.index(kind) for kind in kinds if kind is not None), default=0)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Parameters ask for no gradient inside; a backward pass then costs about one forward pass."""
        asking = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        with ExitStack() as undoing:
            for parameter in asking:
                parameter.requires_grad_(False)
                undoing.callback(parameter.requires_grad_, True)
            yield

    @contextmanager
    def tracing(
        self,
        *,
        sources: bool = True,
        gradients: bool = False,
        streams: bool = False,
        attached: bool = False,
        until: int | None = None,
    ) -> Iterator[Trace]:
        """Record the native pass made inside into the returned trace (one pass per trace).

        Args:
            sources: Keep what each source writes (`input`, `z`, `mlp`) and the block arguments.
            gradients: Keep what closed-form gradients need: norm inputs, projection outputs, and the
                gradients at projection and norm outputs and at the final stream once `backward` has run.
            streams: Keep the norm inputs and projection outputs.
            attached: Leave what is kept in the graph of the pass.
            until: End the pass before this block; what lies behind it is not computed.
        """
        trace = Trace(attached=attached, home=self.device)
        with Recorder(trace, gradients=gradients) as recorder:
            for layer, block in enumerate(self.blocks):
                if sources or layer == until:
                    recorder.entering(block, last=layer == until)
                if layer == until:
                    break
                if sources:
                    recorder.written(block)
                if streams or gradients:
                    recorder.read(block, layer)
            else:
                recorder.final(self.blocks[-1], self.final_norm)
            try:
                yield trace
            except StopForward:
                assert until is not None


def at_reads(
    values: Float[Tensor, "batch pos *axes"], positions: Int[Tensor, " batch"]
) -> Float[Tensor, "batch *axes"]:
    """What stands at the read position of each example."""
    return values[torch.arange(len(values), device=values.device), positions]


def prompted(model: Model, **rules: Any) -> Model:
    """The model with other usual rules of how prompts become ids; the module is shared.

    Args:
        model: A language model.
        **rules: `bos`, `chat` and `answer_tokens` of `load_task`, which then hold for every task
            that is loaded for this model, unless that call says otherwise.

    Raises:
        InputError: If the model reads images.

    Example:
        >>> from assay.models import load_model
        >>> prompted(load_model("mini"), answer_tokens="first").prompt_rules
        {'answer_tokens': 'first'}
    """
    if model.vision is not None:
        raise InputError(f"{model.id} reads images, so {' and '.join(rules)} do not apply; leave them out")
    other = copy.copy(model)
    other.prompt_rules = {**model.prompt_rules, **rules}
    return other


# ---- weights

_SAMPLED = 2**14  # numbers of each parameter


def check_weights(module: nn.Module, name: str) -> None:
    """Refuse weights that nothing can be computed with.

    Raises:
        UnsupportedModelError: If a parameter was never given memory, or is stored in a type of one byte.
        NonFiniteError: If a parameter is NaN or infinite.
    """
    for path, parameter in module.named_parameters():
        if parameter.is_meta or (parameter.is_floating_point() and parameter.dtype.itemsize == 1):
            raise UnsupportedModelError(
                f"weight {path!r} of {name} is {parameter.dtype} on device {parameter.device}: layers cannot "
                "compute with it. Load it first, e.g. with from_pretrained or load_model(folder, "
                "device_map=), and dequantise it (model.dequantize())"
            )
        if not bool(torch.isfinite(parameter).all()):
            raise NonFiniteError(
                f"weight {path!r} of {name} holds NaN or infinite values; reload or retrain the model"
            )


def _bytes(values: Tensor) -> memoryview:
    data: memoryview = values.detach().cpu().contiguous().view(torch.uint8).numpy().data
    return data


def weight_state(parameters: Iterable[tuple[str, Tensor]]) -> tuple[Any, ...]:
    """What differs once parameters have changed, for far less than a forward pass.

    Where each lies, its count of changes, and a checksum of its numbers (of more than 2^15 only of evenly
    spaced ones): changes through `.data` or a NumPy view are not counted.
    """
    check, places = 0, []
    for _, parameter in parameters:
        places.append((parameter.data_ptr(), parameter._version))
        step = parameter.numel() // _SAMPLED | 1  # odd: columns differ
        check = zlib.crc32(_bytes(parameter.detach().flatten()[::step]), check)
    return (check, *places)
