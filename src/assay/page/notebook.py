"""A summary and a picture in a frame of their own, as a notebook shows a result."""

import html
import re
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes

from assay.core.errors import InputError
from assay.page.draw import to_svg
from assay.page.html import source


LINE, REST = 22, 62  # pixels of a row of a table, and of all else
TALLEST = 900  # pixels; more is scrolled


def in_frame(summary: str, draw: Callable[[], Axes | np.ndarray]) -> str:
    """An `<iframe>` with its document inside: no style leaks out, no script runs, nothing is fetched.

    Args:
        summary: HTML that is safe to show.
        draw: Makes the picture. A result in which there is nothing to draw (`InputError`) has none.
    """
    found = re.search("<strong>(.*?)</strong>", summary)
    title = html.unescape(found[1]) if found else "result"
    picture, height = "", REST + LINE * summary.count("<tr")
    try:
        axes = draw()
    except InputError:
        pass
    else:
        picture = to_svg(axes.flat[0] if isinstance(axes, np.ndarray) else axes, label=title, key="p")
        view = re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', picture)
        height += round(float(view[1]) * 4 / 3) if view else 0
    colours = source("page.css").partition("* {")[0]  # of light and dark screens
    document = (
        f"<!doctype html><meta charset=utf-8><style>{colours}body{{margin:8px;background:var(--paper);"
        f"color:var(--ink)}}.plot{{display:block;width:100%;height:auto;font-family:var(--sans)}}</style>"
        f"{summary}{picture}"
    )
    style = f"width:100%;height:{min(height, TALLEST)}px;border:none"
    return (
        f'<iframe sandbox="" title="{html.escape(title)}" style="{style}" srcdoc="{html.escape(document)}">'
        "</iframe>"
    )
