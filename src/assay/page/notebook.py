"""How a notebook shows a result, with its picture, and how far a long call is."""

import base64
import html
import importlib
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from assay.core import display
from assay.core.errors import InputError
from assay.core.untrusted import printable
from assay.page.draw import to_svg
from assay.page.html import source


OFTEN = 0.2  # seconds between two pictures of the same stage


def with_picture(summary: str, draw: Callable[[], Axes | np.ndarray]) -> str:
    """A summary with its picture below, as an `<img>` of SVG.

    What shows a notebook that it does not trust (a forge, a fresh clone in JupyterLab) removes frames and
    `<svg>`, and keeps images of data. No style leaks out, no script in an image runs, nothing is fetched.

    Args:
        summary: HTML that is safe to show.
        draw: Makes the picture. A result in which there is nothing to draw (`InputError`) has none.
    """
    try:
        axes = draw()
    except InputError:
        return summary
    found = re.search("<strong>(.*?)</strong>", summary)
    title = html.unescape(found[1]) if found else "result"
    picture = to_svg(axes.flat[0] if isinstance(axes, np.ndarray) else axes, label=title, key="p")
    return f"{summary}{_as_image(picture, title)}"


def _as_image(picture: str, title: str) -> str:
    """An inline `<svg>` as an image that needs nothing around it, on light paper."""
    colours = source("page.css").partition("@media")[0].replace("color-scheme: light dark;", "")
    look = "svg{background:var(--paper)}text{font-family:var(--sans)}"
    opening, _, rest = picture.partition(">")
    view = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', opening)
    assert view is not None
    width, height = (round(float(each) * 4 / 3) for each in view.groups())
    size = f'{view[0]} width="{width}" height="{height}"'
    alone = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{colours}{look}</style>{rest}'
    data = base64.b64encode(alone.encode()).decode("ascii")
    style = "max-width:100%;height:auto"
    return f'<img alt="{html.escape(title)}" style="{style}" src="data:image/svg+xml;base64,{data}">'


class ProgressDisplay:
    """Shows how far a long call is: pass it as `progress=`.

    In a notebook it is one small table with a row per stage, brought up to date in place. Elsewhere, a line
    on stderr says when a stage begins.

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
        begins = stage not in self.stages
        self.stages[stage] = (done, total)
        if not _in_notebook():
            if begins:
                sys.stderr.write(f"{printable(stage, lines=False)} ...\n")
        elif begins or done == total or time.monotonic() - self._drawn > OFTEN:
            self._draw()

    def _draw(self) -> None:
        show = importlib.import_module("IPython.display").display  # which has no types
        self._drawn = time.monotonic()
        if self._handle is None:
            self._handle = show(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        return "; ".join(f"{stage} {_count(*steps)}" for stage, steps in self.stages.items()) or "not begun"

    def _repr_html_(self) -> str:
        last = next(reversed(self.stages), None)
        rows = [
            (stage, _count(*steps), "now" if stage == last and steps[0] != steps[1] else "done")
            for stage, steps in self.stages.items()
        ]
        return display.table("progress", ("stage", "steps", "state"), rows)


def _count(done: int, total: int) -> str:
    return f"{done:,} of {total:,}" if total else f"{done:,}"


def _in_notebook() -> bool:
    """Whether an IPython kernel runs this code, which can change what it has shown."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config
