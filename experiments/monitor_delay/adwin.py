"""ADWIN: a window of the newest values that is cut where two parts of it have different means.

Bifet and Gavalda (2007), "Learning from time-changing data with adaptive windowing", SDM. Every cut is tried
instead of the exponential buckets, which only save time.
"""

import numpy as np


class Adwin:
    """Values in, whether the window was cut out.

    A cut of the window into parts of n0 and n1 values is made where their means differ by more than

        sqrt(2 / m  var  log(2 / d)) + 2 / (3 m) log(2 / d),   1 / m = 1 / n0 + 1 / n1,   d = delta / log(n)

    with var the variance of the window; the older part is then dropped (Theorem 3.1 and equation 3.1, and the
    correction log(n) in the paper's section on implementation).

    Args:
        delta: Confidence, in (0, 1).
        least: Values of a part, at least.
    """

    def __init__(self, delta: float, *, least: int = 5) -> None:
        self._delta, self._least = delta, least
        self._window: list[float] = []

    def add(self, value: float) -> bool:
        """Take one more value of about unit range."""
        self._window.append(value)
        cut = False
        while (place := self._cut()) is not None:
            self._window = self._window[place:]
            cut = True
        return cut

    def _cut(self) -> int | None:
        n = len(self._window)
        if n < 2 * self._least:
            return None
        values = np.array(self._window)
        before = np.arange(self._least, n - self._least + 1)
        sums = values.cumsum()
        left, right = sums[before - 1] / before, (sums[-1] - sums[before - 1]) / (n - before)
        m = 1 / (1 / before + 1 / (n - before))
        log = np.log(2 * np.log(n) / self._delta)
        limit = np.sqrt(2 / m * values.var() * log) + 2 / (3 * m) * log
        beyond = np.flatnonzero(np.abs(left - right) > limit)
        return int(before[beyond[0]]) if len(beyond) else None
