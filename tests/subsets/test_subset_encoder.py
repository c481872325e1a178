"""Encoders with random weights, loaded from files; n-grams of texts; the words for the hold-out."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from planted_subsets import planted_embedding
from scipy import stats as scipy_stats
from torch import nn

from assay.analyses.subsets import encoder as encoders
from assay.analyses.subsets import page_words
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.describe import describe_selection
from assay.analyses.subsets.encoder import Encoder, TextRanker, embed_examples
from assay.analyses.subsets.holdout import example_holdout
from assay.analyses.subsets.ngrams import ngram_features, ngram_shift
from assay.analyses.subsets.page import subset_page
from assay.analyses.subsets.prevalence import prevalence_shift
from assay.analyses.subsets.selection import Subset, oodselect
from assay.core.errors import FileFormatError, InputError, ShapeError, UnsupportedModelError
from assay.core.record import record_id
from assay.pipeline.subsets import job_record
from assay.stats import benjamini_hochberg


WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog", "cat", "at", "night", "day", "red", "blue")
CLIP_IMAGES = {
    "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32},
    "crop_size": {"height": 32, "width": 32}, "do_center_crop": True, "resample": 3,
    "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2],
}  # fmt: skip
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def save(folder: Path, model: Any, *, images: dict[str, Any] | None = None, texts: bool = False) -> Path:
    import json

    from assay.models.hugging_face import without_progress_bars

    with without_progress_bars():
        model.save_pretrained(folder)
    if images is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(images))
    if texts:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        core = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
        core.pre_tokenizer = pre_tokenizers.Whitespace()
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        PreTrainedTokenizerFast(
            tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", model_max_length=12
        ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    text = {**SMALL, "vocab_size": len(WORDS), "max_position_embeddings": 16, "eos_token_id": 3}
    vision = {**SMALL, "image_size": 32, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    return save(tmp_path_factory.mktemp("clip"), model, images=CLIP_IMAGES, texts=True)


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (40, 40, 48, 3), dtype=np.uint8)


def test_images_of_any_form_get_the_embedding_that_the_model_gives(
    clip: Path, pictures: np.ndarray, tmp_path: Path
) -> None:
    from transformers import CLIPModel

    encoder = Encoder.load(clip, device="cpu")
    found = encoder.embed_images(pictures)
    assert found.shape == (40, 8)
    Image.fromarray(pictures[3]).save(tmp_path / "3.png")
    for form in (pictures[3], Image.fromarray(pictures[3]), tmp_path / "3.png"):
        np.testing.assert_allclose(encoder.embed_images([form])[0], found[3], atol=1e-6)
    # By hand: shorter side to 32, centre crop, normalised, the image tower and its projection.
    small = Image.fromarray(pictures[3]).resize((38, 32), Image.Resampling.BICUBIC).crop((3, 0, 35, 32))
    pixels = (np.asarray(small) / 255 - [0.5, 0.4, 0.3]) / 0.2
    model = CLIPModel.from_pretrained(clip).eval()
    with torch.inference_mode():
        given = torch.tensor(pixels.transpose(2, 0, 1)[None], dtype=torch.float32)
        expected = model.visual_projection(model.vision_model(pixel_values=given).pooler_output)
    np.testing.assert_allclose(found[3], expected[0], atol=1e-5)


def test_texts_do_not_depend_on_what_stands_beside_them(clip: Path) -> None:
    encoder = Encoder.load(clip, device="cpu")
    together = encoder.embed_texts(["a dog", "a red cat at night", "blue " * 50])
    assert together.shape == (3, 8)
    np.testing.assert_allclose(encoder.embed_texts(["a dog"])[0], together[0], atol=1e-5)


@pytest.mark.parametrize("pad_token", ["[PAD]", None])
def test_a_tokenizer_that_pads_left_leaves_positions_where_they_are(
    pad_token: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(3)
    model = GPT2Model(GPT2Config(vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=16))
    encoder = Encoder.load(save(tmp_path / "gpt2", model, texts=True), device="cpu")
    encoder.tokenizer.padding_side = "left"
    encoder.tokenizer.pad_token, encoder.tokenizer.eos_token = pad_token, "[SEP]"
    texts = ["a dog", "a red cat at night", "a blue cat", "day"]
    together = encoder.embedding_of_texts(texts)
    monkeypatch.setattr(encoders, "BATCH", 1)
    apart = encoder.embedding_of_texts(texts)
    np.testing.assert_allclose(together.rows, apart.rows, atol=1e-5)  # rounding of float32
    assert together.made_from == apart.made_from


def test_a_clip_model_scores_phrases_of_a_selection(clip: Path, pictures: np.ndarray) -> None:
    selection = dataclasses.replace(chosen("cluster"), data=None)
    images = np.resize(pictures, (selection.facts["n_examples"], *pictures.shape[1:]))
    encoder = Encoder.load(clip, device="cpu")
    described = describe_selection(selection, images, ranker=encoder, phrases=["a dog", "a cat at night"])
    assert {each.phrase for each in described.scores} == {"a dog", "a cat at night"}
    assert all(0 < each.auroc < 1 for each in described.scores)


def test_sentences_are_means_over_their_own_tokens(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(1)
    model = BertModel(BertConfig(vocab_size=len(WORDS), **SMALL), add_pooling_layer=False)
    encoder = Encoder.load(save(tmp_path / "bert", model, texts=True), device="cpu")
    assert (encoder.reads_texts, encoder.reads_images) == (True, False)
    found = encoder.embed_texts(["a dog", "a red cat at night"])
    with torch.inference_mode():
        expected = encoder.module(input_ids=torch.tensor([[2, 4, 5, 3]])).last_hidden_state.mean(1)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    with pytest.raises(UnsupportedModelError, match="cannot embed images: it reads texts"):
        encoder.embed_images(np.zeros((1, 8, 8, 3), dtype=np.uint8))
    ranked = TextRanker(embed_texts=encoder.embed_texts)
    np.testing.assert_array_equal(ranked.embed_images(["a dog"]), ranked.embed_texts(["a dog"]))


def test_dino_gives_its_class_token_and_a_classifier_works_without_its_head(
    tmp_path: Path, pictures: np.ndarray
) -> None:
    from transformers import Dinov2Config, Dinov2Model, ViTConfig, ViTForImageClassification

    torch.manual_seed(2)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    dino = Dinov2Model(Dinov2Config(image_size=28, patch_size=14, **sizes))
    stored = {**CLIP_IMAGES, "image_processor_type": "BitImageProcessor"}
    # Another size than that of the position table.
    stored["crop_size"] = {"height": 42, "width": 42}
    stored["size"] = {"shortest_edge": 48}
    encoder = Encoder.load(save(tmp_path / "dino", dino, images=stored), device="cpu")
    pixels = encoder.transform.normalised(
        np.stack([encoder.transform.pixels(Image.fromarray(each)) for each in pictures[:2]])
    )
    with torch.inference_mode():
        expected = encoder.module(pixel_values=pixels).last_hidden_state[:, 0]
    np.testing.assert_allclose(encoder.embed_images(pictures[:2]), expected, atol=1e-5)
    with pytest.raises(UnsupportedModelError, match="cannot embed texts"):
        encoder.embed_texts(["a dog"])

    vit = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, **SMALL))
    encoder = Encoder.load(save(tmp_path / "vit", vit), device="cpu")
    with pytest.warns(UserWarning, match="does not state how to prepare"):
        found = encoder.embed_images(pictures[:2])
    with torch.inference_mode():
        pixels = encoder.transform.normalised(
            np.stack([encoder.transform.pixels(Image.fromarray(each)) for each in pictures[:2]])
        )
        expected = vit.eval().vit(pixel_values=pixels).last_hidden_state[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_cannot_be_loaded_or_embedded_is_named(clip: Path, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"has no config\.json"):
        Encoder.load(tmp_path)
    encoder = Encoder.load(clip, device="cpu")
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(FileFormatError, match=r"bad\.png as an image"):
        encoder.embed_images([tmp_path / "bad.png"])
    with pytest.raises(ShapeError, match="float64"):
        encoder.embed_images(np.zeros((1, 8, 8)))
    with pytest.raises(InputError, match="nothing to embed"):
        encoder.embed_images([])
    with pytest.raises(InputError, match="neither images nor a text"):
        embed_examples(planted_embedding(0, "ids"), encoder)


def test_data_get_the_embedding_of_their_images_or_of_a_column(clip: Path, pictures: np.ndarray) -> None:
    encoder = Encoder.load(clip, device="cpu")
    bare = CorrectnessData.of(
        np.resize([0, 1, 1], (8, 40)), np.linspace(0.5, 0.9, 8), images=pictures,
        meta={"review": ["a dog", "a cat"] * 20},
    )  # fmt: skip
    seen = embed_examples(bare, encoder)
    np.testing.assert_allclose(seen.embedding, encoder.embed_images(pictures), atol=1e-6)
    assert seen.source["encoder"] == encoder.name
    read = embed_examples(bare, encoder, text="review")
    assert read.source["text"] == "review"
    np.testing.assert_allclose(read.embedding[1], read.embedding[3], atol=1e-6)
    with pytest.raises(InputError, match="reviews"):
        embed_examples(bare, encoder, text="reviews")


# ------------------------------------------------------------------------------------------------- identity


def test_a_job_goes_by_what_an_embedding_is_made_from_and_by_the_numbers_of_a_given_one(
    clip: Path, pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, again = (Encoder.load(clip, device="cpu") for _ in range(2))
    bare = CorrectnessData.of(
        np.resize([0, 1, 1, 1, 0], (20, 40)), np.linspace(0.5, 0.9, 20), images=pictures,
        meta={"review": ["a dog", "a red cat at night"] * 20},
    )  # fmt: skip

    def identity(data: CorrectnessData) -> str:
        return record_id("subset-path", job_record(data, [10]))

    made = embed_examples(bare, encoder)
    monkeypatch.setattr(encoders, "BATCH", 3)
    features = again._image_features
    with monkeypatch.context() as patch:  # sums in another order, and rounding as on another device
        patch.setattr(Encoder, "_image_features", lambda _, batch: features(batch) * (1 + 1e-6))
        apart = embed_examples(bare, again)
    assert (apart.embedding != made.embedding).any()
    assert identity(apart) == identity(made) != identity(bare)
    read = [embed_examples(bare, each, text="review") for each in (encoder, again)]
    monkeypatch.undo()
    read.append(embed_examples(bare, again, text="review"))  # padded with others
    assert len({identity(each) for each in read}) == 1
    made.save(tmp_path / "made.npz")
    assert identity(CorrectnessData.load(tmp_path / "made.npz")) == identity(made)

    # Numbers that the encoder did not make, whatever the source tells.
    rounded = dataclasses.replace(made, embedding=made.embedding.round(3))
    given = CorrectnessData.of(bare, embedding=made.embedding)
    known = CorrectnessData.of(made, id_embedding=made.embedding[:4])
    others = [rounded, given, known, CorrectnessData.of(known, id_embedding=made.embedding[4:8])]
    # Another model, preparation, image or kind of input.
    with torch.no_grad():
        again.module.visual_projection.weight[0, 0] += 1e-6
    others.append(embed_examples(bare, again))
    prepared = {**CLIP_IMAGES, "image_mean": [0.5, 0.4, 0.31]}
    others.append(embed_examples(bare, dataclasses.replace(encoder, preprocessing=prepared)))
    others.append(embed_examples(dataclasses.replace(bare, images=pictures[::-1]), encoder))
    found = [identity(each) for each in (made, read[0], *others)]
    assert len(set(found)) == len(found)


class Shades(nn.Module):
    """A module of the form of timm's, with a scale beside its weights."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.ones(3))

    def forward_features(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.mean((2, 3)) * self.weight * (1.0 if self.scale is None else self.scale[0])

    def forward_head(self, hidden: torch.Tensor, pre_logits: bool) -> torch.Tensor:
        return hidden


def identity_of(module: nn.Module, images: np.ndarray) -> str:
    prepared = {"input_size": [3, 8, 8], "mean": [0.5] * 3, "std": [0.2] * 3}
    return Encoder(module=module, name="shades", preprocessing=prepared).embedding_of_images(images).made_from


def test_settings_of_any_form_are_part_of_the_identity(pictures: np.ndarray) -> None:
    scales: list[Any] = [(1.0, 1), (2.0, 1), [2.0], None]
    assert len({identity_of(Shades(scale), pictures[:2]) for scale in scales}) == len(scales)


def test_a_configuration_of_another_library_is_no_reason_to_fail(pictures: np.ndarray) -> None:
    module = Shades([1.0])
    module.config = SimpleNamespace(image_size=8)  # type: ignore[assignment]
    known = identity_of(module, pictures[:2])
    module.scale = [2.0]
    assert identity_of(module, pictures[:2]) != known


def test_settings_beside_the_configuration_count_and_the_folder_does_not(clip: Path, tmp_path: Path) -> None:
    known = Encoder.load(clip, device="cpu").embedding_of_texts(["a dog"]).made_from
    moved = Encoder.load(shutil.copytree(clip, tmp_path / "moved"), device="cpu")
    assert moved.embedding_of_texts(["a dog"]).made_from == known
    moved.module.text_model.eos_token_id = 4  # the configuration still says 3
    assert moved.embedding_of_texts(["a dog"]).made_from != known


# ------------------------------------------------------------------------------------------------- n-grams


def test_n_grams_by_hand() -> None:
    texts = ["Not good", "not good at all", "good", "bad", None, "Bad day"]
    grams = ngram_features(texts, fewest=2)
    assert grams.names == ("bad", "good", "not", "not good")
    assert grams.present.T.tolist() == [
        [0, 0, 0, 1, 0, 1],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
    ]
    for fewest, some in ((4, texts), (3, ["good"] * 3 + ["bad"]), (1, ["good"]), (1, [])):
        with pytest.raises(InputError, match="lower fewest"):
            ngram_features(some, fewest=fewest)


def test_over_represented_n_grams_are_found_and_adjusted_over_n_grams() -> None:
    selection = chosen("cluster")
    rng = np.random.default_rng(0)
    planted = np.isin(np.arange(selection.facts["n_examples"]), selection.indices)
    texts = [
        ("not good " if each else "very good ") + " ".join(rng.choice(["a", "b", "c", "d"], 3))
        for each in planted
    ]
    found = ngram_shift(selection, texts, n_resamples=50)
    rows = {row.attribute: row for row in found.rows}
    assert rows['"not"'].significant
    assert rows['"not good"'].difference > 0.5
    assert rows['"very"'].difference < -0.5
    assert not any(row.significant for name, row in rows.items() if name in ('"a"', '"b c"'))
    expected = benjamini_hochberg(np.array([row.p_value for row in found.rows]))
    np.testing.assert_allclose([row.q_value for row in found.rows], expected, rtol=1e-9)
    n = len(planted)
    assert rows['"not"'].p_value == pytest.approx(scipy_stats.hypergeom.sf(59, n, 60, 60), rel=1e-6)
    with pytest.raises(ShapeError, match="got 3 texts"):
        ngram_shift(selection, ["a", "b", "c"])
    assert example_holdout(selection, ngram_features(texts).present, folds=2).auroc > 0.9


def test_counts_give_the_shift_of_a_dense_column_for_each_n_gram() -> None:
    selection = chosen("cluster")
    rng = np.random.default_rng(3)
    n = selection.facts["n_examples"]
    texts = np.array([" ".join(rng.choice(list("abcdefgh"), 4)) for _ in range(n)], dtype=object)
    options: dict[str, Any] = {"n_resamples": 40, "level": 0.9, "q": 0.2, "seed": 5}
    found = ngram_shift(selection, texts, **options)
    grams = ngram_features(texts)
    held = np.array(["absent", "present"])[grams.present.astype(int)]
    columns = {f'"{name}"': column for name, column in zip(grams.names, held.T, strict=True)}
    literal = prevalence_shift(selection.indices, columns, **options)
    rows = [row for row in literal.rows if row.value == "present"]
    assert len(found.rows) == len(rows) > 50
    for ours, dense in zip(found.rows, rows, strict=True):
        assert ours.q_value == pytest.approx(dense.q_value, rel=1e-12)  # each was tested twice there
        assert dataclasses.replace(ours, q_value=dense.q_value) == dense
    assert (found.n_selected, found.n_pool, found.seed) == (60, n, 5)
    with pytest.raises(InputError, match="q=2.0"):
        ngram_shift(selection, texts, q=2.0)


# ----------------------------------------------------------------------------------- words for the hold-out


def chosen(kind: str, seed: int = 0) -> Subset:
    return oodselect(planted_embedding(seed, kind), size=60)


def document_of(selection: Subset) -> dict[str, Any]:
    selection.judge(n_permutations=3, folds=3, workers=1)
    return dict(selection.to_document(n_halves=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sentence", "others"),
    [
        ("cluster", "is a describable kind of input", ("list of single", "in part at most")),
        ("ids", "is a list of single examples", ("describable kind", "in part at most")),
        ("weak", "describes the subset in part at most", ("describable kind", "list of single")),
    ],
)
def test_the_page_says_rightly_whether_a_rule_finds_new_examples(
    kind: str, sentence: str, others: tuple[str, ...]
) -> None:
    document = document_of(chosen(kind))
    held_out = document["holdout"]
    assert held_out["describable"] is (kind == "cluster")
    text = page_words.holdout(document)
    assert sentence in text
    assert not any(each in text for each in others)
    assert f"AUROC of membership: {held_out['auroc']:.2f}" in text
    sections = {each.title: each for each in subset_page(document).sections}
    (pair,) = sections["How much it depends on size and models"].blocks
    assert "holdout" in [figure.name for figure in pair.blocks]


def test_without_tests_the_hold_out_says_why_it_is_missing() -> None:
    document = chosen("cluster").to_document(n_halves=0)
    assert page_words.holdout(document).endswith("was not tested: no tests were asked for.")


def test_a_subset_of_the_whole_pool_says_why_there_is_no_hold_out() -> None:
    data = planted_embedding(0, "cluster").take_examples(np.arange(40))
    document = document_of(oodselect(data, size=40))
    assert document["holdout"]["correlation"] is None
    assert "was not tested: " in page_words.holdout(document)
    subset_page(document)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least", "most"), [("cluster", 12, 12), ("weak", 0, 3), ("ids", 0, 0)])
def test_how_often_planted_subsets_are_called_describable(kind: str, least: int, most: int) -> None:
    """The counts of docs/howto/select.md: 12, 1 and 0 of 12."""
    found = [example_holdout(chosen(kind, seed), "embedding").describable for seed in range(12)]
    assert least <= sum(found) <= most
