"""Signals of the system, handled in one way for a while."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object] | None, *numbers: int) -> Iterator[None]:
    """Signals reach a handler within, and what they reached before afterwards.

    Args:
        handler: None: what they reach now, to be restored whatever other code puts in its place.
        numbers: The signals. They go to the main thread; entered in another, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers if handler is not None else ():
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that ends a run as Ctrl-C does."""
    raise KeyboardInterrupt
