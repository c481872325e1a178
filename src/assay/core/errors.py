"""Errors and warnings of the package.

```
AssayError
├── InputError (ValueError)             an argument is out of range, empty or contradictory
│   ├── ShapeError                      a tensor has the wrong shape or dtype
│   ├── UnknownNameError                a key, edge or node that does not exist; near matches are listed
│   ├── TokenizationError               a prompt or answer breaks a token rule of its task
│   ├── GraphMismatchError              a circuit, score or file belongs to another graph or model
│   └── AlignmentError                  files that belong together disagree about which row is which
├── NonFiniteError (FloatingPointError) NaN or infinite logits, gradients, weights or scores
├── InconsistentRunError (ArithmeticError)  two ways to the same number disagree
├── UnsupportedModelError (TypeError)   a layout that the residual-stream graph cannot describe
├── FileFormatError (ValueError)        a truncated, tampered, foreign or too new file
│   └── UnsafeFileError                 a pickle where safetensors was expected
├── HubError (OSError)                  a model repository is missing, gated or out of reach
├── OutputError (OSError)               a result cannot be written
│   └── StoreError                      a results store cannot be reached
├── MissingExtraError (ImportError)     an optional dependency is not installed
└── PluginError (ImportError)           what another package registers cannot be used
AssayWarning (UserWarning)
└── DegenerateDataWarning               a statistic is undefined or unreliable on these data
```

A message says what was wrong, what came, what is allowed, and what to do next.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class AssayError(Exception):
    """Base of every error raised on purpose by the package."""


class InputError(AssayError, ValueError):
    """An argument is out of range, empty or contradictory."""


class ShapeError(InputError):
    """A tensor has the wrong shape or dtype."""


class UnknownNameError(InputError):
    """A name that is not registered or not part of the graph."""


class TokenizationError(InputError):
    """A prompt or an answer breaks a token rule of its task."""


class GraphMismatchError(InputError):
    """A circuit, score table or file belongs to another graph or model."""


class NonFiniteError(AssayError, FloatingPointError):
    """NaN or infinite logits, gradients, weights or scores."""


class InconsistentRunError(AssayError, ArithmeticError):
    """Two ways to the same number disagree by more than rounding."""


class UnsupportedModelError(AssayError, TypeError):
    """A model whose layout the residual-stream graph cannot describe."""


class AlignmentError(InputError):
    """Files that belong together disagree about which row is which."""


class FileFormatError(AssayError, ValueError):
    """A truncated, tampered, foreign or too new file."""


class UnsafeFileError(FileFormatError):
    """A pickle where safetensors was expected."""


class HubError(AssayError, OSError):
    """A model repository is missing, gated or out of reach, or has no such revision."""


class OutputError(AssayError, OSError):
    """A result cannot be written where it was asked for."""


class StoreError(OutputError):
    """A results store cannot be reached, or its database cannot be used."""


class MissingExtraError(AssayError, ImportError):
    """An optional dependency is not installed; the message holds the install command."""


class PluginError(AssayError, ImportError):
    """What another package registers cannot be loaded or is of the wrong kind; the message names it."""


class AssayWarning(UserWarning):
    """Base of every warning issued on purpose by the package."""


class DegenerateDataWarning(AssayWarning):
    """A statistic is undefined or unreliable on these data."""


def by_option(text: str) -> str:
    """A message for a page or the command line: `--split family` for `split='family' (--split family)`."""
    return re.sub(r"\w+=\S* \((--[^)]+)\)", r"\1", text)


def near_matches(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names closest to `name`, best first; case is ignored, `_` equals `-`."""
    by_plain = {each.lower().replace("_", "-"): each for each in known}
    plain = name.lower().replace("_", "-")
    return [by_plain[match] for match in difflib.get_close_matches(plain, by_plain, n=limit, cutoff=0.5)]


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not among `known`: near matches first, then the first 40 of all."""
    known = sorted(known)
    shown = ", ".join(known[:40]) + (", ..." if len(known) > 40 else "")
    hint = f"known: {shown}" if known else "none are registered"
    if near := near_matches(str(name), known):
        hint = f"did you mean {' or '.join(map(repr, near))}? Known: {shown}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")


def check_name(kind: str, name: object, known: Collection[str]) -> None:
    """Refuse a name that is not among `known`; the error is that of `unknown_name`."""
    if name not in known:
        raise unknown_name(kind, name, known)


def check_least(least: int, **counts: Any) -> None:
    """Refuse the first of some numbers, by the names of arguments, that is below `least`."""
    for name, count in counts.items():
        if not count >= least:
            raise InputError(f"{name} is {count:,}; expected at least {least:,}")


def check_fraction(**fractions: Any) -> None:
    """Refuse the first of some numbers, by the names of arguments, that is not strictly between 0 and 1."""
    for name, value in fractions.items():
        if not 0 < value < 1:
            hint = f"; write {value / 100:g} for {value:g} %" if 1 < value < 100 else ""
            raise InputError(f"{name} is {value}; expected a number strictly between 0 and 1{hint}")


@contextmanager
def writing(what: str, remedy: str = "") -> Iterator[None]:
    """Errors of the system become an `OutputError`: "cannot WHAT: the system's reason; REMEDY"."""
    try:
        yield
    except AssayError:
        raise
    except OSError as error:
        hint = f"; {remedy}" if remedy else ""
        raise OutputError(f"cannot {what}: {error.strerror or error}{hint}") from error


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
