"""vLLM's error objects, as ours.

Contract: vLLM 0.29, `entrypoints/serve/exception_handling`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import from_json

from app.engine.constraints import constrained_field
from app.engine.context import overflow
from app.errors import Broken, Incomplete, Rejected, SwitchyardError

MALFORMED_RESPONSE = "The deployment returned a malformed response"
ENDED_EARLY = "The deployment ended its response before it was complete"

ENGINE_DIED = "The deployment's engine has died"

ENGINE_DEAD = "EngineCore encountered an issue"
"""The beginning of vLLM's message for all requests of an engine that has died (`EngineDeadError`)."""

_TOO_LARGE = 413
"""The one status that says enough without an error object: a proxy may have a smaller limit than the router."""

_FAILED = b'data: {"error":'


def engine_error(body: bytes, status: int) -> SwitchyardError:
    """The engine's error object, ``{"error": {"message", "type", "param", "code"}}``, as ours.

    A client's fault stays one (Rejected with the engine's status); anything else is the deployment's (Broken): also a
    model or a route that the engine lacks, which the configuration has named, not the client, and a page of a server in
    between. Incomplete: the engine has died.
    """
    message, param, code = _fields(body)
    if isinstance(code, int) and 400 <= code <= 599:
        status = code
    if status == 404 and (param == "model" or _NO_MODEL.match(message or "")):
        return Broken("The deployment's engine does not serve its model")
    if message is None and status != _TOO_LARGE and (status in (404, 405) or not body.lstrip().startswith(b"{")):
        return Broken(MALFORMED_RESPONSE)
    if 400 <= status < 500 and status not in (401, 403):
        if message is not None and (exceeded := overflow(message, status)) is not None:
            return exceeded
        return Rejected(message or "The engine rejected the request", status=status, param=param)
    if message is not None and message.startswith(ENGINE_DEAD):
        return Incomplete(ENGINE_DIED, engine_message=message)
    return Broken("The deployment failed while serving the request", engine_message=message or "")


def engine_message(body: bytes) -> str:
    """The message of the engine's error object, or a body that is plain text; "" without either."""
    message, _, _ = _fields(body)
    if message is not None:
        return message
    text = body.decode("utf-8", "replace").strip()
    return "" if text.startswith(("{", "[", "<")) else text


def error_in_first_chunk(first: bytes) -> SwitchyardError | None:
    """The engine's error if a stream begins with one: vLLM validates some fields only after it has sent status 200."""
    if not first.startswith(_FAILED):
        return None
    return engine_error(first.partition(b"\n")[0].removeprefix(b"data: "), status=500)


_EVENT = re.compile(rb'^data: ?(\{"error".*|\{"type": ?"error".*)$', re.MULTILINE)


def error_in(frames: bytes) -> SwitchyardError | None:
    """The first error event in whole frames of the engine's stream."""
    if frames.find(b'"error"') < 0:  # nearly always: far cheaper than the expression
        return None
    found = _EVENT.search(frames)
    return engine_error(found[1], status=500) if found else None


NOT_FETCHED = "images, audio and video are not fetched from"
"""The beginning of the message for a URL at a domain that the engine does not allow; without the list of those."""

_UNTRUSTED_TEMPLATE = "Chat template is passed with request, but"
NO_TEMPLATE = (
    "chat_template: this deployment takes no templates of requests; the operator may allow it "
    "(`trust_request_chat_template` in `engine_kwargs`)"
)

TOO_COSTLY = "the grammar is too costly for the engine"
"""The beginning of the message for a constraint that `deployments.engine.trial` refuses."""

_DOMAIN = re.compile(r"The URL must be from one of the allowed domains: .*\. Input URL domain: (.*)", re.DOTALL)
_URL_FIELDS = frozenset({"audio_url", "file_url", "image_url", "url", "video_url"})

_NO_MODEL = re.compile(r"The model `.*` does not exist")
"""vLLM's message. Anthropic's form of the error has no field for it."""

_PARAMETER = re.compile(r" \(parameter=.*\)$", re.DOTALL)


# vLLM's names for a text that is too long; no request has such a field.
_NO_FIELDS = frozenset({"input_text", "input_tokens"})
_FIRST_OF_LINES = re.compile(r"validation errors? for .*\n(\S+)\n +(.*?)(?: \[type=|$)", re.MULTILINE)
_LISTED = re.compile(
    r"^  \{'type': '(\w+)', 'loc': \(((?:'[^']*'|\d+)(?:, (?:'[^']*'|\d+))*),?\), "
    r"'msg': (?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")",
    re.MULTILINE,
)
"""An error in a list of them, each on a line of its own."""

_OBJECTS = frozenset({"dict_type", "model_attributes_type", "model_type"})


def _fields(body: bytes) -> tuple[str | None, str | None, object]:
    try:
        # A body with hundreds of problems is longer than what is read of it: its beginning has the first.
        error = from_json(body, allow_partial="trailing-strings")["error"]
        message, param, code = error.get("message"), error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None, None
    param = _path(param) if isinstance(param, str) and param not in _NO_FIELDS else None
    if not isinstance(message, str):
        return None, param, code
    message = _PARAMETER.sub("", message)
    if refused := _DOMAIN.search(message):
        host = refused[1].strip().strip("[]")  # an IPv6 address
        message = f"{NOT_FETCHED} '{host}': send a data: URL"
    if message.startswith(_UNTRUSTED_TEMPLATE):
        param, message = "chat_template", NO_TEMPLATE
    # vLLM prints pydantic's errors in one of two ways: keep one error's sentence and its field.
    if "validation error" in message:
        if listed := _LISTED.findall(message):
            message, param = _one_of(listed, param)
        elif first := _FIRST_OF_LINES.search(message):
            place = _path(first[1])
            message = f"{place}: {first[2]}" if place else first[2]
            param = param or place
    if param is not None and not re.search(rf"(?<!\w){re.escape(param)}(?!\w)", message):
        message = f"{param}: {message}"
    return message, param, code


def _one_of(listed: Sequence[tuple[str, str, str, str]], param: str | None) -> tuple[str, str | None]:
    """The message and field of the first of these errors; in a union, of the branch for the value's type, and furthest
    in it. `param`: the field that vLLM names, if that is another one."""
    errors = [
        (_path(".".join(part.strip("'") for part in location.split(", "))), kind, single or double)
        for kind, location, single, double in listed
    ]
    place, kind, text = errors[0]
    if param in (None, place):
        of_the_first = [one for one in errors if _steps(one[0])[:1] == _steps(place)[:1]]
        param, kind, text = max(of_the_first, key=lambda one: (len(_steps(one[0])), not one[1].endswith("_type")))
    return "Input should be an object" if kind in _OBJECTS else text.removeprefix("Value error, "), param


def _steps(path: str | None) -> Sequence[str]:
    return re.findall(r"[^.\[\]]+", path or "")


# Field names that are also common words.
_COMMON = frozenset({"model", "n", "stream", "user"})
_TEXT = ("messages", "prompt", "input", "documents")


# The fields that a sentence without a field name is about: the first that the request has, else the first.
_ABOUT: Mapping[str, Sequence[str]] = {
    "context length": _TEXT,
    "max_model_len": _TEXT,
    "multimodal": _TEXT,
    "MultiModalParam": ("documents",),
    "image": _TEXT,
    "tool choice": ("tool_choice",),
    "out of vocabulary": _TEXT,
}


# vLLM's messages about a schema, expression or grammar that it cannot follow, in any field (`structured_output`).
_CONSTRAINT = re.compile(r"\b(grammar|json schema|regex)\b|^Choice '", re.IGNORECASE)


def field_named_in(message: str, body: Mapping[str, Any]) -> str | None:
    """The field that the engine's error message is about, if the message alone names it."""
    if _CONSTRAINT.search(message) and (constrained := constrained_field(body)) is not None:
        return constrained
    if message.startswith(NOT_FETCHED):
        return next(_urls(body, "", message.split("'")[1]), None)
    named: list[str] = [word for word in re.findall(r"\w+", message) if word in body and word not in _COMMON]
    if named:
        return next((name for name in named if "_" in name), named[0])
    about = next((fields for phrase, fields in _ABOUT.items() if phrase in message), ())
    return next((name for name in about if name in body), about[0] if about else None)


_NO_GRAMMAR = "Invalid grammar specification"
_OF_SAMPLES, _OF_PROMPTS = "Requested sample logprobs", "prompt_logprobs: "
"""How messages about log-probabilities begin."""


def with_own_field(message: str, param: str | None, body: Mapping[str, Any]) -> tuple[str, str | None]:
    """The engine's message and its field, where vLLM has made that of another one in the request: log-probabilities are
    asked for by `top_logprobs` in chats, by the number of beams, and of a prompt by `echo`; a forced call's grammar is
    that of its tools."""
    if message.startswith(_NO_GRAMMAR) and constrained_field(body) == "tools":
        return "tools: the engine cannot follow a schema of their parameters", "tools"
    asked = "top_logprobs" if "top_logprobs" in body else "logprobs"
    if message.startswith(_OF_SAMPLES):
        own = "n" if body.get("use_beam_search") else asked
    elif message.startswith(_OF_PROMPTS) and "prompt_logprobs" not in body:
        own = asked
    else:
        return message, param
    return f"{own}: {message.removeprefix(_OF_PROMPTS)}", own


_NOT_MULTIMODAL = "is not a multimodal model"
_TEXTS = frozenset("text input_text output_text refusal thinking redacted_thinking tool_use tool_result".split())


def media_refused(message: str, body: Mapping[str, Any]) -> str | None:
    """The path of the first part that is no text, if the engine's error message is that its model takes only texts."""
    if _NOT_MULTIMODAL not in message:
        return None
    for field in ("messages", "input"):
        for index, item in enumerate(items if isinstance(items := body.get(field), list) else ()):
            if (path := next(_media(item, f"{field}[{index}]"), None)) is not None:
                return path
    return None


def _media(holder: Any, path: str) -> Iterator[str]:
    """The paths of the parts that are no text in a message, an item, or a tool's result."""
    for name in ("content", "output"):
        parts = holder.get(name) if isinstance(holder, Mapping) else None
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            inner = f"{path}.{name}[{place}]"
            if isinstance(part, Mapping) and part.get("type") not in _TEXTS:
                yield inner
            yield from _media(part, inner)


def with_public_name(message: str, model: str, name: str) -> str:
    """The engine's message with the public `name` of its `model`."""
    return re.sub(rf"(?<![\w./-]){re.escape(model)}(?![\w/-])", lambda _: name, message) if model else message


def _urls(value: Any, path: str, host: str) -> Iterator[str]:
    """The paths of the URLs of images, audio and video at `host`."""
    if isinstance(value, Mapping):
        for name, member in value.items():
            inner = f"{path}.{name}" if path else name
            if isinstance(member, str) and name in _URL_FIELDS and _host(member) == host:
                yield inner
            yield from _urls(member, inner, host)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _urls(item, f"{path}[{index}]", host)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _path(location: str) -> str | None:
    """vLLM's ``body.tools.0.FunctionTool.name`` as clients write it: ``tools[0].name``, without the names of Python's
    classes. None if it does not begin with a field's name."""
    parts = [part for part in location.removeprefix("body.").split(".") if not _BRANCH.match(part)]
    path = ".".join(parts)
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path) if path and not path[0].isdigit() else None


_BRANCH = re.compile(r"[A-Z]|(?:str|int|float|bool|dict)$|[\w-]+\[")
"""A part of a location that names a branch of a union, and no field."""
