"""Signals of the system, handled in one way for a while."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Signals reach a handler within, and what they reached before afterwards.

    Args:
        handler: Called with the number of a signal and the frame.
        numbers: The signals. They go to the main thread; entered in another, nothing changes.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if here}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
