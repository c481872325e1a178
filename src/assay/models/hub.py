"""Repositories of the Hugging Face Hub: fetched into its cache, and from there read like any directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.core.errors import (
    FileFormatError,
    HubError,
    InputError,
    UnsafeFileError,
)
from assay.core.untrusted import printable
from assay.models.weight_files import INDEX, WEIGHTS, shard_names


# What describes a model, its tokenizer and its adapter. Kilobytes to a few megabytes, never code or pickles.
_DESCRIPTION = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    INDEX,
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
)
_DIRECTORY = "a directory written by save_pretrained"
_PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository at one commit, its description fetched.

    Attributes:
        name: Its id, `OWNER/NAME`.
        folder: Its folder in the cache of the hub.
        token: Access token; None: that of `HF_TOKEN` or of the login of the hub's client.
    """

    name: str
    folder: Path
    token: str | None

    @property
    def commit(self) -> str:
        """The commit that the revision meant when it was fetched."""
        return self.folder.name

    def fetch_weights(self, *, allow_pickle: bool) -> None:
        """Fetch the weights: safetensors, or where there are none and it is allowed, pickles.

        Raises:
            UnsafeFileError: If there are no safetensors and pickles are not allowed.
            HubError: If they cannot be fetched.
        """
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        index = self.folder / INDEX
        with explained(self.name, self.commit):
            try:
                for name in shard_names(index) if index.is_file() else [WEIGHTS]:
                    hf_hub_download(self.name, name, revision=self.commit, token=self.token)
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError as error:
                if index.is_file():
                    return  # whoever reads the index names what is missing
                if not allow_pickle:
                    raise UnsafeFileError(
                        f"the repository {self.name!r} has no {WEIGHTS}. Its weights may be pickles (*.bin), "
                        "and opening a pickle can run any code; convert them to safetensors, or pass "
                        "allow_pickle=True if you trust their origin"
                    ) from error
                _snapshot(self.name, self.commit, self.token, _PICKLES)


def fetch_description(name: str, *, revision: str | None = None, token: str | None = None) -> Repository:
    """Fetch what describes a model, without its weights.

    Args:
        name: Id of the repository.
        revision: Branch, tag or commit. Default: its main branch.
        token: Access token. Default: that of `HF_TOKEN` or of `hf auth login`.

    Raises:
        HubError: If the repository is missing, gated or out of reach, or has no such revision.
    """
    from assay.models.hugging_face import without_progress_bars

    with explained(name, revision), without_progress_bars():
        folder = _snapshot(name, revision, token, _DESCRIPTION)
    return Repository(name=name, folder=folder, token=token)


def _snapshot(name: str, revision: str | None, token: str | None, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, token=token, allow_patterns=list(patterns)))


@contextmanager
def explained(name: str, revision: str | None, *, instead: str = _DIRECTORY) -> Iterator[None]:
    """Errors of the hub's client as one that says what to do.

    Args:
        name: Id of the repository.
        revision: Branch, tag or commit; None: its main branch.
        instead: What can be given where the hub is out of reach.

    Raises:
        FileFormatError: If the name is not one of the hub.
        HubError: If the repository is missing, gated or out of reach, or has no such revision.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise FileFormatError(
            f"cannot load {printable(name)[:200]!r}: it is neither a directory nor an id of the Hugging Face "
            "Hub (OWNER/NAME); check the path"
        ) from error
    except errors.GatedRepoError as error:
        raise HubError(
            f"the repository {name!r} is gated: accept its conditions on {_page(name)}, then set HF_TOKEN "
            "to a token of that account, log in with `hf auth login`, or pass token="
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(
            f"the repository {name!r} has no revision {revision!r}; give a branch, a tag or a commit that "
            f"{_page(name)} lists"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"the Hugging Face Hub has no repository {name!r}, or it is private. Check the name; for a "
            "private repository set HF_TOKEN, log in with `hf auth login`, or pass token="
        ) from error
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, ConnectionError) as error:
        raise HubError(_unreachable(name, revision, error, instead)) from error


def _page(name: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{name}"


def _unreachable(name: str, revision: str | None, error: Any, instead: str) -> str:
    """What to do where the hub gave no answer."""
    from huggingface_hub import constants

    # What a model is called could be a directory; an address of the hub could not.
    absent = "neither a directory nor in" if instead == _DIRECTORY else "not in"
    cached = f"{name!r}{'' if revision is None else f' at revision {revision!r}'}"
    if constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set, so nothing is fetched; unset it"
    else:
        cause = error.__cause__ or error
        first = (printable(str(cause)).strip() or type(cause).__name__).splitlines()[0][:200]
        why = f"the hub does not answer ({first}); check the network"
    return (
        f"cannot load {cached}: it is {absent} the cache {constants.HF_HUB_CACHE}, and {why}, or give "
        f"{instead}"
    )


def split_revision(name: str, revision: str | None) -> tuple[str, str | None]:
    """An id and its revision, which may stand behind an `@` where only a name can be given (plans, claims).

    Raises:
        InputError: If there are two.
    """
    plain, found, behind = name.partition("@")
    if not found:
        return name, revision
    if revision is not None:
        raise InputError(
            f"the model {name!r} names a revision, and revision={revision!r} is another; give one"
        )
    return plain, behind


def check_revision(revision: str | None, source: str) -> None:
    """Refuse a revision of what is not a repository of the hub."""
    if revision is not None:
        raise InputError(f"revision applies only to ids of the Hugging Face Hub, but the model is {source!r}")
