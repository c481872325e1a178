"""A monitor inside a serving function: inputs as they are served, a reading when a window is full."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from assay.analyses.generalization.batches import Inputs
from assay.analyses.generalization.journal import Reading
from assay.analyses.generalization.monitoring import Monitor
from assay.core.errors import InputError, NonFiniteError, ShapeError
from assay.tasks import ImageSet
from assay.tasks.prompt_set import ArrivingPrompts


Served = Tensor | np.ndarray | str | Sequence[str]
MOST_WAITING = 10_000
PROMPT, ORIGIN = "a prompt", "served"


class Observer:
    """Collects what a model is served and has windows of it observed in a thread of its own.

    `add` only checks and queues, so a serving function does not wait for a discovery; any thread may call it.
    Use it as a context, or `close` it: full windows that are queued are then observed first.

    Args:
        monitor: Observes the windows. Nobody else may use it meanwhile.
        callback: Called with each reading, in the observer's thread.
        window: Inputs observed together, 2 or more. Default: the size of the known batches or of
            those of the noise floor, which no other may differ from.
        most_waiting: Inputs that wait at most, a window or more. While as many wait, new ones are dropped and
            counted: a monitor that is slower than the service watches a part of what is served.

    Attributes:
        dropped: Inputs that were dropped.
        passed_over: Inputs of windows whose shift is undefined (all inputs alike); no reading names them.

    Raises:
        InputError: If no window is given and the monitor has no known batches, or the sizes do not fit.

    Notes:
        What waits is held in memory: inputs that are not observed yet are gone with the process.
        `POST /observe` of `assay serve` keeps them on the disk.

    Example:
        >>> import assay
        >>> from assay.tasks import draw_shapes, EvalTransform
        >>> model = assay.load_model(str(assay.Zoo.embedded().folder(assay.Zoo.embedded().keys[0])))
        >>> known = draw_shapes("flat", 8, start=1_000_000).task(EvalTransform.for_model(model))
        >>> monitor = assay.Monitor(model, assay.discover(model, known, steps=1), threshold=0.2)
        >>> with Observer(monitor, lambda reading: print(reading.index, reading.n), window=4) as observer:
        ...     for image in draw_shapes("neon", 8).pixels:
        ...         taken = observer.add(image)
        0 4
        1 4
    """

    def __init__(
        self,
        monitor: Monitor,
        callback: Callable[[Reading], object],
        *,
        window: int | None = None,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        window = monitor.window if window is None else window
        if window is None:
            raise InputError("the monitor has no known batches that give the window; pass window=")
        if window != (monitor.window or window):
            raise InputError(
                f"window is {window}, but the known batches have {monitor.window} inputs; leave it out"
            )
        if window < 2 or most_waiting < window:
            raise InputError(
                f"window is {window} and most_waiting {most_waiting}; expected 2 inputs or more, and room "
                "for a window"
            )
        self.monitor, self.window = monitor, window
        self.dropped = self.passed_over = 0
        self._callback, self._most = callback, most_waiting
        self._waiting: deque[Tensor | np.ndarray | str] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._form = ""  # of all inputs, known with the first
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Inputs that are not observed yet, without the window at hand."""
        return len(self._waiting)

    def add(self, inputs: Served) -> int:
        """Queue one input or several; returns at once.

        Args:
            inputs: Normalised images, a tensor `[3, H, W]` or `[N, 3, H, W]`; 8-bit images of the model's
                size, an array `[H, W, 3]` or `[N, H, W, 3]`, normalised by the model's transform; a prompt,
                or a list of prompts.

        Returns:
            How many were queued; the others were dropped.

        Raises:
            ShapeError: For inputs of another form, or of another shape than the first.
            InputError: After `close`, or for inputs that the model does not read.
            Exception: What ended the observer's thread: an error of the monitor or of the callback.
        """
        single = _single(inputs)
        if not single:
            return 0
        form = _form(single[0])
        if form != self._form or form == PROMPT:  # every prompt is looked at, of images the first
            self.monitor.model.bind(self.monitor.task(_joined(single)))
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise InputError("the observer is closed; make another one")
            self._form = self._form or form
            if form != self._form:
                raise ShapeError(f"got {form} after {self._form}; one observer takes inputs of one form")
            room = self._most - len(self._waiting)
            self._waiting.extend(single[:room])
            self.dropped += len(single[room:])
            self._changed.notify()
            return len(single[:room])

    def close(self) -> None:
        """Observe the windows that are full, then end; what is left of a window is not observed.

        Raises:
            Exception: What ended the observer's thread before.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "Observer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while (window := self._next()) is not None:
                try:
                    reading = self.monitor.observe(window)
                except NonFiniteError:
                    self.passed_over += self.window
                    continue
                self._callback(reading)
        except BaseException as error:  # noqa: BLE001 - raised again by `add` and `close`
            self._error = error

    def _next(self) -> Inputs | None:
        """The next full window; None once closed and there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) >= self.window)
            if len(self._waiting) < self.window:
                return None
            return _joined([self._waiting.popleft() for _ in range(self.window)])


def _single(inputs: Served) -> list[Tensor | np.ndarray | str]:
    """Inputs one by one; tensors are copied, as a service may reuse theirs."""
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, Tensor) and inputs.ndim in (3, 4) and inputs.shape[-3] == 3:
        return list(inputs.detach().to("cpu", copy=True).reshape(-1, *inputs.shape[-3:]))
    if isinstance(inputs, np.ndarray) and inputs.ndim in (3, 4) and inputs.shape[-1] == 3:
        if inputs.dtype == np.uint8:
            return list(inputs.reshape(-1, *inputs.shape[-3:]).copy())
    elif isinstance(inputs, list | tuple) and all(isinstance(each, str) for each in inputs):
        return list(inputs)
    shape = f" {inputs.dtype} {tuple(inputs.shape)}" if isinstance(inputs, Tensor | np.ndarray) else ""
    raise ShapeError(
        f"got a {type(inputs).__name__}{shape}; expected a tensor [3, H, W] or [N, 3, H, W], a uint8 array "
        "[H, W, 3] or [N, H, W, 3], a prompt or a list of prompts"
    )


def _form(single: Tensor | np.ndarray | str) -> str:
    if isinstance(single, str):
        return PROMPT
    return f"a {type(single).__name__} {tuple(single.shape)}"


def _joined(window: list[Tensor | np.ndarray | str]) -> Inputs:
    if isinstance(window[0], Tensor):
        return torch.stack([each for each in window if isinstance(each, Tensor)])
    if isinstance(window[0], np.ndarray):
        pixels = np.stack([each for each in window if isinstance(each, np.ndarray)])
        return ImageSet(pixels=pixels, domain=ORIGIN)
    return ArrivingPrompts(prompts=tuple(each for each in window if isinstance(each, str)), domain=ORIGIN)
