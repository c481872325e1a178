"""From a program to weights: registers of the stream, heads in blocks, extra parts, slight noise.

Every weight is written as if the norms were the identity. A pair of large constants of opposite sign in the
stream makes that nearly true: it fixes the norm's scale, and a balance entry keeps the stream's mean at zero.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.random import torch_stream
from assay.models.planted.program import ONE, OUT, POSITION, TOKEN, Head, Mlp, Offset, Program, Readout
from assay.models.planted.registers import (
    CONSTANT,
    Attention,
    Feedforward,
    Layout,
    Placement,
    Registers,
    Weights,
)


TYPICAL = 6.0  # squared length of the rest of the stream, for the norm's gain
LOGIT = 8.0  # logit of an output register entry of 1
NOISE = 2e-3  # standard deviation of the slight random weights
EXTRA_WIDTH = 8  # entries that extra parts write
EXTRA_UNITS = 12  # of an extra MLP
EXTRA_SIZE = 0.4  # of what an extra part writes per entry, so that its length is about that of a token's
SPARE_READ = 0.3  # how strongly extra parts read each other
DECAY = 0.3  # ratio of neighbouring rotary frequencies
TURNING = 5  # rotary pairs that count as turning; the others stand nearly still over a prompt
SHARES = (0.6, 0.3, 0.1)  # of an offset's score in the three fastest rotary pairs


Extras = Literal["bare", "inert", "interfering"]


def place(program: Program, layout: Layout, *, extra_parts: bool) -> Placement:
    """Blocks and heads of a program's parts.

    With extra parts there is a block more behind the first one of the program (for a program of one layer:
    one before and one behind), and a key/value head more in each block.
    """
    stages = program.stages(parallel=layout.parallel)
    depth = max(stages.values()) + 1

    def block(stage: int) -> int:
        return stage + int(extra_parts and (stage > 0 or depth == 1))

    heads: dict[str, tuple[int, int, int]] = {}
    used: dict[int, int] = {}
    for part in program.parts:
        if isinstance(part, Head):
            layer = block(stages[part.name])
            group = used.setdefault(layer, 0)
            used[layer] += 1
            heads[part.name] = (layer, group, group * layout.group)
    mlps = {part.name: block(stages[part.name]) for part in program.parts if isinstance(part, Mlp)}
    nodes = {name: f"a{layer}.h{head}" for name, (layer, _, head) in heads.items()}
    nodes |= {name: f"m{layer}" for name, layer in mlps.items()}
    widest = max(used.values())
    at_least = 2 if layout.group == 1 else 1
    return Placement(
        nodes=nodes,
        heads=heads,
        mlps=mlps,
        n_blocks=depth + (0 if not extra_parts else 2 if depth == 1 else 1),
        n_kv_heads=max(widest + int(extra_parts), at_least),
    )


def true_edges(program: Program, layout: Layout, placement: Placement) -> tuple[str, ...]:
    """Edge names of the program's wires."""
    edges = []
    for writer, reader, channel in program.wires():
        source = placement.nodes.get(writer, writer)
        target = placement.nodes.get(reader, reader)
        if channel in ("k", "v"):
            layer, group, _ = placement.heads[reader]
            # The graph numbers keys and values by key/value head.
            target = f"a{layer}.{'h' if layout.group == 1 else 'kv'}{group}"
        edges.append(f"{source}->{target}" + (f".{channel}" if channel else ""))
    return tuple(edges)


class Assembler:
    """Writes one program into blocks.

    Args:
        program: What to write.
        layout: The architecture's description.
        extras: What the model holds besides the program's parts.
        seed: Of the noise and the extra parts.
    """

    def __init__(self, program: Program, layout: Layout, extras: Extras, seed: int) -> None:
        self.program, self.layout, self.extras = program, layout, extras
        self.placement = place(program, layout, extra_parts=extras != "bare")
        self.random = torch_stream(seed, f"planted {program.name}/{layout.name}/{extras}")
        sizes = {TOKEN: len(program.tokens)}
        if not layout.rotary:
            sizes[POSITION] = program.length
        sizes |= program.registers
        if self.has_extras:
            sizes |= {"spare": EXTRA_WIDTH, "lift": 1}
        sizes |= {"balance": 1, "constant": 2}
        n_heads = self.placement.n_kv_heads * layout.group
        narrowest = max(self._head_width(part) for part in program.parts if isinstance(part, Head))
        width = max(sum(sizes.values()), n_heads * narrowest)
        self.registers = Registers.of(sizes | {"rest": width - sum(sizes.values())}, 2 * n_heads)
        self.n_heads, self.n_kv_heads = n_heads, self.placement.n_kv_heads
        self.d_model, self.d_head = self.registers.width, self.registers.width // n_heads

    @property
    def has_extras(self) -> bool:
        """Whether the model holds parts besides the program's own."""
        return self.extras != "bare"

    def _head_width(self, head: Head) -> int:
        """Entries of a query that a head's pattern needs, and of a value that it moves."""
        rank = sum(match.query.map.shape[1] for match in head.matches)
        if self.layout.rotary:
            rank += 2 * TURNING
        else:
            rank += self.program.length * len(head.offsets)
        return max(rank, head.value.map.shape[1])

    # ------------------------------------------------------------------------------------------- the program

    def weights(self) -> Weights:
        """The program, the extra parts and the noise."""
        attention = [self._empty_attention() for _ in range(self.placement.n_blocks)]
        units: list[list[Feedforward]] = [[] for _ in range(self.placement.n_blocks)]
        taken: list[set[int]] = [set() for _ in attention]
        for part in self.program.parts:
            if isinstance(part, Head):
                layer, group, head = self.placement.heads[part.name]
                self._write_head(part, attention[layer], group, head)
                taken[layer].add(head)
            else:
                units[self.placement.mlps[part.name]].append(self._units(part))
        for layer, block in enumerate(attention):
            if self.has_extras:
                for head in set(range(self.n_heads)) - taken[layer]:
                    self._extra_head(block, head, shares=head - head % self.layout.group in taken[layer])
                units[layer].append(self._extra_units())
            elif not units[layer]:
                units[layer].append(self._silent_units())
        mlps = [
            Feedforward(
                into=torch.cat([each.into for each in part], 1), out=torch.cat([each.out for each in part])
            )
            for part in _padded(units)
        ]
        return self._noisy(attention, mlps)

    def _empty_attention(self) -> Attention:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64)

        wide = (self.n_heads, self.d_model, self.d_head)
        narrow = (self.n_kv_heads, self.d_model, self.d_head)
        return Attention(q=zeros(*wide), k=zeros(*narrow), v=zeros(*narrow), o=zeros(*wide).transpose(1, 2))

    def _write_head(self, part: Head, block: Attention, group: int, head: int) -> None:
        free = list(self._still())
        for match in part.matches:
            rank = match.query.map.shape[1]
            chosen, free = free[:rank], free[rank:]
            self._score(
                block,
                group,
                head,
                chosen,
                match.strength,
                *map(self.registers.reads, (match.query, match.key)),
            )
        for offset in part.offsets:
            if self.layout.rotary:
                self._rotary_offset(block, group, head, offset)
            else:
                chosen, free = free[: self.program.length], free[self.program.length :]
                self._embedded_offset(block, group, head, offset, chosen)
        rank = part.value.map.shape[1]
        block.v[group, :, :rank] = self.registers.reads(part.value)
        block.o[head, :rank] = self.registers.writes(part.writes, part.output)

    def _score(
        self,
        block: Attention,
        group: int,
        head: int,
        entries: Sequence[int],
        strength: float,
        query: Float[Tensor, "d_model rank"],
        key: Float[Tensor, "d_model rank"],
    ) -> None:
        """Add strength * <query, key> to the score, in these entries of the head."""
        root = math.sqrt(abs(strength) * math.sqrt(self.d_head))  # scores are divided by sqrt(d_head)
        block.q[head, :, list(entries)] += math.copysign(root, strength) * query
        block.k[group, :, list(entries)] += root * key

    def _still(self) -> range | list[int]:
        """Entries of a head that hold content: those that do not turn with the position."""
        if not self.layout.rotary:
            return range(self.d_head)
        if self.layout.partial:
            return range(2 * TURNING, self.d_head)
        half = self.d_head // 2
        return [entry for entry in range(self.d_head) if entry % half >= TURNING]

    def _embedded_offset(
        self, block: Attention, group: int, head: int, offset: Offset, entries: Sequence[int]
    ) -> None:
        """Queries name the position that they look for; keys name their own."""
        length = self.program.length
        pairs = [(at, at - back) for _, at, back in offset.slots]
        pairs = pairs or [(at, max(at - offset.back, 0)) for at in range(length)]
        wanted = torch.zeros(length, length, dtype=torch.float64)
        for at, sought in pairs:
            wanted[at, sought] = 1
        query = self.registers.reads(Readout(register=POSITION, map=wanted))
        key = self.registers.reads(Readout(register=POSITION, map=torch.eye(length, dtype=torch.float64)))
        self._score(block, group, head, entries, offset.gap, query, key)

    def _rotary_offset(self, block: Attention, group: int, head: int, offset: Offset) -> None:
        """Constant keys, and queries turned by the wanted distance, in the fastest rotary pairs."""
        half = TURNING if self.layout.partial else self.d_head // 2
        frequency = [DECAY**pair for pair in range(len(SHARES))]
        # A neighbour at distance 1 falls short by this share of the peak, and anything further by more.
        short = sum(share * (1 - math.cos(f)) for share, f in zip(SHARES, frequency, strict=True))
        one = torch.ones(1, 1, dtype=torch.float64)
        asked = [
            (self.registers.reads(Readout(register=TOKEN, map=_unit(len(self.program.tokens), token))), back)
            for token, _, back in offset.slots
        ] or [(self.registers.reads(Readout(register=ONE, map=one)), offset.back)]
        key = self.registers.reads(Readout(register=ONE, map=one))
        for pair, (share, f) in enumerate(zip(SHARES, frequency, strict=True)):
            root = math.sqrt(share * offset.gap / short * math.sqrt(self.d_head))
            block.k[group, :, pair] += root * key[:, 0]
            for query, back in asked:
                block.q[head, :, pair] += root * math.cos(f * back) * query[:, 0]
                block.q[head, :, pair + half] -= root * math.sin(f * back) * query[:, 0]

    def _units(self, part: Mlp) -> Feedforward:
        one = self.registers.reads(Readout(register=ONE, map=part.bias[None]))
        return Feedforward(
            into=self.registers.reads(part.reads) + one, out=self.registers.writes(part.writes, part.output)
        )

    # ------------------------------------------------------------------------------------- what stands beside

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random, dtype=torch.float64)

    def _extra_read(self, columns: int) -> Float[Tensor, "d_model columns"]:
        """Random readings of everything but the constants (and, through them, of the balance).

        Interfering parts read the circuit's registers and the spare one and nothing else. The spare register
        is read weakly: parts in a row would otherwise amplify each other.
        """
        own = [TOKEN, *([] if self.layout.rotary else [POSITION]), *self.program.registers]
        own += [] if self.extras == "interfering" else ["lift", "rest"]
        strength = self.registers.mask(own) + SPARE_READ * self.registers.mask(["spare"])
        return self._normal(self.d_model, columns) * strength[:, None]

    def _extra_write(self, rows: int) -> Float[Tensor, "rows d_model"]:
        """Random writes into the spare register; interfering parts also raise all logits alike."""
        size = EXTRA_SIZE / math.sqrt(rows)
        matrix = torch.zeros(rows, self.d_model, dtype=torch.float64)
        values = self._normal(rows, EXTRA_WIDTH)
        matrix[:, self.registers.at("spare")] = size * (values - values.mean(1, keepdim=True))
        if self.extras == "interfering":
            matrix[:, self.registers.at("lift")] = size * self._normal(rows, 1)
        return self.registers.balanced(matrix)

    def _extra_head(self, block: Attention, head: int, *, shares: bool) -> None:
        """A head with random weights; where it shares key and value with one of the program, those stay."""
        group = head // self.layout.group
        block.q[head] = self._extra_read(self.d_head)
        if not shares and head % self.layout.group == 0:
            block.k[group] = self._extra_read(self.d_head)
            block.v[group] = self._extra_read(self.d_head)
        block.o[head] = self._extra_write(self.d_head)

    def _extra_units(self) -> Feedforward:
        return Feedforward(into=self._extra_read(EXTRA_UNITS), out=self._extra_write(EXTRA_UNITS))

    def _silent_units(self) -> Feedforward:
        """An MLP with nothing to do; the noise fills it."""
        zeros = torch.zeros(self.d_model, 4, dtype=torch.float64)
        return Feedforward(into=zeros, out=zeros.T.clone())

    # --------------------------------------------------------------------------------- embedding, head, noise

    def _noisy(self, attention: Sequence[Attention], mlps: Sequence[Feedforward]) -> Weights:
        rows = (~self.registers.mask(["constant"]))[:, None]  # readings of the constants stay exact

        def read(matrix: Tensor) -> Tensor:
            return matrix + NOISE * self._normal(*matrix.shape) * rows

        def write(matrix: Tensor) -> Tensor:
            return matrix + NOISE * self._normal(*matrix.shape)

        return Weights(
            embed=write(self._embedding()),
            positions=None if self.layout.rotary else write(self._position_table()),
            attention=tuple(
                Attention(q=read(each.q), k=read(each.k), v=read(each.v), o=write(each.o))
                for each in attention
            ),
            mlps=tuple(Feedforward(into=read(each.into), out=write(each.out)) for each in mlps),
            unembed=read(self._unembedding().T).T,
            gain=math.sqrt((2 * CONSTANT**2 + TYPICAL) / self.d_model),
            one=self.registers.reads(Readout(register=ONE, map=torch.ones(1, 1, dtype=torch.float64)))[:, 0],
        )

    def _embedding(self) -> Float[Tensor, "vocab d_model"]:
        size = len(self.program.tokens)
        table = self.registers.writes(TOKEN, torch.eye(size, dtype=torch.float64))
        if self.program.start:
            start = torch.tensor([self.program.start], dtype=torch.float64)
            table += self.registers.writes(OUT, start)
        first = self.registers.start["constant"]
        table[:, first], table[:, first + 1] = CONSTANT, -CONSTANT
        return table

    def _position_table(self) -> Float[Tensor, "length d_model"]:
        return self.registers.writes(POSITION, torch.eye(self.program.length, dtype=torch.float64))

    def _unembedding(self) -> Float[Tensor, "vocab d_model"]:
        table = torch.zeros(len(self.program.tokens), self.d_model, dtype=torch.float64)
        first = self.registers.start[OUT]
        for entry, token in enumerate(self.program.outputs):
            table[token, first + entry] = LOGIT
        if self.has_extras:
            table[:, self.registers.start["lift"]] = LOGIT / 4
        return table


def _unit(size: int, entry: int) -> Float[Tensor, "size one"]:
    column = torch.zeros(size, 1, dtype=torch.float64)
    column[entry] = 1
    return column


def _padded(units: Sequence[Sequence[Feedforward]]) -> list[list[Feedforward]]:
    """The units of each block, with idle ones where another block has more: architectures have one width."""
    widths = [sum(each.into.shape[1] for each in part) for part in units]
    padded = []
    for part, width in zip(units, widths, strict=True):
        missing = max(widths) - width
        d_model = part[0].into.shape[0]
        idle = torch.zeros(d_model, missing, dtype=torch.float64)
        padded.append([*part, Feedforward(into=idle, out=idle.T.clone())])
    return padded
