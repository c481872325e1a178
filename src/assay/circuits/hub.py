"""Circuits in repositories of the Hugging Face Hub: addresses, fetching, uploading."""

import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from assay.circuits.card import CARD, circuit_card, is_own_card
from assay.core.errors import AssayWarning, FileFormatError, HubError, InputError
from assay.core.extras import needs_extra
from assay.core.untrusted import printable


if TYPE_CHECKING:
    from assay.circuits.circuit import Circuit
    from assay.core.measurement import Measurement


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
            return Path(hf_hub_download(**where, revision=found.commit_hash)), str(found.commit_hash)

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


def upload_circuit(
    circuit: "Circuit",
    repo_id: str,
    *,
    token: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    path: str = FILE,
    measurements: "Sequence[Measurement | Mapping[str, Any]]" = (),
) -> str:
    """Upload a circuit and a card, as one commit to a repository that is made if need be.

    The card, `README.md`, is written from the circuit's provenance. A card that somebody edited stays as it
    is, with a warning.

    Args:
        circuit: The circuit.
        repo_id: Id of the repository, `OWNER/NAME`.
        token: Access token that may write. Default: that of `HF_TOKEN` or of `hf auth login`.
        private: Whether the repository is private. Default: as it is; a new one as its owner has it set.
        revision: Branch to commit to, made if need be. Default: the main branch.
        path: The file in the repository, for several circuits in one.
        measurements: Measurements of this circuit, or their documents, that the card shows.

    Returns:
        The address of what was uploaded, with its commit; `load_circuit` takes it.

    Raises:
        InputError: If a measurement is of another circuit, or a name is malformed.
        HubError: If there is no token (said before anything is sent), the token may not write there, the
            repository is not as private as asked, or the hub is out of reach.
        MissingExtraError: If huggingface_hub is not installed.
    """
    file = HubFile(repository=repo_id, revision=revision, path=path)
    documents = [each if isinstance(each, Mapping) else each.to_dict() for each in measurements]
    for each in documents:
        if (of := each["provenance"].get("circuit")) != circuit.hash:
            raise InputError(f"the measurement {each['name']!r} is of circuit {of}, not of {circuit.hash}")
    with needs_extra("hub", "uploading a circuit needs huggingface_hub"):
        from huggingface_hub import CommitOperationAdd, HfApi
    api = HfApi(token=_token(repo_id, token))
    with tempfile.TemporaryDirectory() as folder, _sent(file):
        api.create_repo(repo_id, private=private, exist_ok=True)
        _check_private(api, repo_id, private)
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        saved = circuit.save(Path(folder) / "circuit.safetensors")
        additions = [CommitOperationAdd(path, saved)]
        if _may_write_card(api, file):
            card = circuit_card(circuit, file, documents)
            additions.append(CommitOperationAdd(CARD, card.encode()))
        message = f"Circuit {circuit.hash}: {circuit.n_edges:,} edges"
        done = api.create_commit(repo_id, additions, commit_message=message, revision=revision)
    return str(file.at(done.oid))


def _token(repo_id: str, token: str | None) -> str:
    """The access token, before anything is sent."""
    from huggingface_hub import constants, get_token

    if "/" not in repo_id:
        raise InputError(
            f"the repository is {printable(repo_id)[:200]!r}; write OWNER/NAME, with your name on the hub"
        )
    if constants.HF_HUB_OFFLINE:
        raise HubError(f"nothing was sent to {repo_id!r}, since HF_HUB_OFFLINE is set; unset it to upload")
    if (found := token or get_token()) is None:
        raise HubError(
            f"nothing was sent to {repo_id!r}: an upload needs an access token that may write, and there is "
            f"none. Make one on {constants.ENDPOINT}/settings/tokens, then log in with `hf auth login`, set "
            "HF_TOKEN, or pass token="
        )
    return found


@contextmanager
def _sent(file: HubFile) -> Iterator[None]:
    """Errors of an upload as one that says what to do."""
    # The client's own HTTP library is not ours: its errors come from there, whichever it is.
    from huggingface_hub import errors

    from assay.models.hugging_face import without_progress_bars

    try:
        with without_progress_bars():
            yield
    except errors.HFValidationError as error:  # of the client, before it sends anything
        raise InputError(
            f"the repository is {printable(file.repository)[:200]!r}; write OWNER/NAME"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise HubError(
                f"the access token may not write to {file.repository!r} (HTTP {status}). Use a token with "
                "write access to it, or a repository under your own name"
            ) from error
        text = printable(str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise HubError(f"the hub did not take the circuit for {file.repository!r}: {text}") from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]
        raise HubError(
            f"the circuit was not uploaded to {file.repository!r}: the hub does not answer "
            f"({printable(str(error))[:200]}); check the network and repeat"
        ) from error


def _check_private(api: Any, repo_id: str, private: bool | None) -> None:
    """Refuse to show what was meant to be private: a repository that exists keeps its visibility."""
    if private is None:
        return
    held = bool(api.repo_info(repo_id).private)
    if held != private:
        is_, meant = ("private", "public") if held else ("public", "private")
        raise HubError(
            f"the repository {repo_id!r} exists and is {is_}, not {meant}; nothing was uploaded. Change it "
            "in its settings, or give another repository"
        )


def _may_write_card(api: Any, file: HubFile) -> bool:
    """Whether there is no card yet, or one as this package wrote it."""
    if not api.file_exists(file.repository, CARD, revision=file.revision):
        return True
    held = Path(api.hf_hub_download(file.repository, CARD, revision=file.revision))
    if is_own_card(held.read_bytes()):
        return True
    warnings.warn(
        f"{CARD} of {file.repository!r} was written by somebody else or edited, so it stays as it is",
        AssayWarning,
        stacklevel=4,
    )
    return False
