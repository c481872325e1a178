"""Endpoints and local pipelines: what they are asked, and every way in which one can fail."""

import base64
import io
import json
import socket
import threading
import urllib.parse
from typing import Any

import numpy as np
import pytest
import torch
from chat_server import Asked, Reply, chat_server, said
from PIL import Image
from type_checks import no_type_checks

from assay.analyses.subsets.describe import describe_subset
from assay.analyses.subsets.language_models import (
    ChatEndpoint,
    pipeline_answers,
    pipeline_captioner,
)
from assay.analyses.subsets.proposals import RefusalError, text_proposer
from assay.core.errors import EndpointError, InputError


SECRET = "sk-very-secret-1234"
IMAGES = np.stack([np.full((8, 8, 3), shade, dtype=np.uint8) for shade in (10, 20, 240, 250)])


def endpoint(url: str, **options: Any) -> ChatEndpoint:
    return ChatEndpoint(url=url, model="tiny", **{"pause": 0.0, "timeout": 10.0, **options})


def shade_of(asked: Asked) -> int | None:
    """Mean of the image in a request, of which the server sees a PNG; None without one."""
    content = asked.body["messages"][0]["content"]
    if isinstance(content, str):
        return None
    uri = content[1]["image_url"]["url"]
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        return round(np.asarray(image).mean())


def test_images_are_captioned_and_phrases_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", SECRET)

    def reply(asked: Asked) -> Reply:
        if (shade := shade_of(asked)) is None:
            return said('* "bright"\n* dark')
        return said(f"a {'bright' if shade > 128 else 'dark'} square")

    with chat_server(reply) as server:
        found = endpoint(f"{server.url}/?api-version=1", key_variable="TEST_KEY")
        described = describe_subset(
            IMAGES[2:], IMAGES[:2], captioner=found.captions, proposer=text_proposer(found.answer)
        )
    assert described.captions_selected == ("a bright square", "a bright square")
    assert described.captions_comparison == ("a dark square", "a dark square")
    assert described.phrases == ("bright", "dark")
    assert {each.path for each in server.asked} == {"/v1/chat/completions?api-version=1"}
    assert {each.headers["Authorization"] for each in server.asked} == {f"Bearer {SECRET}"}
    sent = {"model", "messages", "temperature", "max_tokens"}
    assert all(each.body["model"] == "tiny" and each.body.keys() == sent for each in server.asked)
    assert "a bright square" in server.asked[-1].body["messages"][0]["content"]
    assert SECRET not in repr(found)


def test_texts_are_embedded_in_their_order_whatever_that_of_the_answer() -> None:
    def reply(asked: Asked) -> Reply:
        rows = [{"index": k, "embedding": [len(text), 1]} for k, text in enumerate(asked.body["input"])]
        return 200, {"data": rows[::-1]}

    with chat_server(reply) as server:
        found = endpoint(server.url).embed_texts(["a", "bcd"])
    assert found.tolist() == [[1.0, 1.0], [3.0, 1.0]]
    one = {"index": 0, "embedding": [1.0]}
    for rows in ([], [one, one], [one, {"index": 1, "embedding": [10**400]}]):
        with chat_server(lambda asked, rows=rows: (200, {"data": rows})) as server:
            found = endpoint(server.url)
            with pytest.raises(EndpointError, match="2 texts"):
                found.embed_texts(["a", "b"])


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        ((200, b"<html>not json"), EndpointError, "not a JSON object: '<html>not json'"),
        ((200, [1]), EndpointError, "not a JSON object"),
        ((200, {"choices": []}), EndpointError, "without choices"),
        ((200, {"error": "no"}), EndpointError, "without choices"),
        (said("  ", finish_reason="length"), EndpointError, "without text .finish_reason length"),
        (said(None), EndpointError, "without text"),
        (said("x", finish_reason="content_filter"), RefusalError, "refusing: stopped by a content filter"),
        ((200, {"choices": [{"message": {"refusal": "I cannot"}}]}), RefusalError, "refusing: I cannot"),
        ((401, {"error": "bad key"}), EndpointError, "failed: status 401, .*bad key"),
        ((404, b""), EndpointError, "failed: status 404$"),
        ((302, b"", {"Location": "http://elsewhere/"}), EndpointError, "redirects are not followed"),
        ((503, b"busy"), EndpointError, r"failed \(2 attempts\): status 503, 'busy'"),
    ],
)  # fmt: skip
def test_a_failed_answer_is_one_error(reply: Reply, error: type, message: str) -> None:
    with chat_server(lambda asked: reply) as server:
        found = endpoint(server.url, retries=1)
        with pytest.raises(error, match=message) as raised:
            found.answer("hello")
    assert server.url in str(raised.value)
    assert len(server.asked) == 1 + (reply[0] == 503)


def test_a_busy_host_is_asked_again_after_the_pause_it_wants() -> None:
    answers: list[Reply] = [(429, b"", {"Retry-After": "0"}), (500, b""), said("done")]
    with chat_server(lambda asked: answers.pop(0)) as server:
        assert endpoint(server.url, pause=0.01).answer("hello") == "done"


def test_a_key_that_the_host_repeats_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", SECRET)
    told = {"error": {"message": f"Incorrect API key: {SECRET}"}}
    for reply in ((401, told), said(None, finish_reason=SECRET), (200, {"choices": [], "echo": SECRET})):
        with chat_server(lambda asked, reply=reply: reply) as server:
            found = endpoint(server.url, key_variable="TEST_KEY")
            with pytest.raises(EndpointError, match=r"\*\*\*") as raised:
                found.answer("hello")
        assert SECRET not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("secret", ["sk-" + "x" * 900, 'sk-"quoted"\\and-more', "sk-a/b+c/d12345"])
def test_a_key_is_masked_however_long_or_escaped_it_is(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("TEST_KEY", secret)
    twice = json.dumps({"error": json.dumps({"error": f"Bearer {secret}"})})
    for told in (secret, twice, twice.replace("/", "\\/"), urllib.parse.quote(secret, safe="")):
        with (
            chat_server(lambda asked, told=told: (401, told.encode())) as server,
            pytest.raises(EndpointError, match=r"401, .*\*\*\*") as raised,
        ):
            endpoint(server.url, key_variable="TEST_KEY").answer("hello")
        assert not any(part in str(raised.value) for part in ("sk-", "xxxx", "quoted", "12345"))


def test_an_answer_and_the_address_do_not_show_what_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", SECRET)
    query = "?version=1&api-key=query%2Bsecret"
    with chat_server(lambda asked: said(f"* Bearer {SECRET} of query+secret, 1")) as server:
        found = endpoint(server.url + query, key_variable="TEST_KEY")
        assert found.answer("hello") == "* Bearer *** of ***, 1"  # a short value is no secret
    assert "secret" not in repr(found)
    with (
        chat_server(lambda asked: (403, f"denied: {asked.path}".encode())) as server,
        pytest.raises(EndpointError, match="denied") as raised,
    ):
        endpoint(server.url + query).answer("hello")
    assert "secret" not in str(raised.value)


def test_a_key_of_one_letter_leaves_words_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "x")
    with chat_server(lambda asked: said("a box; key x")) as server:
        assert endpoint(server.url, key_variable="TEST_KEY").answer("hello") == "a box; key ***"


def test_a_status_whose_body_breaks_off_is_told_once() -> None:
    broken = {"Transfer-Encoding": "chunked"}
    with (
        chat_server(lambda asked: (403, b"zz\r\n", broken)) as server,
        pytest.raises(EndpointError, match="failed: status 403$"),
    ):
        endpoint(server.url, retries=1).answer("hello")
    assert len(server.asked) == 1


def test_images_that_are_refused_late_are_left_out() -> None:
    """The second request of a side is for what the first one lacks: here for refused images only."""
    images = [*IMAGES[2:], *IMAGES[:2], *IMAGES[:2]]

    def reply(asked: Asked) -> Reply:
        if (shade := shade_of(asked)) is None:
            return said("* bright")
        return said("bright") if shade > 128 else (400, b"no")

    with chat_server(reply) as server:
        found = endpoint(server.url)
        described = describe_subset(
            images, IMAGES[2:], captioner=found.captions, proposer=text_proposer(found.answer), n_captions=4
        )
    assert described.captions_selected == ("bright", "bright")
    assert described.n_failed == 4


def test_a_host_that_never_ends_its_answer_is_given_up() -> None:
    done = threading.Event()

    def reply(asked: Asked) -> Reply:
        done.wait(20)
        return 200, b""

    with chat_server(reply) as server:
        found = endpoint(server.url, timeout=0.2, retries=0)
        with pytest.raises(EndpointError, match="no answer within 0.2 s"):
            found.answer("hello")
        done.set()


def test_a_host_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EndpointError, match=f"127.0.0.1:{port}/v1 .model tiny. failed .*refused"):
        endpoint(f"http://127.0.0.1:{port}/v1").answer("hello")


def test_an_address_that_cannot_be_asked_is_tried_once() -> None:
    with pytest.raises(EndpointError, match=r"\(model tiny\) failed: UnicodeError"):
        endpoint("http://a..b/v1", retries=1).answer("hello")


def test_an_image_that_is_refused_has_no_caption_and_a_host_that_fails_ends_the_step() -> None:
    def reply(asked: Asked) -> Reply:
        shade = shade_of(asked)
        return {10: (413, b"too large"), 20: said("x", finish_reason="content_filter")}.get(
            shade or 0, said("bright")
        )

    with chat_server(reply) as server:
        found = endpoint(server.url)
        assert found.captions(IMAGES, "Describe") == [None, None, "bright", "bright"]
        with pytest.raises(RefusalError):  # no image got any
            found.captions(IMAGES[:2], "Describe")
    with chat_server(lambda asked: (403, b"")) as server, pytest.raises(EndpointError, match="status 403"):
        endpoint(server.url).captions(IMAGES, "Describe")
    assert len(server.asked) == 1  # the others are not tried


def newer(asked: Asked) -> Reply:
    """A host that takes another name for the longest answer, and no temperature."""
    for name in ("max_tokens", "temperature"):
        if name in asked.body:
            told = f"{'x' * 300} Unsupported parameter: '{name}' is not supported with this model."
            return 400, {"error": {"message": told, "param": name}}
    return said("a square" if shade_of(asked) else "* bright")


def test_a_refused_parameter_is_named_with_the_option_and_can_be_left_out() -> None:
    with chat_server(newer) as server:
        with pytest.raises(RefusalError, match=r"status 400, .*names max_tokens.*--endpoint-parameters"):
            endpoint(server.url).answer("hello")
        with pytest.raises(RefusalError, match="names temperature"):
            endpoint(server.url, parameters={"temperature": 0}).captions(IMAGES, "Describe")
        assert len(server.asked) == 3  # after two images, the others would be refused as well
        assert endpoint(server.url, parameters={}).answer("hello") == "* bright"
        assert server.asked[-1].body.keys() == {"model", "messages"}
        found = endpoint(server.url, parameters={"max_completion_tokens": 9})
        assert found.captions(IMAGES[:1], "Describe") == ["a square"]
        assert server.asked[-1].body["max_completion_tokens"] == 9


def refusal(body: Any, **parameters: Any) -> str:
    """The error of a request to which a host answers 400."""
    with chat_server(lambda asked: (400, body)) as server, pytest.raises(EndpointError) as raised:
        endpoint(server.url, parameters=parameters).answer("hello")
    return str(raised.value)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"error": {"message": "this value is too large", "param": "max_tokens"}}, "max_tokens"),
        ({"error": {"message": "no", "param": "chat_template_kwargs.n"}}, "chat_template_kwargs"),
        ({"detail": [{"loc": ["body", "n"], "msg": "Extra inputs are not permitted", "input": 2}]}, "n"),
        ({"message": {"detail": [{"loc": ["user"], "msg": "Extra inputs are not permitted"}]}}, "user"),
        ({"error": "`n` has to be 1"}, "n"),
        ({"error": {"message": "Unrecognized request argument supplied: user"}}, "user"),
        ({"error": {"message": "user is not supported", "param": None}}, "user"),
        (b"Unknown field max_tokens", "max_tokens"),
    ],
)
def test_a_refused_parameter_is_told_by_its_field_or_by_words_beside_it(body: Any, name: str) -> None:
    told = refusal(body, max_tokens=9, n=1, user="me", chat_template_kwargs={})
    assert f"It names {name}, which" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b'{"error": "too\\nlarge"}',
        {"error": {"message": "the image of this user is broken"}},
        {"error": {"message": "unsupported image of this user"}},
        {"error": {"message": "'n' of the picture", "param": "messages[0].content"}},
        {"error": {"message": 'cannot read {"max_tokens": 9, "n": 1, "user": "me"}, not supported'}},
        {"detail": [{"loc": ["body", "messages"], "msg": "bad", "input": {"n": "'n' is unsupported"}}]},
    ],
)
def test_an_answer_that_only_holds_the_word_refuses_no_parameter(body: Any) -> None:
    assert "It names" not in refusal(body, max_tokens=9, n=1, user="me")


def test_embeddings_are_not_refused_for_a_parameter_that_is_not_sent_with_them() -> None:
    told = {"error": {"message": "no", "param": "max_tokens"}}
    with (
        chat_server(lambda asked: (400, told)) as server,
        pytest.raises(EndpointError, match="status 400") as raised,
    ):
        endpoint(server.url).embed_texts(["a"])
    assert "It names" not in str(raised.value)


def test_parameters_are_copied_and_their_values_are_not_shown() -> None:
    given: dict[str, Any] = {"extra": {"token": "tok-123456789"}}
    found = endpoint("http://localhost:1/v1", parameters=given)
    given["extra"]["token"] = given["model"] = "other"
    assert found.parameters == {"extra": {"token": "tok-123456789"}}
    assert len({found, endpoint("http://localhost:1/v1", parameters=dict(found.parameters))}) == 1
    assert "tok-" not in repr(found)
    told = refusal({"error": {"param": "extra"}}, **found.parameters)
    assert "give other parameters than extra (" in told
    assert "tok-" not in told


@pytest.mark.parametrize("place", [0, 1, 3])
def test_one_image_that_is_refused_for_a_parameter_is_left_out_wherever_it_is(place: int) -> None:
    def reply(asked: Asked) -> Reply:
        odd = shade_of(asked) == round(IMAGES[place].mean())
        return (400, {"error": {"param": "max_tokens"}}) if odd else said("a square")

    with chat_server(reply) as server:
        found = endpoint(server.url).captions(IMAGES, "Describe")
        assert found == [None if k == place else "a square" for k in range(4)]
        with pytest.raises(RefusalError, match="It names max_tokens"):
            endpoint(server.url).captions(IMAGES[place : place + 1], "Describe")


def test_an_image_that_is_too_long_for_the_parameters_is_left_out_once_others_were_not() -> None:
    def reply(asked: Asked) -> Reply:
        return said("dark") if (shade_of(asked) or 0) < 128 else (400, b"max_tokens is too large")

    with chat_server(reply) as server:
        assert endpoint(server.url).captions(IMAGES, "Describe") == ["dark", "dark", None, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:8000"}, "not an address"),
        ({"parameters": {"model": "other"}}, "parameters hold 'model'"),
        ({"parameters": {"temperature": float("nan")}}, "parameters are not JSON"),
        ({"parameters": None}, "parameters are of type NoneType"),
        ({"parameters": "max_tokens=1"}, "parameters are of type str"),
        ({"parameters": ["max_tokens"]}, "parameters are of type list"),
        ({"parameters": {1: 2}}, "mapping from names"),
        ({"url": "ftp://host/v1"}, "not an address"),
        ({"url": "http://host:port/v1"}, "not an address"),
        ({"url": "http://x y/v1"}, "not an address"),
        ({"url": "http://host/v1\n"}, "not an address"),
        ({"url": "http://me:pass@host/v1"}, "holds a password"),
        ({"key_variable": "NOT_SET"}, "NOT_SET does not hold an API key"),
        ({"timeout": 0.0}, "timeout is 0"),
        ({"retries": -1}, "retries is -1"),
    ],
)
def test_settings_are_checked_before_any_request(options: dict[str, Any], message: str) -> None:
    with no_type_checks(), pytest.raises(InputError, match=message) as raised:
        ChatEndpoint(**{"url": "http://localhost:1/v1", "model": "m", **options})
    assert "pass@" not in str(raised.value)


# ------------------------------------------------------------------------------------------- local pipelines


def test_a_local_model_answers_a_prompt() -> None:
    from transformers import pipeline

    from assay.models import load_model

    model = load_model("mini")
    generate = pipeline("text-generation", model=model.module, tokenizer=model.tokenizer, device="cpu")
    prompt = model.tokenizer.decode(model.tokenizer("When Mary and John")["input_ids"])
    answer = pipeline_answers(generate, max_new_tokens=3)(prompt)
    assert answer
    assert not answer.startswith(prompt)
    assert pipeline_answers(generate, max_new_tokens=3)(prompt) == answer


WORDS = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "<image>", "a", "photo", "of", "dog", "cat", "red", "blue", "USER:",
    "ASSISTANT:", "Describe",
)  # fmt: skip
SPECIAL = [0, 1, 2, 3, 4]  # which leave no text
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SIDES = {"height": 16, "width": 16}
CHAT = (
    "{% for message in messages %}USER: {% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<image> {% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def tokenizer(template: str) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(["<image>"])
    core.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]", "cls": "[CLS]", "sep": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=core, **{f"{name}_token": token for name, token in names.items()}
    )


def blip() -> Any:
    """A pipeline that continues a prompt, with random weights."""
    from transformers import (
        BlipConfig,
        BlipForConditionalGeneration,
        BlipImageProcessor,
        BlipProcessor,
        pipeline,
    )

    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "sep_token_id": 3}
    text = {
        **SMALL,
        **ids,
        "vocab_size": len(WORDS),
        "encoder_hidden_size": 16,
        "max_position_embeddings": 64,
    }
    config = BlipConfig(
        text_config=text, vision_config={**SMALL, "image_size": 16, "patch_size": 8}, projection_dim=16
    )
    model = BlipForConditionalGeneration(config).eval()
    model.text_decoder.generation_config.suppress_tokens = SPECIAL
    processor = BlipProcessor(BlipImageProcessor(size=SIDES), tokenizer("[CLS] $A [SEP]"))
    return pipeline("image-text-to-text", model=model, processor=processor, device="cpu")


def llava() -> Any:
    """A pipeline that answers in a chat, with random weights."""
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        pipeline,
    )

    sizes: dict[str, Any] = {**SMALL, "num_hidden_layers": 2}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=16, patch_size=8, projection_dim=16, **sizes),
        text_config=LlamaConfig(vocab_size=len(WORDS), num_key_value_heads=2, **ids, **sizes),
        image_token_id=4,
        image_seq_length=4,
    )
    processor = LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=SIDES),
        tokenizer("[CLS] $A"),
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=CHAT,
        num_additional_image_tokens=1,
    )
    model = LlavaForConditionalGeneration(config).eval()
    model.generation_config.suppress_tokens = SPECIAL
    return pipeline("image-text-to-text", model=model, processor=processor, device="cpu")


def generated(pipe: Any, given: Any) -> str:
    """What the model itself adds to prepared inputs, token by token the likeliest."""
    with torch.inference_mode():
        ids = pipe.model.generate(**given, max_new_tokens=5, do_sample=False)
    text: str = pipe.processor.decode(ids[0], skip_special_tokens=True)
    return text.removeprefix(pipe.processor.decode(given["input_ids"][0], skip_special_tokens=True)).strip()


def test_a_model_without_chats_continues_the_prompt_for_each_image() -> None:
    torch.manual_seed(0)
    pipe = blip()
    for prompt in ("Describe a dog", "a photo of"):
        expected = [
            generated(pipe, pipe.processor(images=Image.fromarray(each), text=prompt, return_tensors="pt"))
            for each in IMAGES
        ]
        assert all(expected)
        own = {} if prompt == "Describe a dog" else {"prompt": prompt}
        found = pipeline_captioner(pipe, max_new_tokens=5, **own)(IMAGES, "Describe a dog")
        assert found == expected
    assert pipeline_captioner(pipe, max_new_tokens=2)(IMAGES[:1], "Describe a dog") != found[:1]


def test_a_model_with_chats_is_asked_about_each_image_and_describes_a_subset() -> None:
    torch.manual_seed(0)
    pipe = llava()
    expected = []
    for each in IMAGES:
        content = [{"type": "image", "image": Image.fromarray(each)}, {"type": "text", "text": "Describe"}]
        prepared = pipe.processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
        )  # fmt: skip
        expected.append(generated(pipe, prepared))
    found = pipeline_captioner(pipe, max_new_tokens=5)
    assert found(IMAGES, "Describe") == expected
    assert len(set(expected)) > 1  # the model sees the images
    described = describe_subset(
        IMAGES[2:], IMAGES[:2], captioner=found, proposer=lambda a, b, n: [f"more {b[0]}"]
    )
    assert len(described.captions_selected) == len(described.captions_comparison) == 2
    assert described.phrases == (f"more {described.captions_selected[0]}",)
