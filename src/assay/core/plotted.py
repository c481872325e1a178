"""Results that have a picture."""

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np


if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Plotted:
    """A result that has a picture, which `plot` draws.

    Attributes:
        drawn_by: `module:function` that draws it on axes or a new figure. Named, so that results, which lie
            below pictures, load no plotting library before one is asked for.
    """

    drawn_by: ClassVar[str]

    def plot(self, ax: "Axes | None" = None) -> "Axes | np.ndarray":
        """Draw the result.

        Args:
            ax: Where to draw. Default: a new figure.

        Returns:
            The axes; an array of them where a new figure has several panels.
        """
        module, _, name = self.drawn_by.partition(":")
        drawn: Any = getattr(importlib.import_module(module), name)(self, ax)
        panels = drawn.get_figure().axes
        return drawn if ax is not None or len(panels) == 1 else np.array(panels)
