"""Models of jobs: a name with a revision, and where this process runs them, whatever jobs say."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from assay.models import Model, load_model
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


def model_at(source: str, device: str | None, dtype: str | None) -> Model:
    """The model of a plan: a name or path as of `load_model`, or `HUB-ID@REVISION`.

    Args:
        source: Which model.
        device: Where jobs run it; see `models_run_on`.
        dtype: Number type of the weights, e.g. `float64`; None: as of `load_model`.
    """
    name, revision = _revision_of(source)
    return load_model(name, device=_HERE.get() or device, dtype=number_type(dtype), revision=revision)


def _revision_of(source: str) -> tuple[str, str | None]:
    """A model and the branch, tag or commit behind its `@`; timm's names have an `@` of their own."""
    name, found, revision = source.rpartition("@")
    if not found or ":" in source or os.path.exists(source):
        return source, None
    return name, revision
