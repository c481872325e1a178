"""The runtime type checks of the suite, switched off where they cost more than they find."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def no_type_checks() -> Iterator[None]:
    """As for a user, who has no such checks: for bulk work that other tests pass through with them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
