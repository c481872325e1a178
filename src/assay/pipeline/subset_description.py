"""Phrases for a subset, added to its document once the selection is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.describe import describe_selection
from assay.analyses.subsets.encoder import Encoder, TextRanker
from assay.analyses.subsets.language_models import ChatEndpoint
from assay.analyses.subsets.proposals import text_proposer
from assay.analyses.subsets.selection import read_subset
from assay.core.errors import AssayError, InputError
from assay.core.record import plain


if TYPE_CHECKING:
    from assay.pipeline.subsets import StoredSelection


@dataclass(frozen=True, kw_only=True, eq=False)
class SubsetDescriber:
    """What describes a subset, checked before anything is selected.

    Attributes:
        encoder: Embeds the examples, and scores phrases if it reads texts.
        phrases: Phrases to score.
        endpoint: Captions images and proposes phrases.

    Raises:
        UnsupportedModelError: Phrases for an encoder that does not read texts.
    """

    encoder: Encoder | None = None
    phrases: Sequence[str] = ()
    endpoint: ChatEndpoint | None = None

    def __post_init__(self) -> None:
        if self.phrases and self.encoder is not None:
            self.encoder.check("texts")

    @classmethod
    def of(
        cls,
        *,
        encoder: str | None = None,
        phrases: Sequence[str] | None = None,
        endpoint: Mapping[str, Any] | None = None,
        device: str | None = None,
    ) -> "SubsetDescriber":
        """From the name of an encoder and arguments of `ChatEndpoint`."""
        reached = None if endpoint is None else ChatEndpoint(**endpoint)
        if phrases is not None and not phrases:
            raise InputError('there is no phrase to score; give some, separated by semicolons: "night; rain"')
        if phrases and encoder is None:
            raise InputError("phrases are scored by an encoder; give --encoder, a model such as CLIP")
        loaded = Encoder.load(encoder, device=device) if encoder is not None else None
        return cls(encoder=loaded, phrases=phrases or (), endpoint=reached)

    def check(self, data: CorrectnessData) -> None:
        """Refuse data that hold neither images nor texts."""
        wanted = self.encoder or self.phrases or self.endpoint
        if wanted and data.images is None and "text" not in data.source:
            raise InputError(
                "encoders and phrases are for images or texts, and these data hold no images; name the "
                "column with the text of each example (--text)"
            )

    def described(self, result: "StoredSelection", data: CorrectnessData) -> dict[str, Any]:
        """The part `description` of the document; empty unless phrases were asked for.

        What fails becomes `{"failed": reason}`: the selection does not depend on it.
        """
        if not (self.phrases or self.endpoint):
            return {}
        subset = read_subset(result.headline, result.id, data)
        try:
            found = plain(describe_selection(subset, **self._options(data)).to_dict())
        except AssayError as error:
            found = {"failed": str(error)}
        return {"description": found}

    def _options(self, data: CorrectnessData) -> dict[str, Any]:
        scores = self.encoder if self.encoder is not None and self.encoder.reads_texts else None
        options: dict[str, Any] = {"ranker": scores, "phrases": list(self.phrases) or None}
        text = data.source.get("text")
        if text is not None:
            options["images"] = data.meta[text].tolist()
            options["ranker"] = scores and TextRanker(embed_texts=scores.embed_texts)
        if self.endpoint is not None:
            options["proposer"] = text_proposer(self.endpoint.answer, of_texts=text is not None)
            options["captioner"] = self.endpoint.captions if text is None else _own_words
        return options


def _own_words(texts: Any, prompt: str) -> list[str | None]:
    """Texts need no captions."""
    return [str(text) for text in texts]
