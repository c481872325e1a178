"""The distribution on the package index, its extras, and the error for one that is missing."""

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

from assay.core.errors import MissingExtraError


DISTRIBUTION = "circuit-assay"
# Extra to the distributions that it installs, as in pyproject.toml. Extra `all` installs every one.
EXTRAS: dict[str, tuple[str, ...]] = {
    "serve": ("starlette", "uvicorn"),
    "vision": ("timm", "pyarrow"),
    "parquet": ("pyarrow",),
    "postgres": ("psycopg",),
    "ray": ("ray",),
    "placement": ("accelerate",),
    "gguf": ("gguf", "accelerate"),
    "hub": ("datasets", "huggingface-hub"),
}


def install_command(extra: str) -> str:
    """What to type to get an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@contextmanager
def needs_extra(extra: str, need: str) -> Iterator[None]:
    """Around the imports of an extra.

    Args:
        extra: A key of `EXTRAS`.
        need: What needs which package, as the beginning of a sentence.

    Raises:
        MissingExtraError: If an import fails; the message names the command.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{need}; run: {install_command(extra)}") from error


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution; none if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
