"""Files of the Hugging Face Hub, fetched into the cache of its own client."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assay.core.errors import FileFormatError, HubError
from assay.core.untrusted import printable


# What describes a model and its tokenizer: kilobytes to a few megabytes, never code or pickles.
DESCRIPTION = ("*config.json", "*.index.json", "*token*.json", "vocab.*", "merges.txt", "*.model", "*.jinja")
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
PICKLES = ("pytorch_model*.bin",)


def fetch(name: str, patterns: tuple[str, ...], *, revision: str | None, token: str | None) -> Path:
    """The folder of a repository in the cache, with the files of some patterns; its name is the commit.

    Args:
        name: Id of the repository, `OWNER/NAME`.
        patterns: Of names of files.
        revision: Branch, tag or commit; None: its main branch.
        token: Access token; None: that of `HF_TOKEN` or of `hf auth login`.

    Raises:
        FileFormatError: If the name is neither that of a directory nor one of the hub.
        HubError: If the repository is missing, gated or out of reach, or has no such revision.
    """
    from huggingface_hub import snapshot_download

    with hub_errors(name):
        return Path(snapshot_download(name, revision=revision, token=token, allow_patterns=list(patterns)))


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Errors of the hub's client inside, whose texts say what to do, with the name that was asked for.

    Raises:
        FileFormatError: If the name is not one of the hub.
        HubError: If what is asked for is missing, gated or out of reach.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise FileFormatError(
            f"cannot load {printable(name)[:200]!r}: it is neither a directory nor an id of the Hugging Face "
            "Hub (OWNER/NAME); check the path"
        ) from error
    except (OSError, errors.HfHubHTTPError) as error:  # those of the client and of the network
        raise HubError(
            f"cannot load {name!r}: it is not a directory, and the Hugging Face Hub does not give it. "
            f"{printable(str(error)).strip()[:600]}"
        ) from error


def split_revision(name: str, revision: str | None) -> tuple[str, str | None]:
    """An id and its revision, which may stand behind an `@` where only a name can be given."""
    plain, _, behind = name.partition("@")
    return plain, behind or revision
