"""Runs that cut a few more edges into one target, each computed from that target on.

While every edge into the targets before v is kept, each source that v can read writes its clean value a_u.
Cutting some of its edges therefore moves its input by a known amount,

    x_v = (x_v of the current run) + sum over the newly cut u of (b_u - a_u),

b_u the ablated value, and only what v reaches through kept edges differs from the current run: that with the
edges cut so far. So many sets of cuts are evaluated in one pass of a plan that starts from the current run.
(The runs are those of Conmy et al. 2023, arXiv:2304.14997, algorithm 1, and of `run_circuit`.)
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import UnsupportedModelError
from assay.execution.ablation import Baseline
from assay.execution.plan import Inlet, compile_plan
from assay.execution.runner import CircuitRunner, Observer
from assay.models import Model, Trace


class CutRunner:
    """The run of a model on some examples while its edges are cut from `logits` towards `input`.

    Starts as the model itself, all edges kept. Ask for targets in reverse order: once edges into one are cut,
    targets of later stages (attention or MLP of a block, `logits`) no longer read clean sources.

    Args:
        model: The model: text or images.

    Attributes:
        kept: Edges that are not cut.

    Example:
        >>> from assay.execution import ABLATIONS
        >>> from assay.models import load_model
        >>> from assay.tasks import load_task
        >>> model = load_model("mini")
        >>> task = load_task("ioi", model, n=2)
        >>> batch = next(task.batches(2))
        >>> zeros = ABLATIONS["zero"].prepare(model, task, batch_size=2, seed=0).baseline(batch)
        >>> runner = CutRunner(model)
        >>> clean = runner.add(batch.clean, zeros, batch.positions)
        >>> [found] = runner.logits(model.graph.n_targets - 1, [0, 1], torch.eye(2, dtype=torch.bool))
        >>> found.shape  # `input` cut alone, then head 0 of block 0 alone
        torch.Size([2, 2, 1968])
        >>> runner.cut(model.graph.n_targets - 1, [1])
        >>> runner.kept[:3, -1].tolist()
        [True, False, True]
    """

    def __init__(self, model: Model) -> None:
        if any(block.target_norm is not None for block in model.blocks):
            raise UnsupportedModelError(
                f"single edges of {model.id} cannot be cut with post_norm={model.post_norm!r}, where a "
                "target does not read a sum of outputs; use 'exact'"
            )
        self.model = model
        self.kept: Bool[Tensor, "n_sources n_targets"] = model.graph.valid.clone()
        self._examples: list[_CutExamples] = []
        self._current: tuple[int, CircuitRunner] | None = None
        self._settled = True  # whether the current run of the examples has all cuts

    @torch.no_grad()
    def add(self, inputs: Tensor, baseline: Baseline, read: Int[Tensor, " n"]) -> Float[Tensor, "n d_vocab"]:
        """Take in some examples, one forward pass over them, and return the model's logits where it is read.

        Args:
            inputs: Token ids `[n, pos]` (shorter prompts padded on the right) or images.
            baseline: Ablated values; one row that all examples share, or one per example.
            read: Read position of each example.
        """
        with self.model.tracing(streams=True) as trace:
            hidden = self.model.forward(inputs)
        self._examples.append(_CutExamples(self.model, trace, baseline, read))
        return self.model.read(hidden, read).to(self.model.result_dtype)

    def inlet(self, target: int) -> Inlet | None:
        """Where a target reads; None if it has no way to `logits`, so that cutting its edges does nothing."""
        inlets = self._runner(target).plan.inlets
        return next((inlet for inlet in inlets if inlet.moved == target), None)

    @torch.no_grad()
    def _runner(self, target: int) -> CircuitRunner:
        """Runs in which a target is moved, and all else starts from the current run."""
        if self._current is None or self._current[0] != target:
            if self._current is not None and not self._settled:
                before, runner = self._current
                for examples in self._examples:
                    examples.settle(runner, before)
                self._settled = True
            model = self.model
            plan = compile_plan(
                model.graph,
                self.kept,
                resample=True,
                pools=model.pools,
                coupling=model.coupling,
                origin=target,
                offset=frozenset(self._examples[0].offsets if self._examples else ()),
            )
            circuit = Circuit(graph=model.graph, mask=self.kept)
            self._current = target, CircuitRunner(model, circuit, resample=True, plan=plan)
        return self._current[1]

    @torch.no_grad()
    def logits(
        self, target: int, sources: Sequence[int], cuts: Bool[Tensor, "hypotheses cut_sources"]
    ) -> Iterator[Float[Tensor, "hypotheses n d_vocab"]]:
        """Logits at the read position with more edges into a target cut, and what was cut before.

        Args:
            target: A target with an inlet.
            sources: Sources whose edges into it are still kept.
            cuts: For each hypothesis, which of their edges are cut; at least one hypothesis.

        Yields:
            For each batch of examples in the order they were added, the logits of all hypotheses.
        """
        runner = self._runner(target)
        for examples in self._examples:
            yield examples.logits(runner, target, sources, cuts)

    @torch.no_grad()
    def cut(self, target: int, sources: Sequence[int]) -> None:
        """Cut edges into a target for good."""
        inlet = self.inlet(target)
        self.kept[list(sources), target] = False
        if inlet is not None and sources:
            self._settled = False
            for examples in self._examples:
                more = examples.differences(sources, everywhere=inlet.everywhere).sum(0)
                examples.offsets[target] = examples.offsets.get(target, 0) + more


class _CutExamples(Baseline):
    """Some examples: their run with the edges cut so far, and what their sources would carry when cut.

    The run begins as the clean one. What later cuts change in it is written over its values.

    Attributes:
        clean: The clean pass.
        read: Read position of each example.
        change: Ablated minus clean output of every source.
        offsets: What the inputs of targets have beyond those of the clean run, wherever they are needed:
            `[n, pos, d_model]` or `[n, d_model]`.
        own: Projections of a block, where some differ from the clean run's.
    """

    def __init__(self, model: Model, clean: Trace, baseline: Baseline, read: Tensor) -> None:
        wide = model.result_dtype
        z, mlp = ([value.to(wide, copy=True) for value in values] for values in (clean.z, clean.mlp))
        super().__init__(model=model, input=clean.input, z=z, mlp=mlp, trace=clean)
        self.clean, self.read = clean, read
        self.index = torch.arange(len(read), device=read.device)
        self.offsets: dict[int, Tensor] = {}
        self.own: dict[int, Tensor] = {}
        sources = zip(
            (baseline.input, *baseline.z, *baseline.mlp), (clean.input, *clean.z, *clean.mlp), strict=True
        )
        self.change = Baseline.by_source(model, [cut.to(wide) - value.to(wide) for cut, value in sources])

    def channels(self, layer: int) -> Float[Tensor, "rows pos n_channels d_head"]:
        return self.own[layer] if layer in self.own else super().channels(layer)

    def at(self, value: Tensor, *, everywhere: bool) -> Tensor:
        return value if everywhere else value[self.index, self.read]

    def differences(self, rows: Sequence[int], *, everywhere: bool) -> Float[Tensor, "rows n ... d_model"]:
        """Ablated minus clean outputs of some sources, at all positions or at the read position."""
        model, graph, change = self.model, self.model.graph, self.change
        outputs = {0: self.at(change.input, everywhere=everywhere)} if 0 in rows else {}
        for layer, block in enumerate(model.blocks):
            first, mlp = graph.head_source(layer), graph.mlp_source(layer)
            heads = [head for head in range(graph.n_heads) if first + head in rows]
            if heads:
                z = self.at(change.z[layer], everywhere=everywhere)
                z = z.unflatten(-1, (graph.n_heads, model.d_head))[..., heads, :]
                written = torch.einsum("...hc,hcd->h...d", z, block.out_weight()[heads].to(z.dtype))
                outputs |= zip((first + head for head in heads), written, strict=True)
            if graph.mlps and mlp in rows:
                outputs[mlp] = self.at(change.mlp[layer], everywhere=everywhere)
        return torch.stack([outputs[row] for row in rows])

    def logits(
        self,
        runner: CircuitRunner,
        target: int,
        sources: Sequence[int],
        cuts: Bool[Tensor, "hypotheses cut_sources"],
        observer: Observer | None = None,
    ) -> Float[Tensor, "hypotheses n d_vocab"]:
        """Logits of all hypotheses about the edges into a target."""
        k, n = len(cuts), len(self.read)

        def moves(column: int, everywhere: bool) -> Tensor:
            before = self.offsets.get(column)
            if column != target or not sources:
                assert before is not None
                assert before.ndim == 2 + everywhere  # needed where it was before
                return before[None]
            differences = self.differences(sources, everywhere=everywhere)
            own = (cuts.to(differences) @ differences.flatten(1)).view(k, *differences.shape[1:])
            return own if before is None else own + before

        rows, read = self.index.repeat(k), self.read.repeat(k)
        logits = runner.logits(self.clean, self, read, rows=(rows, rows), moves=moves, observer=observer)
        by_hypothesis: Tensor = logits.to(self.model.result_dtype).unflatten(0, (k, n))
        return by_hypothesis

    def settle(self, runner: CircuitRunner, target: int) -> None:
        """Make the run with the edges into a target cut the current one."""
        found: list[tuple[str, int, Tensor]] = []
        self.logits(runner, target, (), torch.zeros(1, 0, dtype=torch.bool), lambda *each: found.append(each))
        for each in found:  # once the run no longer reads them
            self._put(*each)

    def _put(self, kind: str, number: int, value: Tensor) -> None:
        """Put something that a run computed in the place of its forerunner; see `Observer`."""
        graph, everywhere = self.model.graph, value.ndim == 3 and value.shape[1] == self.input.shape[1]
        place = (slice(None), slice(None)) if everywhere else (self.index, self.read)
        value = value if everywhere else value.flatten(1)
        of = graph.source_layer if kind == "output" else graph.target_layer
        layer = int(of[number]) - 1
        if kind == "stream":
            last, mlp = layer == graph.n_layers, graph.mlps and number == graph.mlp_target(layer)
            clean = self.final_in() if last else self.mlp_in(layer) if mlp else self.attention_in(layer)
            self.offsets[number] = value - self.at(clean.to(value.dtype), everywhere=everywhere)
        elif kind == "channel":
            self.own.setdefault(layer, self.channels(layer).clone())
            self.own[layer][(*place, number - graph.channel_target(layer, "q"))] = value
        elif graph.mlps and number == graph.mlp_source(layer):
            self.mlp[layer][place] = value
        else:
            z = self.z[layer].unflatten(-1, (graph.n_heads, -1))
            z[(*place, number - graph.head_source(layer))] = value
