"""Examples in an embedding space, by an encoder that the user names: CLIP, SigLIP, DINOv2, ViT, BERT, ..."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from assay.analyses.subsets.data import CorrectnessData
from assay.core.errors import InputError, UnsupportedModelError, check_name
from assay.models.encoder_loading import load_encoder
from assay.tasks.image_transform import EvalTransform, picture_of


if TYPE_CHECKING:
    from assay.tasks.image_stream import ImageStream

BATCH = 32
_LONGEST = 512  # tokens of a text, where neither tokenizer nor configuration sets a limit
_FIRST_TOKENS = ("cls_token", "class_embedding")  # weights of a class token


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoder:
    """A model that embeds images, texts or, as CLIP does, both in one space; a `Ranker` if it does both.

    An image is embedded as `get_image_features` gives it (CLIP, SigLIP); else as the pooled output, if the
    checkpoint has a pooler; else as the class token; else as the mean over positions. Of timm:
    the features before the head. A text: `get_text_features`, else the mean of the last layer over its
    tokens.

    Attributes:
        module: In evaluation mode.
        name: As results call it.
        preprocessing: What is stored of how images are prepared.
        tokenizer: None for a model that does not read texts.
    """

    module: nn.Module
    name: str
    preprocessing: dict[str, Any] | None = None
    tokenizer: Any = None

    @classmethod
    def load(cls, source: str | Path, **options: Any) -> "Encoder":
        """Load the encoder of a directory, hub id or timm name; see `load_encoder` for options and errors."""
        return cls(**load_encoder(source, **options)._asdict())

    @property
    def reads_images(self) -> bool:
        """Whether it has an image tower."""
        config = getattr(self.module, "config", None)
        sees = any(hasattr(config, name) for name in ("vision_config", "image_size", "num_channels"))
        return sees or hasattr(self.module, "forward_features")

    @property
    def reads_texts(self) -> bool:
        """Whether it has a text tower and a tokenizer."""
        return self.tokenizer is not None and (
            hasattr(self.module, "get_text_features") or not self.reads_images
        )

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels that its configuration states."""
        config: Any = getattr(self.module, "config", None)
        side = getattr(getattr(config, "vision_config", config), "image_size", None)
        if side is None:
            raise UnsupportedModelError(
                f"{self.name} does not state how to prepare its images; put a preprocessor_config.json "
                "beside its weights"
            )
        return (side, side) if isinstance(side, int) else tuple(side)

    @functools.cached_property
    def transform(self) -> EvalTransform:
        """How images are prepared: as stored with the model, else resized to its size with a warning."""
        self.check("images")
        if not self.preprocessing:
            return EvalTransform.for_model(self)
        of_timm = "input_size" in self.preprocessing
        return (EvalTransform.from_timm if of_timm else EvalTransform.from_config)(self.preprocessing)

    def check(self, what: str) -> None:
        """Refuse inputs that it has no tower for: `images` or `texts`.

        Raises:
            UnsupportedModelError: Naming what it does read.
        """
        if not (self.reads_images if what == "images" else self.reads_texts):
            reads = "images" if self.reads_images else "texts" if self.reads_texts else "neither"
            raise UnsupportedModelError(
                f"{self.name} cannot embed {what}: it reads {reads}. Give an encoder of {what}, or one of "
                "both such as CLIP"
            )

    def embed_images(self, images: Any) -> Float32[np.ndarray, "n d"]:
        """Embeddings of images: paths, Pillow images, 8-bit arrays `[H, W]` or `[H, W, 3]`; not normalised.

        Raises:
            UnsupportedModelError: If it reads texts only.
            FileFormatError: If a file cannot be decoded.
            ShapeError: For arrays that are not 8-bit images.
        """
        transform = self.transform

        def prepared(some: Any) -> Tensor:
            return transform.normalised(np.stack([transform.pixels(picture_of(image)) for image in some]))

        return self._embedded(self._image_features, (prepared(some) for some in _batches(images)))

    def embed_texts(self, texts: Any) -> Float32[np.ndarray, "n d"]:
        """Embeddings of texts, not normalised; longer ones are cut at the limit of the model.

        Raises:
            UnsupportedModelError: If it reads images only.
        """
        self.check("texts")
        return self._embedded(self._text_features, _batches([str(text) for text in texts]))

    def embed_stream(self, images: "ImageStream") -> Float32[np.ndarray, "n d"]:
        """Embeddings of the images of a source, which are decoded batch by batch at the encoder's size."""
        stream = images.with_transform(self.transform)
        return self._embedded(self._image_features, (batch.images for batch in stream.batches(BATCH)))

    # ------------------------------------------------------------------------------------------ passes

    def _embedded(self, features: Any, batches: Iterator[Any]) -> Float32[np.ndarray, "n d"]:
        with torch.inference_mode():
            rows = [features(batch).float().cpu().numpy() for batch in batches]
        if not rows:
            raise InputError(f"there is nothing to embed with {self.name}; give at least one example")
        return np.concatenate(rows)

    @property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device

    def _image_features(self, pixels: Tensor) -> Tensor:
        module: Any = self.module
        pixels = pixels.to(self._device)
        if hasattr(module, "forward_features"):  # of timm
            features: Tensor = module.forward_head(module.forward_features(pixels), pre_logits=True)
            return features
        if hasattr(module, "get_image_features"):
            found = module.get_image_features(pixel_values=pixels)
            return _tensor(found)
        found = module(pixel_values=pixels)
        if getattr(found, "pooler_output", None) is not None:
            return _tensor(found).flatten(1)
        hidden: Tensor = found.last_hidden_state
        if any(name.endswith(_FIRST_TOKENS) for name, _ in module.named_parameters()):
            return hidden[:, 0]
        return hidden.flatten(2).mean(2) if hidden.ndim == 4 else hidden.mean(1)

    def _text_features(self, texts: Sequence[str]) -> Tensor:
        module: Any = self.module
        config = getattr(module.config, "text_config", module.config)
        limits = (self.tokenizer.model_max_length, getattr(config, "max_position_embeddings", _LONGEST))
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token  # what it marks is masked
        padded = "max_length" if str(module.config.model_type).startswith("siglip") else True
        tokens = self.tokenizer(
            list(texts), padding=padded, truncation=True, max_length=min(limits), return_tensors="pt"
        )
        given = {
            name: tokens[name].to(self._device) for name in ("input_ids", "attention_mask") if name in tokens
        }
        if hasattr(module, "get_text_features"):
            found = module.get_text_features(**given)
            return _tensor(found)
        if getattr(module.config, "is_encoder_decoder", False):
            module = module.get_encoder()
        hidden = module(**given).last_hidden_state
        mask = given["attention_mask"][..., None].to(hidden.dtype)
        mean: Tensor = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        return mean


@dataclass(frozen=True, kw_only=True)
class TextRanker:
    """A `Ranker` of examples that are texts themselves: examples and phrases by one embedding.

    Attributes:
        embed_texts: `[k, d]` of texts: `Encoder.embed_texts`, or `ChatEndpoint.embed_texts`.
    """

    embed_texts: Any

    def embed_images(self, images: Any) -> Any:
        """Embeddings of the examples, which are texts."""
        return self.embed_texts(images)


def _tensor(found: Any) -> Tensor:
    """Features, which older versions of transformers return by themselves."""
    features: Tensor = found if isinstance(found, Tensor) else found.pooler_output
    return features


def _batches(items: Any) -> Iterator[Any]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def embed_examples(data: CorrectnessData, encoder: Encoder, *, text: str | None = None) -> CorrectnessData:
    """The data with an embedding of every example, for `example_holdout` and the distance baseline.

    Args:
        data: With images, or with a column of texts.
        encoder: From `Encoder.load`.
        text: Column of `meta` that holds the text of each example. Default: the one that `source["text"]`
            names; without one, the images of the data are embedded.

    Raises:
        InputError: If there is no such column (`UnknownNameError`), or there are no images.
        UnsupportedModelError: If the encoder has no tower for them.
    """
    text = text or data.source.get("text")
    if text is not None:
        check_name("column of the examples", text, data.meta)
        named = replace(data, source={**data.source, "text": text})
        return with_embedding(named, encoder, encoder.embed_texts(data.meta[text].tolist()))
    if data.images is None:
        raise InputError(
            f"the data have neither images nor a text to embed with {encoder.name}; name the column of texts"
        )
    return with_embedding(data, encoder, encoder.embed_images(data.images))


def with_embedding(
    data: CorrectnessData, encoder: Encoder, embedding: np.ndarray, id_embedding: np.ndarray | None = None
) -> CorrectnessData:
    """The data with embeddings in place of those that they had, and the encoder's name in their source."""
    return replace(
        data,
        embedding=embedding,
        id_embedding=id_embedding,
        source={**data.source, "encoder": encoder.name},
    )
