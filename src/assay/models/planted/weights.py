"""From a program to a GPT-2: registers of the stream, heads in blocks, extra parts, slight noise.

Every weight is written as if the norms were the identity. A pair of large constants of opposite sign in the
stream makes that nearly true: it fixes the norm's scale, and a balance entry keeps the stream's mean at zero.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from assay.core.random import torch_stream
from assay.models.planted.programs import ONE, OUT, POSITION, TOKEN, Head, Match, Mlp, Program, Readout, eye


CONSTANT = 16.0  # both constants of the stream, +C and -C
TYPICAL = 6.0  # squared length of the rest of the stream, for the norm's gain
LOGIT = 8.0  # logit of an output register entry of 1
NOISE = 2e-3  # standard deviation of the slight random weights
EXTRA_WIDTH = 8  # entries that extra parts write
EXTRA_UNITS = 12  # of an extra MLP
IDLE_UNITS = 4  # of an MLP with nothing to do; the noise fills it
EXTRA_SIZE = 0.4  # of what an extra part writes per entry, so that its length is about that of a token's
SPARE_READ = 0.3  # how strongly extra parts read each other


Extras = Literal["bare", "inert", "interfering"]


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


def _terms(part: Head, length: int) -> list[Match]:
    """The terms of a head's score, that of the position before among them."""
    if not part.back:
        return list(part.matches)
    places = eye(length)
    before = places[[max(at - 1, 0) for at in range(length)]]  # queries name the position that they look for
    return [*part.matches, Match(Readout(POSITION, before), Readout(POSITION, places), part.back)]


class Assembler:
    """Writes one program into blocks.

    With extra parts there is a block more behind the first one of the program (for a program of one block:
    one before and one behind), and a head more in each block.

    Args:
        program: What to write.
        extras: What the model holds besides the program's parts.
        seed: Of the noise and the extra parts.

    Attributes:
        nodes: Node of the graph of each part.
    """

    def __init__(self, program: Program, extras: Extras, seed: int) -> None:
        self.program, self.extras = program, extras
        self.random = torch_stream(seed, f"planted {program.name}/gpt2/{extras}")
        more, depth = extras != "bare", 1 + max(part.block for part in program.parts)
        self.n_blocks = depth + (0 if not more else 2 if depth == 1 else 1)
        self.heads: dict[tuple[int, int], Head] = {}
        self.mlps: dict[int, Mlp] = {}
        for part in program.parts:
            block = part.block + int(more and (part.block > 0 or depth == 1))
            if isinstance(part, Head):
                self.heads[block, sum(layer == block for layer, _ in self.heads)] = part
            else:
                self.mlps[block] = part
        self.nodes = {part.name: f"a{layer}.h{head}" for (layer, head), part in self.heads.items()}
        self.nodes |= {part.name: f"m{layer}" for layer, part in self.mlps.items()}
        self.n_heads = max(1 + max(head for _, head in self.heads) + int(more), 2)
        sizes = {TOKEN: len(program.tokens), POSITION: program.length, **program.registers}
        sizes |= {"spare": EXTRA_WIDTH, "lift": 1} if more else {}
        sizes |= {"balance": 1, "constant": 2}
        narrowest = max(
            max(sum(term.query.map.shape[1] for term in _terms(part, program.length)), len(part.output))
            for part in self.heads.values()
        )
        sizes["rest"] = max(self.n_heads * narrowest - sum(sizes.values()), 0)
        self.at: dict[str, slice] = {}
        end = 0
        for name, size in sizes.items():
            self.at[name] = slice(end, end := end + size)
        multiple = 2 * self.n_heads
        self.d_model = -(-end // multiple) * multiple
        self.d_head = self.d_model // self.n_heads

    # ---- reading and writing registers

    def _read(self, reading: Readout) -> Float[Tensor, "d_model rank"]:
        """A reading as a map from the stream."""
        matrix = _zeros(self.d_model, reading.map.shape[1])
        if reading.register == ONE:  # half of each constant: 1 = (C - (-C)) / 2C
            half = reading.map / (2 * CONSTANT)
            matrix[self.at["constant"]] = torch.cat([half, -half])
        else:
            matrix[self.at[reading.register]] = reading.map
        return matrix

    def _write(self, register: str, output: Float[Tensor, "rank size"]) -> Float[Tensor, "rank d_model"]:
        """A map into a register as a map into the stream."""
        matrix = _zeros(len(output), self.d_model)
        matrix[:, self.at[register]] = output
        return self._balanced(matrix)

    def _balanced(self, matrix: Float[Tensor, "rank d_model"]) -> Float[Tensor, "rank d_model"]:
        """Writes with the balance entry set to minus the sum of the others, so that the mean stays zero."""
        matrix[:, self.at["balance"]] -= matrix.sum(1, keepdim=True)
        return matrix

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random, dtype=torch.float64)

    # ---- parts

    def _head(self, layer: int, head: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights of q, k, v `[d_model, d_head]` and of the output `[d_head, d_model]`."""
        part, width = self.heads.get((layer, head)), self.d_head
        if part is None and self.extras != "bare":
            q, k, v = (self._extra_read(width) for _ in range(3))
            return q, k, v, self._extra_write(width)
        q, k, v, o = *(_zeros(self.d_model, width) for _ in range(3)), _zeros(width, self.d_model)
        if part is None:
            return q, k, v, o
        used = 0
        for query, key, strength in _terms(part, self.program.length):
            entries = slice(used, used := used + query.map.shape[1])
            root = math.sqrt(abs(strength) * math.sqrt(width))  # scores are divided by sqrt(d_head)
            q[:, entries] = math.copysign(root, strength) * self._read(query)
            k[:, entries] = root * self._read(key)
        rank = part.value.map.shape[1]
        v[:, :rank] = self._read(part.value)
        o[:rank] = self._write(part.writes, part.output)
        return q, k, v, o

    def _mlp(self, layer: int) -> tuple[Tensor, Tensor]:
        """Weights `[d_model, units]` and `[units, d_model]`."""
        part = self.mlps.get(layer)
        units = [(_zeros(self.d_model, 0), _zeros(0, self.d_model))]
        if part is not None:
            into = self._read(part.value) + self._read(Readout(ONE, part.bias[None]))
            units.append((into, self._write(part.writes, part.output)))
        if self.extras != "bare":
            units.append((self._extra_read(EXTRA_UNITS), self._extra_write(EXTRA_UNITS)))
        elif part is None:
            units.append((_zeros(self.d_model, IDLE_UNITS), _zeros(IDLE_UNITS, self.d_model)))
        return torch.cat([into for into, _ in units], 1), torch.cat([out for _, out in units])

    def _extra_read(self, columns: int) -> Float[Tensor, "d_model columns"]:
        """Random readings of everything but the constants (and, through them, of the balance).

        Interfering parts read the circuit's registers and the spare one and nothing else. The spare register
        is read weakly: parts in a row would otherwise amplify each other.
        """
        strength = torch.zeros(self.d_model)
        names = [TOKEN, POSITION, *self.program.registers]
        for name in names if self.extras == "interfering" else [*names, "lift", "rest"]:
            strength[self.at[name]] = 1
        strength[self.at["spare"]] = SPARE_READ
        return self._normal(self.d_model, columns) * strength[:, None]

    def _extra_write(self, rows: int) -> Float[Tensor, "rows d_model"]:
        """Random writes into the spare register; interfering parts also raise all logits alike."""
        size, matrix = EXTRA_SIZE / math.sqrt(rows), _zeros(rows, self.d_model)
        values = self._normal(rows, EXTRA_WIDTH)
        matrix[:, self.at["spare"]] = size * (values - values.mean(1, keepdim=True))
        if self.extras == "interfering":
            matrix[:, self.at["lift"]] = size * self._normal(rows, 1)
        return self._balanced(matrix)

    # ---- the model

    def module(self, dtype: torch.dtype) -> nn.Module:
        """A GPT-2 with these weights, in evaluation mode."""
        blocks = [
            ([self._head(layer, head) for head in range(self.n_heads)], self._mlp(layer))
            for layer in range(self.n_blocks)
        ]
        attention, mlps = zip(*blocks, strict=True)
        n_units = max(into.shape[1] for into, _ in mlps)
        exact = torch.ones(self.d_model, 1, dtype=torch.float64)
        exact[self.at["constant"]] = 0  # readings of the constants stay exact

        def reads(matrix: Tensor) -> Tensor:
            return matrix + NOISE * self._normal(*matrix.shape) * exact

        def writes(matrix: Tensor) -> Tensor:
            return matrix + NOISE * self._normal(*matrix.shape)

        module = self._empty(n_units)
        backbone: Any = module.get_submodule("transformer")
        gain = math.sqrt((2 * CONSTANT**2 + TYPICAL) / self.d_model)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
            for path, part in module.named_modules():
                if path.rpartition(".")[2].startswith("ln_"):
                    part.weight.fill_(gain)
            backbone.wte.weight.copy_(writes(self._embedding()))
            backbone.wpe.weight.copy_(writes(self._write(POSITION, eye(self.program.length))))
            for block, heads in zip(backbone.h, attention, strict=True):
                q, k, v, o = (torch.stack(each) for each in zip(*heads, strict=True))
                # Columns are ordered (q|k|v, head, entry).
                columns = [reads(each).transpose(0, 1).flatten(1) for each in (q, k, v)]
                block.attn.c_attn.weight.copy_(torch.cat(columns, 1))
                block.attn.c_proj.weight.copy_(writes(o).flatten(0, 1))
            for block, (into, out) in zip(backbone.h, mlps, strict=True):
                idle = n_units - into.shape[1]
                block.mlp.c_fc.weight.copy_(reads(functional.pad(into, (0, idle))))
                block.mlp.c_proj.weight.copy_(writes(functional.pad(out, (0, 0, 0, idle))))
            module.get_submodule("lm_head").weight.copy_(reads(self._unembedding()).T)  # type: ignore[operator]  # a tensor
        return module.to(dtype).eval()

    def _empty(self, n_units: int) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=len(self.program.tokens),
            n_positions=self.program.length,
            n_embd=self.d_model,
            n_layer=self.n_blocks,
            n_head=self.n_heads,
            n_inner=n_units,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        # The constructor draws weights, all of which are overwritten: the caller's generator is left alone.
        with torch.random.fork_rng(devices=[]):
            return GPT2LMHeadModel(config).double()

    def _embedding(self) -> Float[Tensor, "vocab d_model"]:
        table = self._write(TOKEN, eye(len(self.program.tokens)))
        if self.program.start:
            table += self._write(OUT, torch.tensor([self.program.start], dtype=torch.float64))
        table[:, self.at["constant"]] = torch.tensor([CONSTANT, -CONSTANT], dtype=torch.float64)
        return table

    def _unembedding(self) -> Float[Tensor, "d_model vocab"]:
        table = _zeros(self.d_model, len(self.program.tokens))
        for entry, token in enumerate(self.program.outputs):
            table[self.at[OUT].start + entry, token] = LOGIT
        if self.extras != "bare":
            table[self.at["lift"]] = LOGIT / 4
        return table
