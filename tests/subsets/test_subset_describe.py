"""Phrases for a subset, with callables that work on the pixels of small digits."""

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from sklearn.datasets import load_digits

from assay.analyses.subsets.describe import Clip, chat, describe_subset, parse_phrases, text_proposer
from assay.core.errors import EndpointError, InputError, NonFiniteError, ShapeError


CONCEPTS = ("much ink", "ink on the left")
WORDS = ("[PAD]", "[UNK]", "a", "dog", "cat", "red")


class PixelRanker:
    """Ink and its share on the left, in the units of their spread over all digits."""

    def __init__(self) -> None:
        self._facts = self._of(load_digits().images)

    @staticmethod
    def _of(images: Any) -> np.ndarray:
        stack = np.stack([np.asarray(image, dtype=np.float64) for image in images])
        ink = stack.sum(axis=(1, 2))
        return np.stack([ink, stack[:, :, :4].sum((1, 2)) / ink], axis=1)

    def embed_images(self, images: Any) -> np.ndarray:
        facts = (self._of(images) - self._facts.mean(0)) / self._facts.std(0)
        return np.concatenate([facts, np.ones((len(facts), 1))], axis=1)

    def embed_texts(self, texts: Any) -> np.ndarray:
        return np.array([[float(text == each) for each in CONCEPTS] + [1e-9] for text in texts])


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Digits of much ink, and the others."""
    images = load_digits().images
    order = np.argsort(-images.sum(axis=(1, 2)))
    return images[order[:100]], images[order[100:]]


def test_the_property_that_was_selected_for_comes_first(digits: tuple[np.ndarray, np.ndarray]) -> None:
    found = describe_subset(
        *digits, ranker=PixelRanker(), phrases=["ink on the left", "much  ink", "Much ink"]
    )
    assert found["phrase"].tolist() == ["much ink", "ink on the left"]
    best = found.iloc[0]
    assert best["auroc"] > 0.95
    assert best["low"] < best["difference"] < best["high"]
    assert best["significant"]
    turned = describe_subset(*digits[::-1], ranker=PixelRanker(), phrases=["much ink"]).iloc[0]
    assert turned["difference"] < 0
    assert turned["auroc"] < 0.05


def test_the_score_is_the_signed_difference_of_mean_cosines_by_hand() -> None:
    class Plane:
        def embed_images(self, images: Any) -> np.ndarray:
            return np.array(images, dtype=float)

        def embed_texts(self, texts: Any) -> np.ndarray:
            return np.array([[2.0, 0.0]] * len(texts))

    found = describe_subset(
        [(3, 4), (1, 0)], [(0, 2), (-5, 0), (8, 6)], ranker=Plane(), phrases=["east"]
    ).iloc[0]
    assert found["difference"] == pytest.approx((0.6 + 1) / 2 - (0 - 1 + 0.8) / 3)
    assert found["auroc"] == pytest.approx(5 / 6)
    cosines = [0.6, 1.0], [0.0, -1.0, 0.8]
    assert found["p_value"] == scipy_stats.mannwhitneyu(*cosines).pvalue


def test_captions_become_phrases_and_failed_images_are_left_out(
    digits: tuple[np.ndarray, np.ndarray],
) -> None:
    def captioner(images: Any) -> list[str | None]:
        sizes = [float(np.asarray(image).sum()) for image in images]
        return [None, *(f"a digit with {'much' if size > 310 else 'little'} ink" for size in sizes[1:])]

    def proposer(others: Sequence[str], chosen: Sequence[str]) -> list[str]:
        assert (len(others), len(chosen)) == (24, 24)  # of 25 of each side one has no caption
        return [word for word in ("much ink", "little ink") if sum(word in text for text in chosen) > 20]

    found = describe_subset(*digits, ranker=PixelRanker(), captioner=captioner, proposer=proposer)
    assert found["phrase"].tolist() == ["much ink"]
    with pytest.raises(InputError, match="phrases are missing"):
        describe_subset(*digits, ranker=PixelRanker())
    with pytest.raises(InputError, match="a side holds no image"):
        describe_subset([], digits[1], ranker=PixelRanker(), phrases=["much ink"])


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([[1.0, 0.0]], ShapeError, r"text embeddings of shape \(1, 2\); expected \(2, d\)"),
        ([[1.0, 0.0]] * 2, ShapeError, "images in 3 and texts in 2 dimensions"),
        ([[0.0, 0.0, 0.0]] * 2, NonFiniteError, "zero or not finite"),
    ],
)
def test_embeddings_are_checked(
    rows: list[list[float]], error: type, message: str, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    ranker = PixelRanker()
    ranker.embed_texts = lambda texts: np.array(rows)  # type: ignore[method-assign]
    with pytest.raises(error, match=message):
        describe_subset(*digits, ranker=ranker, phrases=CONCEPTS)


def test_phrases_are_the_listed_lines() -> None:
    answer = 'Sure:\n* "Seen from above."\n- **red**\n- seen from above\n* ---\nnot listed\n* ' + "word " * 13
    assert parse_phrases(answer) == ["Seen from above", "red"]


# ------------------------------------------------------------------------------------ ready callables


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address of the chat protocol that answers with a list, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            asked[-1]["key"] = self.headers.get("Authorization")
            body = {"choices": [{"message": {"content": "* dim light\n* fog"}}]}
            self.send_response(404 if "nothing" in self.path else 200)
            self.end_headers()
            self.wfile.write(json.dumps({} if "empty" in self.path else body).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    server.server_close()


def test_a_chat_address_proposes_and_captions(
    endpoint: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = endpoint
    monkeypatch.setenv("CHAT_KEY", "secret")
    ask = chat(url, "small", key_variable="CHAT_KEY")
    assert text_proposer(ask)(["a sunny road"], ["a road in fog"]) == ["dim light", "fog"]
    assert asked[0]["model"] == "small"
    assert asked[0]["key"] == "Bearer secret"
    prompt = asked[0]["messages"][0]["content"]
    assert prompt.index("Group A:\n- a sunny road") < prompt.index("Group B:\n- a road in fog")
    assert ask("What is this?", np.zeros((4, 4, 3), dtype=np.uint8)).startswith("* dim light")
    image = asked[1]["messages"][0]["content"][1]["image_url"]["url"]
    assert image.startswith("data:image/png;base64,")
    with pytest.raises(EndpointError, match="small failed: status 404"):
        chat(f"{url}/nothing", "small")("hello")
    with pytest.raises(EndpointError, match="small answered without a text"):
        chat(f"{url}/empty", "small")("hello")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small CLIP of random weights with its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    from assay.models.checkpoints import without_progress_bars

    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {
        **small,
        "vocab_size": len(WORDS),
        "max_position_embeddings": 12,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    vision = {**small, "image_size": 32, "patch_size": 16}
    folder = tmp_path_factory.mktemp("clip")
    with without_progress_bars():
        CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(
            folder
        )
    images = {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "do_center_crop": True,
        "crop_size": {"height": 32, "width": 32}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2],
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    core = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", model_max_length=12
    ).save_pretrained(folder)
    return folder


def test_clip_embeds_as_transformers_does(clip: Path) -> None:
    from transformers import CLIPModel

    ranker = Clip(clip)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    prepared = torch.tensor((pixels / 255 - [0.5, 0.4, 0.3]) / 0.2, dtype=torch.float32).permute(0, 3, 1, 2)
    with torch.inference_mode():
        features = CLIPModel.from_pretrained(clip).eval().get_image_features(pixel_values=prepared)
    literal = getattr(features, "pooler_output", features).numpy()
    np.testing.assert_allclose(ranker.embed_images(pixels), literal, atol=1e-5)  # float32
    texts = ranker.embed_texts(["a red dog", "cat"])
    assert texts.shape == (2, 8)
    np.testing.assert_allclose(texts[1], ranker.embed_texts(["cat"])[0], atol=1e-5)  # padding changes nothing
    (clip / "preprocessor_config.json").rename(clip / "other.json")
    with pytest.raises(InputError, match="is not a model with towers for images and texts"):
        Clip(clip)
