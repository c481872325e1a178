"""How far a long call is, in a notebook or on stderr."""

import importlib
import sys
import time
from typing import Any

from assay.core.untrusted import printable


OFTEN, SELDOM = 0.2, 10.0  # seconds between two pictures of a stage in a notebook, two lines on stderr


class ProgressDisplay:
    """Shows how far a long call is: pass it as `progress=`.

    In a notebook it is one line of all stages, brought up to date in place. Elsewhere, a line on stderr says
    when a stage begins and, every ten seconds, how far it is.

    Example:
        >>> told = ProgressDisplay()
        >>> told("passes", 3, 8)
        >>> told.stages
        {'passes': (3, 8)}
    """

    def __init__(self) -> None:
        self.stages: dict[str, tuple[int, int]] = {}
        self._handle: Any = None
        self._drawn = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Take note.

        Args:
            stage: Its name.
            done: Steps done.
            total: All steps; 0 where unknown.
        """
        begins, waited = stage not in self.stages, time.monotonic() - self._drawn
        self.stages[stage] = (done, total)
        ipython: Any = sys.modules.get("IPython")
        shell = ipython and ipython.get_ipython()
        if shell is not None and "IPKernelApp" in shell.config:  # it can change what it has shown
            if begins or done == total or waited > OFTEN:
                self._draw()
        elif begins or waited > SELDOM:
            self._drawn = time.monotonic()
            count = "..." if begins else _count(done, total)
            sys.stderr.write(f"{printable(stage, lines=False)} {count}\n")

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._handle is None:
            show = importlib.import_module("IPython.display").display  # which has no types
            self._handle = show(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        return "; ".join(f"{stage} {_count(*steps)}" for stage, steps in self.stages.items()) or "not begun"


def _count(done: int, total: int) -> str:
    return f"{done:,} of {total:,}" if total else f"{done:,}"
