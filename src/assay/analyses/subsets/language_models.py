"""Captions, proposals and text embeddings by language models: behind an endpoint, or in a local pipeline."""

import http.client
import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.analyses.subsets.proposals import Captioner, RefusalError
from assay.core.errors import EndpointError, InputError, check_least
from assay.core.posting import FAILURES, failure, opener_without_redirects
from assay.core.record import library_version
from assay.core.untrusted import parse_json, printable
from assay.page.thumbnail import png_uri
from assay.tasks.image_transform import picture_of


SIDE = 512  # pixels of the longer side of an image that is sent
_BUSY = frozenset((408, 429, 500, 502, 503, 504))  # worth asking again
_OF_ONE_IMAGE = frozenset((400, 413, 415, 422))  # what an endpoint answers to one that it will not take
_OF_PARAMETERS = frozenset((400, 422))  # and to a parameter
_TELLING = ("error", "errors", "detail", "message", "msg")  # where the JSON of such an answer says why
_DEEPEST = 6  # levels of that JSON that are read
_NOT_TAKEN = (
    r"(?:unsupported|unknown|unrecogni[sz]ed|unexpected|not (?:supported|permitted|allowed)|instead of)"
)
_KINDS = r"(?:request|arguments?|parameters?|fields?|options?|keys?|values?|supplied|for|the)"
_LONGEST_ANSWER = 1 << 24  # bytes
_LONGEST_PAUSE = 30.0  # seconds that an endpoint may ask to wait
_SHOWN = 200  # characters of an answer in a message
_SHORTEST_SECRET = 8  # characters of a query value that is masked, and of a key that is inside other words


class _StatusError(EndpointError):
    """An answer with a status other than 2xx."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _ParameterError(RefusalError):
    """A request that was refused with the name of a parameter in it."""


@dataclass(frozen=True, kw_only=True)
class ChatEndpoint:
    """Any address that speaks the chat protocol of OpenAI: vLLM, llama.cpp, Ollama, hosted services.

    Args:
        url: Its base, as `http://localhost:8000/v1`; a query stays (`?api-version=...`), but is not shown.
        model: Name of the model there.
        key_variable: Environment variable that holds the API key, read at each request and not stored or
            shown: an answer that repeats it, or a query value of 8 characters or more, has `***` there.
            None: no key is sent.
        timeout: Seconds for one answer, all in all.
        retries: Further attempts after no answer or the status of a busy host (408, 429, 500, 502 to 504).
        pause: Seconds before the first of them; doubles, unless the host asks for another pause, at most 30.
        parameters: What each request for a text holds beside model and messages, as JSON. A host that refuses
            one of the defaults, or calls it otherwise, needs others: `{}` sends none,
            `{"max_completion_tokens": 1024}` only that. Copied; errors name them without their values.

    Raises:
        InputError: For another scheme, no host, a space or a password in the address, an empty key variable,
            or parameters that do not map names to values, are not JSON or replace model or messages.
    """

    url: str = field(repr=False)
    model: str
    key_variable: str | None = None
    timeout: float = 120.0
    retries: int = 2
    pause: float = 1.0
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"max_tokens": 1024, "temperature": 0}, repr=False, hash=False
    )

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.url)
            _ = parts.port
        except ValueError:
            parts = urllib.parse.SplitResult("", "", "", "", "")
        plain = self.url.isascii() and self.url.isprintable() and " " not in self.url
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
            raise InputError("the endpoint is not an address; give its base, as http://localhost:8000/v1")
        if parts.username is not None:
            raise InputError(
                "the address of the endpoint holds a password; put the key into an environment variable and "
                "give the variable's name"
            )
        if not self.timeout > 0 or self.pause < 0:
            raise InputError(
                f"timeout is {self.timeout} s, pause {self.pause} s; expected above 0, at least 0"
            )
        check_least(0, retries=self.retries)
        object.__setattr__(self, "parameters", self._checked_parameters())
        _ = self._key  # a missing key is an error before work starts

    def _checked_parameters(self) -> dict[str, Any]:
        """A copy as JSON gives it back."""
        given: Any = self.parameters
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise InputError(
                f"parameters are of type {type(self.parameters).__name__}; expected a mapping from names "
                "(str) to values, {} for none"
            )
        if taken := {"model", "messages"} & self.parameters.keys():
            raise InputError(f"parameters hold {min(taken)!r}, which is part of every request; leave it out")
        try:
            copied: dict[str, Any] = json.loads(json.dumps(dict(self.parameters), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InputError(f"parameters are not JSON ({error}); give texts, numbers or lists") from error
        return copied

    @property
    def shown(self) -> str:
        """The address without its query."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"

    @property
    def _key(self) -> str | None:
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise InputError(
                f"the environment variable {self.key_variable} does not hold an API key; set it, or name the "
                "variable that does"
            )
        return key

    # ------------------------------------------------------------------------------------ what it can do

    def answer(self, prompt: str, image: Any = None) -> str:
        """The answer to a prompt, with an image or without: what `text_proposer` takes.

        Args:
            prompt: The text.
            image: A path, a Pillow image or an 8-bit array; sent as PNG, at most 512 pixels wide and high.

        Raises:
            EndpointError: Out of reach, too slow, a status other than 2xx, an answer that is not JSON, has no
                choice or no text; `RefusalError` if the model refuses, or the endpoint a parameter.
        """
        content: Any = prompt
        if image is not None:
            content = [
                {"type": "text", "text": prompt},
                {"type": "image_url", "image_url": {"url": png_uri(picture_of(image), SIDE)}},
            ]
        body = {**self.parameters, "messages": [{"role": "user", "content": content}]}
        document = self._ask("chat/completions", body)
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise EndpointError(f"{self._said} without choices: {self._excerpt(document)}")
        message = choices[0].get("message")
        message = message if isinstance(message, dict) else {}
        if message.get("refusal") or choices[0].get("finish_reason") == "content_filter":
            why = self._excerpt(message.get("refusal") or "stopped by a content filter")
            raise RefusalError(f"{self._said} by refusing: {why}")
        text: Any = message.get("content")
        if not isinstance(text, str) or not text.strip():
            ended = self._excerpt(choices[0].get("finish_reason"))
            raise EndpointError(f"{self._said} without text (finish_reason {ended})")
        return self._masked(text).strip()

    def captions(self, images: Any, prompt: str) -> list[str | None]:
        """A caption of each image: a `Captioner`; None where the model refuses or will not take the image.

        Raises:
            EndpointError: As `answer`; `RefusalError` where none of several images gets a caption.
        """
        return _captions(images, lambda image: self.answer(prompt, image))

    def embed_texts(self, texts: Sequence[str]) -> Float64[np.ndarray, "k d"]:
        """Embeddings of texts, where the endpoint serves them (`/embeddings`).

        Raises:
            EndpointError: As `answer`, and for an answer without a vector for each text.
        """
        document = self._ask("embeddings", {"input": [str(text) for text in texts]})
        rows: Any = document.get("data")
        try:
            ordered = sorted(rows, key=lambda row: row["index"])
            vectors = np.array([row["embedding"] for row in ordered], dtype=np.float64)
            complete = [row["index"] for row in ordered] == list(range(len(texts)))
        except (TypeError, KeyError, ValueError, OverflowError):
            vectors, complete = np.empty(0), False
        if vectors.ndim != 2 or not complete:
            raise EndpointError(
                f"{self._said} without a vector for each of {len(texts)} texts: {self._excerpt(document)}"
            )
        return vectors

    # ---------------------------------------------------------------------------------------- requests

    @property
    def _said(self) -> str:
        return f"the endpoint {self.shown} (model {self.model}) answered"

    def _excerpt(self, answer: Any) -> str:
        """The beginning of an answer, for a message."""
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return printable(self._masked(text))[:_SHOWN]

    def _masked(self, text: str) -> str:
        """A whole text of the host without the secrets that it repeats, however it escapes them."""
        pairs = (pair.partition("=")[2] for pair in urllib.parse.urlsplit(self.url).query.split("&"))
        values = [form for value in pairs for form in (value, urllib.parse.unquote_plus(value))]
        secrets = [value for value in values if len(value) >= _SHORTEST_SECRET]
        for secret in sorted({*secrets, *filter(None, [self._key])}, key=len, reverse=True):
            written = "".join(map(_written, secret))
            if len(secret) < _SHORTEST_SECRET:  # a local host takes any key, such as x: a word by itself only
                written = rf"(?<!\w){written}(?!\w)"
            text = re.sub(written, "***", text, flags=re.IGNORECASE)
        return text

    def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON of an answer; busy hosts are asked again."""
        parts = urllib.parse.urlsplit(self.url)
        url = urllib.parse.urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{path}", fragment=""))
        headers = {"Content-Type": "application/json", "User-Agent": f"assay/{library_version()}"}
        if (key := self._key) is not None:
            headers["Authorization"] = f"Bearer {key}"
        content = json.dumps({**body, "model": self.model}).encode()
        for attempt in range(self.retries + 1):
            answer = self._posted(urllib.request.Request(url, data=content, headers=headers, method="POST"))
            if not answer.again or attempt == self.retries:
                break
            time.sleep(answer.pause if answer.pause is not None else self.pause * 2**attempt)
        if answer.problem:
            tried = f" ({self.retries + 1} attempts)" if answer.again and self.retries else ""
            failed = f"the endpoint {self.shown} (model {self.model}) failed{tried}: {answer.problem}"
            sent = [name for name in self.parameters if name in body]
            told = _refused_parameter(answer.body, sent) if answer.status in _OF_PARAMETERS else None
            if told is not None:
                raise _ParameterError(
                    f"{failed}. It names {told}, which is sent with each request: give other parameters than "
                    f"{', '.join(sent)} (parameters=, --endpoint-parameters)"
                )
            raise _StatusError(failed, answer.status)
        try:
            document = parse_json(answer.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            text = self._excerpt(answer.body.decode(errors="replace"))
            raise EndpointError(f"{self._said} with something that is not a JSON object: {text!r}")
        return document

    def _posted(self, request: urllib.request.Request) -> "_Answer":
        answers: list[_Answer] = []
        # In a thread: the time-out of a socket starts again with every byte, a host that drips has none.
        asking = threading.Thread(target=lambda: answers.append(self._opened(request)), daemon=True)
        asking.start()
        asking.join(self.timeout)
        return answers[0] if answers else _Answer(problem=f"no answer within {self.timeout:g} s", again=True)

    def _opened(self, request: urllib.request.Request) -> "_Answer":
        try:
            # Longer than `_posted` waits, which decides what is too slow.
            with opener_without_redirects().open(request, timeout=2 * self.timeout) as answer:
                body = answer.read(_LONGEST_ANSWER + 1)
        except urllib.error.HTTPError as error:
            text = _body_of(error)
            told = self._excerpt(text).strip()
            pause = error.headers.get("Retry-After", "")
            return _Answer(
                body=text.encode(),
                problem=f"{failure(error)}{f', {told!r}' if told else ''}",
                status=error.code,
                again=error.code in _BUSY,
                pause=min(float(pause), _LONGEST_PAUSE) if pause.isdecimal() else None,
            )
        except FAILURES as error:
            wrong = isinstance(error, ValueError | http.client.InvalidURL)  # of the address: again no better
            return _Answer(problem=failure(error), again=not wrong)
        if len(body) > _LONGEST_ANSWER:
            return _Answer(problem=f"its answer is longer than {_LONGEST_ANSWER:,} bytes")
        return _Answer(body=body)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The result of one request: the body of the answer, and the problem if there is one."""

    body: bytes = b""
    problem: str = ""
    status: int = 0
    again: bool = False
    pause: float | None = None


def _body_of(error: urllib.error.HTTPError) -> str:
    """What a host says beside a status; empty where that cannot be read."""
    try:
        with error:
            return error.read(_LONGEST_ANSWER).decode(errors="replace")
    except FAILURES:
        return ""


def _refused_parameter(body: bytes, sent: Sequence[str]) -> str | None:
    """The parameter that an answer refuses, of those that were sent; None where it refuses none of them.

    A field for the name (`param` of OpenAI, `loc` of FastAPI) decides; else the words beside the name do.
    """
    try:
        places, texts = _reasons(parse_json(body))
    except ValueError:
        places, texts = [], [body.decode(errors="replace")]
    if places:
        return next((name for name in sent if name in places), None)
    return next((name for name in sent if any(_refuses(text, name) for text in texts)), None)


def _reasons(node: Any, depth: int = 0) -> tuple[list[str], list[str]]:
    """Names in the fields of an error that hold one, and its texts; not what it repeats of the request."""
    if isinstance(node, str):
        return [], [node]
    if not isinstance(node, dict | list) or depth > _DEEPEST:
        return [], []
    places, inner = list[str](), node
    if isinstance(node, dict):
        inner = [node[name] for name in _TELLING if name in node]
        if isinstance(param := node.get("param"), str) and param:
            places.append(re.split(r"[.\[]", param)[0])
        if isinstance(loc := node.get("loc"), list):
            places += [each for each in loc if isinstance(each, str) and each != "body"][:1]
    found = [_reasons(each, depth + 1) for each in inner]
    return places + [each for names, _ in found for each in names], [
        each for _, texts in found for each in texts
    ]


def _refuses(text: str, name: str) -> bool:
    """Whether a text names a parameter other than by repeating the request: quoted, or as one not taken."""
    word = rf"(?<!\w){re.escape(name)}(?!\w|\\*[\"'`]\s*:)"
    forms = (
        rf"[\"'`]{word}[\"'`]",
        rf"{_NOT_TAKEN}\W+(?:{_KINDS}\W+)*{word}",
        rf"{word}\W+(?:\w+\W+){{0,2}}{_NOT_TAKEN}",
    )
    return any(re.search(form, text, re.IGNORECASE) for form in forms)


def _written(character: str) -> str:
    """A pattern of the ways in which texts, JSON (inside JSON too) and addresses write a character."""
    code = ord(character)
    return rf"(?:\\{{0,4}}{re.escape(character)}|\\{{1,4}}u{code:04x}|%{code:02x})"


def _captions(images: Any, caption: Callable[[Any], str]) -> list[str | None]:
    """A caption of each image; None for those that an endpoint will not caption.

    Raises:
        RefusalError: Where it captions none of several.
    """
    captions: list[str | None] = []
    failed: EndpointError | None = None
    for image in images:
        try:
            captions.append(caption(image))
        except EndpointError as error:
            of_image = isinstance(error, RefusalError) or getattr(error, "status", 0) in _OF_ONE_IMAGE
            # Of the parameters only if a second image is refused for them as well, before any got a caption.
            again = isinstance(error, _ParameterError) and isinstance(failed, _ParameterError)
            if not of_image or (again and not any(captions)):
                raise
            failed = failed if isinstance(failed, _ParameterError) else error
            captions.append(None)
    if isinstance(failed, _ParameterError) and not any(captions):
        raise failed
    if failed is not None and len(captions) > 1 and not any(captions):
        raise RefusalError(f"none of {len(captions)} images got a caption: {failed}")
    return captions


# ------------------------------------------------------------------------------------------- local pipelines


def pipeline_answers(pipeline: Any, *, max_new_tokens: int = 512) -> Callable[[str], str]:
    """From a prompt to the answer of a `transformers` pipeline `text-generation`: what `text_proposer` takes.

    Args:
        pipeline: `transformers.pipeline("text-generation", model=...)`; decoded greedily. A model with a chat
            template is asked as in a chat.
        max_new_tokens: Longest answer.
    """
    chats = getattr(pipeline.tokenizer, "chat_template", None) is not None

    def answer(prompt: str) -> str:
        given: Any = [{"role": "user", "content": prompt}] if chats else prompt
        found = pipeline(given, max_new_tokens=max_new_tokens, do_sample=False, return_full_text=False)
        return _generated(found)

    return answer


def pipeline_captioner(pipeline: Any, *, max_new_tokens: int = 128, prompt: str | None = None) -> Captioner:
    """A captioner from a `transformers` pipeline `image-text-to-text`.

    Args:
        pipeline: `transformers.pipeline("image-text-to-text", model=...)`; decoded greedily. A model with a
            chat template is asked as in a chat; another (BLIP, GIT) continues the prompt.
        max_new_tokens: Longest caption.
        prompt: Text in place of the prompt of `describe_subset`, for a model that cannot follow instructions,
            as `a photo of`.
    """
    chats = getattr(pipeline.processor, "chat_template", None) is not None
    length = {"max_new_tokens": max_new_tokens, "do_sample": False}

    def caption(images: Any, asked: str) -> list[str | None]:
        captions: list[str | None] = []
        for image in images:
            picture, text = picture_of(image), asked if prompt is None else prompt
            content = [{"type": "image", "image": picture}, {"type": "text", "text": text}]
            given: Any = {"text": [{"role": "user", "content": content}]}
            if not chats:
                given = {"images": picture, "text": text}
            found = pipeline(**given, return_full_text=False, generate_kwargs=length)
            captions.append(_generated(found).strip() or None)
        return captions

    return caption


def _generated(found: Any) -> str:
    """The text that a pipeline generated for one input."""
    text = found[0]["generated_text"]
    return str(text if isinstance(text, str) else text[-1]["content"])
