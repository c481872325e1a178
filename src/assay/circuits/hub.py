"""Circuits in repositories of the Hugging Face Hub: addresses, fetching, uploading."""

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.circuits.card import CARD, circuit_card, is_own_card
from assay.circuits.hub_file import FILE, HubFile
from assay.core.errors import AssayWarning, HubError, InputError
from assay.core.extras import needs_extra
from assay.core.untrusted import printable


if TYPE_CHECKING:
    from assay.circuits.circuit import Circuit
    from assay.core.measurement import Measurement


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
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # of httpx, which it does not export by name
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
