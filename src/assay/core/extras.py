"""The distribution on the package index, and the error for an extra of it that is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from assay.core.errors import MissingExtraError


DISTRIBUTION = "circuit-assay"


def install_command(extra: str) -> str:
    """What to type to get an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@contextmanager
def needs_extra(extra: str, need: str) -> Iterator[None]:
    """Around the imports of an extra.

    Args:
        extra: Its name in pyproject.toml.
        need: What needs which package, as the beginning of a sentence.

    Raises:
        MissingExtraError: If an import fails; the message names the command.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{need}; run: {install_command(extra)}") from error
