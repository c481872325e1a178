"""Examples in an embedding space, by an encoder that the user names: CLIP, SigLIP, DINOv2, ViT, BERT, ..."""

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.example_files import rows_digest, without_embeddings
from assay.core.errors import InputError, UnsupportedModelError, check_name
from assay.models.encoder_loading import load_encoder
from assay.models.family import config_facts
from assay.models.module_facts import hash_weights
from assay.tasks.image_stream import ImageStream
from assay.tasks.image_transform import EvalTransform, picture_of


BATCH = 32
_LONGEST = 512  # tokens of a text, where neither tokenizer nor configuration sets a limit
_FIRST_TOKENS = ("cls_token", "class_embedding")  # weights of a class token
# Attributes of modules that change no embedding: of the machine, or of what ran before.
_NO_SETTINGS = ("fused_attn", "max_seq_len_cached", "name_or_path", "training")


class Embedding(NamedTuple):
    """Examples in an embedding space.

    Attributes:
        rows: `[N, d]`, not normalised.
        made_from: Hash of what they are a function of: the encoder, how it prepares inputs, and the prepared
            inputs. Unlike the numbers it does not depend on device or batch size. The whole checkpoint
            counts, also what no embedding reads (a head, dropout, names of classes): equal embeddings can
            have two hashes, never the reverse.
    """

    rows: Float32[np.ndarray, "n d"]
    made_from: str


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
        return self.embedding_of_images(images).rows

    def embed_texts(self, texts: Any) -> Float32[np.ndarray, "n d"]:
        """Embeddings of texts, not normalised; longer ones are cut at the limit of the model.

        Raises:
            UnsupportedModelError: If it reads images only.
        """
        return self.embedding_of_texts(texts).rows

    def embedding_of_images(self, images: Any) -> Embedding:
        """As `embed_images`, with identity; a stream is decoded batch by batch at the encoder's size."""
        transform = self.transform
        if isinstance(images, ImageStream):
            batches = (batch.pixels for batch in images.with_transform(transform).decoded(BATCH))
        else:
            batches = (
                torch.from_numpy(np.stack([transform.pixels(picture_of(image)) for image in some]))
                for some in _batches(images)
            )
        given = ({"pixels": pixels} for pixels in batches)
        return self._embedding(self._image_features, given, str(transform.to_dict()))

    def embedding_of_texts(self, texts: Any) -> Embedding:
        """As `embed_texts`, with identity."""
        self.check("texts")
        given = (self._tokens(some) for some in _batches([str(text) for text in texts]))
        return self._embedding(self._text_features, given, "texts")

    # ------------------------------------------------------------------------------------------ passes

    def _embedding(self, features: Any, batches: Iterator[Mapping[str, Tensor]], how: str) -> Embedding:
        digest, rows = hashlib.sha256(f"{self._hash} {how}".encode()), []
        with torch.inference_mode():
            for batch in batches:
                for each in _unpadded(**batch):
                    digest.update(f"{tuple(each.shape)}".encode() + each.numpy().tobytes())
                rows.append(features(batch).float().cpu().numpy())
        if not rows:
            raise InputError(f"there is nothing to embed with {self.name}; give at least one example")
        return Embedding(np.concatenate(rows), digest.hexdigest()[:16])

    @property
    def _hash(self) -> str:
        """Hash of weights, buffers and whatever else the embeddings depend on."""
        facts: dict[str, Any] = {
            f"{name}.{key}": value
            for name, part in self.module.named_modules()
            for key, value in vars(part).items()
            if _is_setting(value) and key not in _NO_SETTINGS and key[:1] != "_"
        }
        if hasattr(getattr(self.module, "config", None), "to_dict"):  # of Hugging Face
            facts |= config_facts(self.module)
        state = sorted(self.module.state_dict().items())
        structure = {"module": str(self.module), **facts}
        return hash_weights(structure, ((name, torch.atleast_1d(value)) for name, value in state))

    @property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device

    def _image_features(self, batch: Mapping[str, Tensor]) -> Tensor:
        module: Any = self.module
        pixels = self.transform.normalised(batch["pixels"].numpy()).to(self._device)
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

    def _tokens(self, texts: Sequence[str]) -> dict[str, Tensor]:
        module: Any = self.module
        config = getattr(module.config, "text_config", module.config)
        limits = (self.tokenizer.model_max_length, getattr(config, "max_position_embeddings", _LONGEST))
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token  # what it marks is masked
        self.tokenizer.padding_side = "right"  # else padding, and so the others of a batch, moves positions
        padded = "max_length" if str(module.config.model_type).startswith("siglip") else True
        tokens = self.tokenizer(
            list(texts), padding=padded, truncation=True, max_length=min(limits), return_tensors="pt"
        )
        return {name: tokens[name] for name in ("input_ids", "attention_mask") if name in tokens}

    def _text_features(self, batch: Mapping[str, Tensor]) -> Tensor:
        module: Any = self.module
        given = {name: values.to(self._device) for name, values in batch.items()}
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


def _unpadded(
    pixels: Tensor | None = None, input_ids: Tensor | None = None, attention_mask: Tensor | None = None
) -> Iterator[Tensor]:
    """The prepared inputs one by one; how far a text is padded depends on the others of its batch."""
    rows: Any = pixels if input_ids is None else input_ids
    for place, row in enumerate(rows):
        yield row if attention_mask is None else row[attention_mask[place].bool()]


def _is_setting(value: Any) -> bool:
    """Whether an attribute is a plain value, or a sequence of plain values such as a height and width."""
    if isinstance(value, tuple | list):
        return all(map(_is_setting, value))
    return value is None or isinstance(value, bool | int | float | str)


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
        return with_embedding(named, encoder, encoder.embedding_of_texts(data.meta[text].tolist()))
    if data.images is None:
        raise InputError(
            f"the data have neither images nor a text to embed with {encoder.name}; name the column of texts"
        )
    return with_embedding(data, encoder, encoder.embedding_of_images(data.images))


def with_embedding(
    data: CorrectnessData, encoder: Encoder, embedding: Embedding, id_embedding: Embedding | None = None
) -> CorrectnessData:
    """The data with embeddings in place of those that they had; their source tells how these were made."""
    bare = without_embeddings(data)
    made = {"embedding": embedding, "id_embedding": id_embedding}
    known = {name: each for name, each in made.items() if each is not None}
    rows: dict[str, Any] = {name: each.rows for name, each in known.items()}
    told = {f"{name}_from": f"{each.made_from} {rows_digest(each.rows)}" for name, each in known.items()}
    return replace(bare, **rows, source={**bare.source, "encoder": encoder.name, **told})
