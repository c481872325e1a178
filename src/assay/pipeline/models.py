"""Models of jobs, and where this process runs them, whatever jobs say."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from assay.models import Model, load_model, prompted
from assay.models.placing import number_type


_HERE: ContextVar[str | None] = ContextVar("models_run_on", default=None)


@contextmanager
def models_run_on(device: str | None) -> Iterator[None]:
    """Inside, this process runs the models of jobs on `device`; None: where the jobs say.

    A worker sees the accelerator it was dealt alone, as `cuda:0`; the process that deals sees others.
    """
    before = _HERE.set(device)
    try:
        yield
    finally:
        _HERE.reset(before)


def model_at(
    source: str,
    device: str | None,
    dtype: str | None,
    device_map: str | None = None,
    bos: bool | None = None,
) -> Model:
    """The model of a job, in this process.

    Args:
        source: A name or path as of `load_model`.
        device: Where jobs run it; see `models_run_on`.
        dtype: Number type of the weights, e.g. `float64`; None: as of `load_model`.
        device_map: Where its parts go; see `load_model`.
        bos: As of `load_task`, for all its prompts.
    """
    placed = _HERE.get() or device
    model = load_model(source, device=placed, device_map=device_map, dtype=number_type(dtype))
    return model if bos is None else prompted(model, bos=bos)
