"""Runs that cut a few more edges into one target, each computed from that target on.

While every edge into the targets before v is kept, each source that v can read writes its clean value a_u.
Cutting some of its edges therefore moves its input by a known amount,

    x_v = (x_v of the current run) + sum over the newly cut u of (b_u - a_u),

b_u the ablated value, and of the rest of the model only what v reaches through kept edges changes. So a
model is cut from `logits` towards `input` without running what lies before the target at all: the current
run is held as what its live targets read, and a set of cuts as what they change in it. Many sets are
evaluated in one pass, and any one of them can become the current run.
(The runs are those of Conmy et al. 2023, arXiv:2304.14997, algorithm 1, and of `assay.execution.runner`.)
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.errors import InputError, ShapeError
from assay.execution.baseline import Baseline
from assay.execution.cuts import CutExamples, CutPass
from assay.execution.stages import LiveStages
from assay.models import Model
from assay.models.conformance import check_heads_apart


class SuffixRunner:
    """The run of a model on some examples while its edges are cut from `logits` towards `input`.

    Starts as the model itself, all edges kept. Ask in reverse order of the targets: once edges into a target
    are cut, targets of later stages (attention or MLP of a block, `logits`) read changed sources and are
    refused.

    Args:
        model: The model: text or images.
        keep: Hold what the last call of `logits` computed, so that `commit` need not compute it again.
        several: Whether several positions of an example are read.

    Example:
        >>> from assay.execution import ABLATIONS
        >>> from assay.models import load_model
        >>> from assay.tasks import load_task
        >>> model = load_model("mini")
        >>> task = load_task("ioi", model, n=2)
        >>> batch = next(task.batches(2))
        >>> zeros = ABLATIONS["zero"].prepare(model, task, batch_size=2, seed=0).baseline(batch)
        >>> runner = SuffixRunner(model)
        >>> clean = runner.add(batch.clean, zeros, batch.positions)
        >>> [found] = runner.logits(model.graph.n_targets - 1, [0, 1], torch.eye(2, dtype=torch.bool))
        >>> found.shape  # `input` cut alone, then head 0 of block 0 alone
        torch.Size([2, 2, 1968])
        >>> runner.commit(1)
        >>> runner.kept[:3, -1].tolist()
        [True, False, True]
    """

    def __init__(self, model: Model, *, keep: bool = True, several: bool = False) -> None:
        check_heads_apart(model, "acdc", projected=True)
        self.model, self.keep = model, keep
        self.dtype = model.result_dtype
        self._live = LiveStages(model, several=several)
        self._examples: list[CutExamples] = []
        self._cut = self._live.last
        self._asked: tuple[int, list[int], Tensor] | None = None
        self._passes: list[CutPass] = []

    @property
    def kept(self) -> Bool[Tensor, "n_sources n_targets"]:
        """Edges that are not cut."""
        return self._live.kept

    @torch.no_grad()
    def add(
        self, inputs: Tensor, baseline: Baseline, read: Int[Tensor, "n *reads"]
    ) -> Float[Tensor, "n *reads d_vocab"]:
        """Take in some examples: one forward pass over them.

        Args:
            inputs: Token ids `[n, pos]` (shorter prompts padded on the right) or images.
            baseline: Ablated values; one row that all examples share, or one per example.
            read: Read position of each example, or several `[n, reads]` (then `several` must be told).

        Returns:
            Logits of the model at the read position.

        Raises:
            InputError: If edges have been cut already.
        """
        if self._live.opened:
            raise InputError("cuts have already been requested; add all examples before that")
        with self.model.tracing(streams=True) as trace:
            hidden = self.model.forward(inputs)
        self._examples.append(CutExamples(self._live, trace, baseline, read))
        return self.model.read(hidden, read).to(self.dtype)

    def live(self, target: int) -> bool:
        """Whether a target has a way to `logits` through kept edges; if not, cutting edges does nothing."""
        self._open(target)
        return bool(self._live.somewhere[target])

    def everywhere(self, target: int) -> bool:
        """Whether a live target is read at all positions, not at the read position only."""
        self._open(target)
        return bool(self._live.everywhere[target])

    @property
    def nbytes(self) -> int:
        """Memory of the examples and of the current run."""
        return sum(examples.nbytes for examples in self._examples)

    def logits(
        self, target: int, sources: Sequence[int], cuts: Bool[Tensor, "hypotheses n_sources"]
    ) -> Iterator[Float[Tensor, "hypotheses n *reads d_vocab"]]:
        """Logits at the read position with some edges into a target cut, the current run otherwise.

        Args:
            target: A live target.
            sources: Sources whose edges into it are still kept.
            cuts: For each hypothesis, which of their edges are cut; at least one hypothesis.

        Yields:
            For each batch of examples in the order they were added, the logits of all hypotheses.

        Raises:
            ShapeError: If `cuts` does not have a column per source.
            InputError: For a dead target, an edge that is not kept, or a target behind one that was cut.
        """
        self._check(target, sources, cuts)
        self._asked, self._passes = (target, list(sources), cuts), []
        for examples in self._examples:
            with torch.no_grad():
                run = self._pass(examples, target, sources, cuts)
                found = run.finish()
            if self.keep:
                self._passes.append(run)
            del run
            yield found

    @torch.no_grad()
    def alone(
        self, target: int, sources: Sequence[int]
    ) -> Iterator[Float[Tensor, "n_sources n *reads d_vocab"]]:
        """Logits with the edges from some sources into a target cut, each alone, and every other edge kept.

        Ask in reverse order of the targets: what later ones read is given up where it is not needed again.

        Yields:
            For each batch of examples in the order they were added, the logits of every cut.

        Raises:
            InputError: If an edge has been cut for good, and as `logits`.
        """
        if not torch.equal(self.kept, self.model.graph.valid):
            raise InputError("edges have been cut already; ask a runner of its own what each does alone")
        cuts = torch.eye(len(sources), dtype=torch.bool)
        self._check(target, sources, cuts)
        stage = self._live.stage_of[target]
        for examples in self._examples:
            # Blocks of images are called with nothing that belongs to single examples.
            native = self.model.vision is not None
            if native:
                last = 2 * self.model.n_layers - 2  # behind it runs are not native
                for number in [each for each in examples.states if stage < each < last]:
                    del examples.states[number]
            run = self._pass(examples, target, sources, cuts)
            yield run.finish_natively() if native else run.finish()

    @torch.no_grad()
    def commit(self, hypothesis: int) -> None:
        """Make one hypothesis of the last call of `logits` the current run.

        Raises:
            InputError: If there was none since the last commit.
        """
        if self._asked is None:
            raise InputError("nothing to commit; request logits first")
        target, sources, cuts = self._asked
        for place, examples in enumerate(self._examples):
            if len(self._passes) == len(self._examples):
                self._passes[place].commit(hypothesis)
            else:
                run = self._pass(examples, target, sources, cuts[hypothesis : hypothesis + 1])
                run.finish()
                run.commit(0)
        cut = [row for row, gone in zip(sources, cuts[hypothesis].tolist(), strict=True) if gone]
        self.kept[cut, target] = False
        self._cut = min(self._cut, self._live.stage_of[target])
        self._asked, self._passes = None, []

    def forget(self) -> None:
        """Drop what the last call of `logits` computed."""
        self._asked, self._passes = None, []

    # ---- what is live -----------------------------------------------------------------------------

    def _check(self, target: int, sources: Sequence[int], cuts: Tensor) -> None:
        graph = self.model.graph
        if cuts.ndim != 2 or cuts.shape[1] != len(sources) or len(cuts) == 0:
            raise ShapeError(
                f"cuts has shape {tuple(cuts.shape)}; expected one row per hypothesis and {len(sources)} "
                "columns, one per source"
            )
        if self._live.stage_of[target] > self._cut:
            raise InputError(
                f"edges before {graph.targets[target]} were already cut, so it no longer reads clean "
                "sources; request targets in reverse order"
            )
        if not self.live(target):
            raise InputError(
                f"{graph.targets[target]} has no path to the logits through kept edges, so cutting its "
                "edges changes nothing"
            )
        for row in sources:
            if not self.kept[row, target]:
                raise InputError(f"the edge {graph.edge_name(row, target)} is not kept, so it cannot be cut")

    @torch.no_grad()
    def _open(self, target: int) -> None:
        """Decide what is live at the stage of a target and all after it, and set up the current run there."""
        while self._live.lowest > self._live.stage_of[target]:
            stage = self._live.open_next()
            if stage is not None:
                for examples in self._examples:
                    examples.open(self._live.lowest, stage)

    def _pass(self, examples: CutExamples, target: int, sources: Sequence[int], cuts: Tensor) -> CutPass:
        everywhere = self.everywhere(target)
        differences = examples.differences(sources, everywhere=everywhere)
        mixed = cuts.to(differences) @ differences.flatten(1)
        return CutPass(examples, target, mixed.view(len(cuts), *differences.shape[1:]))
