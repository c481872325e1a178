"""Circuit files in repositories of the Hugging Face Hub: their addresses, and fetching them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from assay.core.errors import FileFormatError, HubError, InputError
from assay.core.extras import needs_extra
from assay.core.untrusted import printable


SCHEME = "hf://"
FILE = "circuit.safetensors"
MOST_BYTES = 1 << 30  # of a file that is fetched: eight times the largest matrix of edges that is read
_ADDRESS = re.compile(
    r"hf://(?P<repository>[^/@]+/[^/@]+)(@(?P<revision>refs/(pr|convert)/[^/]+|[^/]+))?(/(?P<path>.+))?"
)


def is_address(source: object) -> bool:
    """Whether a text is an address of the hub."""
    return isinstance(source, str) and source.startswith(SCHEME)


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file of a repository of the hub.

    Attributes:
        repository: Its id, `OWNER/NAME`.
        revision: Branch, tag or commit; None: the main branch.
        path: The file in the repository, `.safetensors`.

    Raises:
        InputError: If the file lies outside the repository or is of another type.
    """

    repository: str
    revision: str | None = None
    path: str = FILE

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if {"", ".", ".."} & set(parts) or "\\" in self.path or not self.path.endswith(".safetensors"):
            raise InputError(
                f"the file of a circuit on the hub is {printable(self.path)[:200]!r}; give its path in the "
                f"repository, e.g. {FILE} or ioi/{FILE}"
            )

    @classmethod
    def parse(cls, text: str) -> "HubFile":
        """The file that an address names.

        Args:
            text: `hf://OWNER/NAME[@REVISION][/PATH]`; a slash in a revision is written `%2F`.

        Raises:
            InputError: For other text.

        Example:
            >>> HubFile.parse("hf://acme/ioi@v1/gpt2/circuit.safetensors")
            HubFile(repository='acme/ioi', revision='v1', path='gpt2/circuit.safetensors')
        """
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise InputError(
                f"the address is {printable(text)[:200]!r}; write hf://OWNER/NAME, "
                f"hf://OWNER/NAME@REVISION or hf://OWNER/NAME@REVISION/PATH.safetensors"
            )
        revision = found["revision"]
        named = {} if found["path"] is None else {"path": found["path"]}
        return cls(
            repository=found["repository"],
            revision=None if revision is None else unquote(revision),
            **named,
        )

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{quote(self.revision, safe='')}"
        return f"{SCHEME}{self.repository}{revision}/{self.path}"

    def at(self, commit: str) -> "HubFile":
        """The same file at a commit."""
        return replace(self, revision=commit)

    def describe(self) -> dict[str, str | None]:
        """As a circuit's provenance names it."""
        return {"repository": self.repository, "revision": self.revision, "file": self.path}

    def fetch(self, token: str | None = None) -> tuple[Path, str]:
        """Fetch the file into the cache of the hub's client.

        Args:
            token: Access token. Default: that of `HF_TOKEN` or of `hf auth login`.

        Returns:
            The local file, and the commit that the revision meant.

        Raises:
            FileFormatError: If it is larger than any circuit, or of unknown size.
            HubError: If there is no such file, repository or revision, or it is out of reach.
            MissingExtraError: If huggingface_hub is not installed.
        """
        with needs_extra("hub", f"{self} needs huggingface_hub"):
            from huggingface_hub import hf_hub_download
        from assay.models.hugging_face import without_progress_bars

        where: dict[str, Any] = {"repo_id": self.repository, "filename": self.path, "token": token}
        with self._explained(), without_progress_bars():
            found: Any = hf_hub_download(**where, revision=self.revision, dry_run=True)
            if found.file_size is None or found.file_size > MOST_BYTES:
                size = "an unknown number of" if found.file_size is None else f"{found.file_size:,}"
                raise FileFormatError(
                    f"{self} has {size} bytes, and a circuit has at most {MOST_BYTES:,}; nothing was fetched"
                )
            # By the name asked for, so that the cache knows it without a network; its folder is the commit's.
            file = Path(hf_hub_download(**where, revision=self.revision))
            return file, file.parents[self.path.count("/")].name

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the hub's client as one that says what to do."""
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        from assay.models.hub import explained

        with explained(self.repository, self.revision, instead="a circuit file"):
            try:
                yield
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError as error:
                raise HubError(
                    f"the repository {self.repository!r} has no file {self.path!r} at "
                    f"{self.revision or 'its main branch'}; name one that it has: "
                    f"{SCHEME}{self.repository}/PATH.safetensors"
                ) from error
