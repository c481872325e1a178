"""Kinds of documents that have a page: a registry, whose entries are beside what makes the pages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.core.errors import InputError
from assay.core.registry import Registry
from assay.page.blocks import Page


Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PageForm:
    """A kind of document that has a page.

    Attributes:
        noun: What a message calls it.
        schema: The version that is read; empty for documents that do not name one.
        again: What makes such a document anew.
        make: Its page, from a document that `read` has checked.
    """

    noun: str
    schema: str
    again: str
    make: Callable[[Document], Page]

    def read(self, document: Document) -> Document:
        """The document, whose missing entries are answered by name.

        Raises:
            InputError: For another version, with what to do.
        """
        if schema_of(document) != self.schema:
            raise InputError(
                f"this {self.noun} has schema {schema_of(document)!r}; this version reads "
                f"{self.schema!r}: run {self.again} again to make one"
            )
        return _Named(document, self.noun)


def schema_of(document: Document) -> str:
    """Name and version of the form that a document is written in; empty where it names none."""
    return str(document.get("schema") or document.get("format") or "")


class _Named(dict[str, Any]):
    """A document that tells what it is where an entry is missing."""

    def __init__(self, document: Document, noun: str) -> None:
        super().__init__(document)
        self._noun = noun

    def __missing__(self, key: str) -> Any:
        raise InputError(f"the document of the {self._noun} lacks {key}; it is incomplete")


# By the kind that a document names.
PAGES: Registry[PageForm] = Registry("page", holds=PageForm)
