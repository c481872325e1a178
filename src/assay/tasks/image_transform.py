"""From an image file to what a model reads: resize, centre crop, normalise; never anything random."""

import io
import struct
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from assay.core.errors import AssayWarning, InputError, ShapeError, check_name
from assay.core.record import Record
from assay.core.untrusted import MALFORMED


RESAMPLE = dict(zip(map(str.lower, Image.Resampling.__members__), Image.Resampling, strict=True))


@dataclass(frozen=True, kw_only=True)
class EvalTransform(Record):
    """How a model wants its images: the geometry in 8 bits, then the arithmetic.

    Resizing is Pillow's (antialiased); pixels stay 8-bit until they are normalised, so corruptions can be
    applied in between. The defaults are those of ViT in transformers.

    Args:
        resize: `(height, width)`; one number for the shorter side, keeping the aspect; or None.
        crop: `(height, width)` cut from the centre, or None.
        resample: `nearest`, `lanczos`, `bilinear`, `bicubic`, `box` or `hamming`.
        rescale: Factor that takes 0..255 to the range of `mean` and `std`, usually 1/255.
        mean: Subtracted from red, green, blue after rescaling.
        std: Divided by, per channel, above 0.
        fit: What a `resize` to two sides does with another aspect: `squash` it, or `cover` both sides and
            stick out over one (timm's centre crop of images that are not square).
        centre: Where an odd margin goes: `floor` puts the smaller half above and left (transformers),
            `round` rounds halves to even (torchvision, timm).

    Raises:
        InputError: If a size is below 1, a crop is larger than what `resize` makes, a number is not finite,
            or `std` or `rescale` is not above 0.
        UnknownNameError: If `resample` is not one of the six.

    Example:
        >>> transform = EvalTransform(resize=256, crop=(224, 224), resample="bicubic")
        >>> transform.pixels(Image.new("RGB", (300, 400))).shape
        (224, 224, 3)
    """

    resize: tuple[int, int] | int | None = (224, 224)
    crop: tuple[int, int] | None = None
    resample: str = "bilinear"
    rescale: float = 1 / 255
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    fit: Literal["squash", "cover"] = "squash"
    centre: Literal["floor", "round"] = "floor"

    def __post_init__(self) -> None:
        check_name("resampling filter", self.resample, RESAMPLE)
        sides = [np.min(each) for each in (self.resize, self.crop) if each is not None]
        larger = self.crop and self.resize and (np.array(self.crop) > self.resize).any()
        if min(sides, default=1) < 1 or larger:
            sizes = f"resize is {self.resize} and crop {self.crop}"
            raise InputError(f"{sizes}; give at least 1 pixel per side, and a crop that fits into resize")
        numbers = np.array([self.rescale, *self.mean, *self.std])
        if numbers.shape != (7,) or not np.isfinite(numbers).all() or min(self.rescale, *self.std) <= 0:
            text = f"rescale is {self.rescale}, mean {self.mean}, std {self.std}"
            raise InputError(f"{text}; give a finite number per channel, rescale and std above 0")

    @classmethod
    def for_model(cls, model: Any) -> "EvalTransform":
        """The transform that was stored with a model.

        Args:
            model: What `assay.load_model` returns for an image classifier.

        Returns:
            From its image processor (Hugging Face) or its `pretrained_cfg` (timm). With neither, images are
            resized to the model's size and scaled to [-1, 1], the defaults of ViT, with a warning; so they
            are if the model takes another size than the stored one, which then gives the numbers alone.

        Raises:
            InputError: For a language model, and as `from_config` and `from_timm`.

        Example:
            >>> from types import SimpleNamespace
            >>> stored = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
            >>> EvalTransform.for_model(SimpleNamespace(image_size=(32, 32), preprocessing=stored)).resize
            (32, 32)
        """
        stored, size, transform = model.preprocessing, model.image_size, cls()
        text = "the model does not state how to prepare its images: put a preprocessor_config.json beside"
        text += " its weights, or give an EvalTransform. They are scaled to [-1, 1] and"
        if stored:
            of_timm = "input_size" in stored or "mean" in stored
            transform = cls.from_timm(stored) if of_timm else cls.from_config(stored)
            made = transform.crop or transform.resize
            if not isinstance(made, tuple) or made == size:
                return transform
            text = f"the stored image settings of the model make {made[0]} x {made[1]} pixels; images are"
        text += f" resized to the {size[0]} x {size[1]} that the model reads"
        warnings.warn(text, AssayWarning, stacklevel=2)
        return replace(transform, resize=size, crop=None)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "EvalTransform":
        """The transform of a Hugging Face image processor, from its `preprocessor_config.json`.

        Args:
            config: The processor's `to_dict()`, or the file's content: `size`, `crop_size`, `resample`,
                `image_mean`, `image_std`, `rescale_factor` and the switches `do_resize`, `do_center_crop`,
                `do_rescale`, `do_normalize`. A plain number as `size` is the shorter side for CLIP
                and BiT processors and a square for others, as in transformers. `null` is the default of the
                processor's class.

        Raises:
            InputError: If the config asks for something else than resize, centre crop and normalise.

        Example:
            >>> EvalTransform.from_config({"size": {"height": 32, "width": 32}, "resample": 3}).resample
            'bicubic'
        """
        kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
        usual = _usual(kind) if None in config.values() else {}
        stated = {key: usual.get(key) if value is None else value for key, value in config.items()}
        config = {key: value for key, value in stated.items() if value is not None}
        if config.get("do_pad") or config.get("do_random_crop") or config.get("crop_pct"):
            text = f"the image processor {kind or 'config'} pads, crops at random or crops by a share"
            raise InputError(f"{text}, which is not supported; write an EvalTransform")
        square = not any(name in kind for name in ("CLIP", "BitImage"))
        crop = _size(config.get("crop_size", 224), square=True) if config.get("do_center_crop") else None
        if isinstance(crop, int):
            raise InputError(f"crop_size is {config['crop_size']}; expected a height and a width")
        filters, code = {int(each): name for name, each in RESAMPLE.items()}, config.get("resample", 2)
        normalize = config.get("do_normalize", True)
        return cls(
            resize=_size(config.get("size", 224), square=square) if config.get("do_resize", True) else None,
            crop=crop,
            resample=str(filters.get(code, code)),
            rescale=float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0,
            mean=_channels(config.get("image_mean", 0.5) if normalize else 0),
            std=_channels(config.get("image_std", 0.5) if normalize else 1),
        )

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> "EvalTransform":
        """The transform of a timm model, from its `pretrained_cfg` or resolved data config.

        Args:
            config: `input_size` (channels, height, width), `interpolation`, `mean`, `std`, `crop_pct`,
                `crop_mode` (`center` or `squash`).

        Raises:
            InputError: If the crop mode is another, or the input does not have three channels.

        Example:
            >>> EvalTransform.from_timm({"input_size": (3, 224, 224), "crop_pct": 0.9}).resize
            248
        """
        channels, height, width = config.get("input_size", (3, 224, 224))
        mode = config.get("crop_mode") or "center"
        if channels != 3 or mode not in ("center", "squash"):
            text = f"{channels} channels and crop mode {mode!r} are not supported"
            raise InputError(f"{text}; write an EvalTransform")
        share = float(config.get("crop_pct") or 0.875)
        scaled = (int(height / share), int(width / share))
        return cls(
            resize=scaled[0] if mode == "center" and height == width else scaled,
            crop=(height, width),
            fit="squash" if mode == "squash" else "cover",
            resample=str(config.get("interpolation") or "bicubic"),
            mean=_channels(config.get("mean", (0.485, 0.456, 0.406))),
            std=_channels(config.get("std", (0.229, 0.224, 0.225))),
            centre="round",
        )

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width that every image gets; None where they depend on the image."""
        made = self.crop or self.resize
        return made if isinstance(made, tuple) and (self.crop or self.fit == "squash") else None

    def pixels(self, image: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
        """An image after resize and crop, 8 bits, RGB.

        Raises:
            InputError: If the image is smaller than the crop, or has more than 8 bits per channel.
            DecompressionBombError: If it would exceed Pillow's limit of pixels once resized: a shorter side
                that is made larger takes the longer one with it.
        """
        image = _as_rgb(image)
        if self.resize is not None:
            width, height = image.size
            if isinstance(self.resize, int):
                short = min(width, height)
                height, width = (int(self.resize * side / short) for side in (height, width))
            elif self.fit == "squash":
                height, width = self.resize
            else:
                ratio = min(height / self.resize[0], width / self.resize[1])
                height, width = round(height / ratio), round(width / ratio)
            _check_pixels(width, height)
            if image.size != (width, height):
                image = image.resize((width, height), RESAMPLE[self.resample])
        if self.crop is not None:
            margins = (image.height - self.crop[0], image.width - self.crop[1])
            if min(margins) < 0:
                text = f"an image of {image.height} x {image.width}"
                raise InputError(f"{text} is smaller than the crop {self.crop}")
            top, left = (m // 2 if self.centre == "floor" else round(m / 2) for m in margins)
            image = image.crop((left, top, left + self.crop[1], top + self.crop[0]))
        return np.asarray(image)

    def normalised(self, pixels: UInt8[np.ndarray, "n h w 3"]) -> Float[Tensor, "n 3 h w"]:
        """Pixels as float32 model inputs, `(rescale * pixel - mean) / std` per channel."""
        # A pixel has one of 256 values: their images under the map, in float64, then rounded once.
        levels = np.arange(256)[:, None] * self.rescale
        table = ((levels - np.array(self.mean)) / np.array(self.std)).astype(np.float32)
        out = np.empty((len(pixels), 3, *pixels.shape[1:3]), dtype=np.float32)
        for channel in range(3):
            out[:, channel] = table[:, channel][pixels[..., channel]]
        return torch.from_numpy(out)


# Broken files make Pillow's decoders fail in all these ways, and the last two are of files beyond its limit
# of pixels; InputError is a ValueError.
_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
BROKEN = (*MALFORMED, OSError, SyntaxError, EOFError, struct.error, zlib.error, *_BOMBS)


def read_rgb(content: Any, *, turns: bool = True) -> tuple[Image.Image, bool]:
    """An image, whole and in three channels of 8 bits, and whether it was turned.

    Args:
        content: A path, the bytes of a file, a Pillow image, a tensor `[H, W]` or `[C, H, W]`, or an array
            `[H, W]` or `[H, W, C]`, with one channel or three, 8-bit or fractions from 0 to 1.
        turns: Turn it as its EXIF orientation says.

    Raises:
        Exception: One of `BROKEN` for what cannot be decoded and for more than Pillow's limit of pixels, of
            which Pillow only warns up to twice as many.
        InputError: For more than 8 bits, and arrays of other numbers or shapes.
    """
    if isinstance(content, Tensor | np.ndarray):
        return Image.fromarray(_eight_bits(content)).convert("RGB"), False
    if isinstance(content, Image.Image):
        image, turned = _upright(content) if turns else (content, False)
        return _as_rgb(image), turned
    with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
        # Counted here: Pillow's warning is an error only under a filter, which threads share.
        _check_pixels(image.width, image.height)
        image.load()
        return read_rgb(image, turns=turns)


def _upright(image: Image.Image) -> tuple[Image.Image, bool]:
    """The image as its EXIF orientation says, and whether that turned or mirrored it."""
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except BROKEN:  # a damaged block of EXIF says nothing, and the image itself may be whole
        return image, False
    return (ImageOps.exif_transpose(image), True) if turned else (image, False)


def _check_pixels(width: int, height: int) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise Image.DecompressionBombError(f"{width} x {height} pixels exceed the limit of {limit:,}")


def _as_rgb(image: Image.Image) -> Image.Image:
    """Three channels of 8 bits. Pillow would cut off more bits and fractions at 255."""
    if image.mode.startswith("I") or image.mode == "F":
        raise InputError(f"the image has mode {image.mode}, with more than 8 bits; scale it to 0..255")
    return image.convert("RGB")


def _eight_bits(value: Tensor | np.ndarray) -> np.ndarray:
    """The pixels `[H, W]` or `[H, W, 3]` of a tensor, where channels come first, or an array, where last."""
    pixels = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    if isinstance(value, Tensor) and pixels.ndim == 3:
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.dtype.kind == "f":
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):
            text = f"the image has values from {low:.3g} to {high:.3g}; expected 0 to 1 or 8 bits"
            raise InputError(f"{text}, before any normalisation: that of the model is applied")
        pixels = (pixels * 255).round().astype(np.uint8)
    if pixels.dtype != np.uint8 or pixels.ndim < 2 or pixels.shape[2:] not in ((), (3,)):
        text = f"the image is {pixels.dtype} of shape {tuple(value.shape)}; expected 8 bits, or floats from 0"
        raise ShapeError(f"{text} to 1, as a tensor [3, H, W] or an array [H, W, 3]")
    return np.ascontiguousarray(pixels)


def _usual(kind: str) -> Mapping[str, Any]:
    """The settings of a class of image processors of transformers; none for an unknown class."""
    import transformers  # not above: images are read without it

    # Where torchvision is missing, the class of the name itself warns and gives way to this one.
    known = getattr(transformers, f"{kind}Pil", None) or (getattr(transformers, kind, None) if kind else None)
    return {} if known is None else dict(known().to_dict())


def _size(size: Any, *, square: bool) -> tuple[int, int] | int:
    """The sides of a processor's `size`: a number, two, or a mapping of them."""
    if isinstance(size, int):
        return (size, size) if square else size
    sides = dict(zip(("height", "width"), size, strict=True)) if isinstance(size, list | tuple) else size
    match {key: value for key, value in sides.items() if value is not None}:
        case {"height": height, "width": width}:
            return int(height), int(width)
        case {"shortest_edge": side}:
            return int(side)
    raise InputError(f"the image processor's size is {size}; expected height and width, or shortest_edge")


def _channels(value: Any) -> Any:
    """A number for each channel: as given, or one for all three."""
    return tuple(map(float, value if isinstance(value, list | tuple) else [value] * 3))
