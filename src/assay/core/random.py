"""One root seed, named streams: draws do not depend on the order in which parts of a run ask.

A stream is `numpy.random.Generator(PCG64(SeedSequence([seed, CRC32(name)])))`, so a name always
means the same numbers, whatever was drawn before it. Nothing seeds a global generator.
"""

import zlib
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    import torch


def stream(seed: int, name: str) -> np.random.Generator:
    """The numpy generator of the stream `name` under the root `seed`."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(name.encode())])
    return np.random.Generator(np.random.PCG64(sequence))


def torch_stream(seed: int, name: str) -> "torch.Generator":
    """A CPU torch generator seeded from the stream `name`; draw on CPU, then move."""
    import torch

    return torch.Generator().manual_seed(int(stream(seed, name).integers(2**63 - 1)))
