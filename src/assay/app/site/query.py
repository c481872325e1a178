"""What a visitor asks of the store, read from the values of an address."""

import re

from assay.core.errors import InputError, UnknownNameError


def identity_of(text: str) -> str:
    """An id or its beginning, checked before it goes anywhere.

    Raises:
        UnknownNameError: For what cannot be one.
    """
    if not re.fullmatch(r"[0-9a-f]{4,64}", text):
        raise UnknownNameError("a result's id is 4 or more hex digits; see the list of results")
    return text


def whole(text: str | None, name: str) -> int:
    """A count in an address; 0 where there is none.

    Raises:
        InputError: For another text.
    """
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InputError(f"{name} is {text!r}; expected a whole number")
    return int(text)
