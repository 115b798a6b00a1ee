"""Bodies that are made to be expensive: of any size, for every route that reads one."""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.vendor.pretty import RepresentationPrinter

from app.long_json import MOST_VALUES, weight
from tests.router.hostile.engine import compact
from tests.router.hostile.strategies import VALID

SIZES = (12 * 1024, 40 * 1024, 250 * 1024, 1024 * 1024, 4 * 1024 * 1024 - 4096)
"""Bytes. Around every bound at which a router treats bodies differently, up to the largest one."""

LARGE_SIZES = (7 * 1024 * 1024, 17 * 1024 * 1024, 32 * 1024 * 1024 - 4096)
"""Of bodies that only a router for images takes."""

_ITEMS = (
    '{} [] "" "ab" 1 12345 9999999999999999999 1.5 -0.0 1e308 null true [1] [[]] [{}] {"a":1} {"a":{}} {"role":"user"}'
    ' {"role":"user","content":"a"} {"role":"system","content":[{}]}'
    ' {"role":"assistant","content":null,"tool_calls":[]}'
    ' {"type":"text","text":""} {"type":"text"} {"type":"image_url","image_url":{"url":"a"}}'
    ' {"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{}}}}}'
    ' {"inputs":"a"} {"inputs":"a","parameters":{}} {"messages":[]} {"name":"a"} {"const":1} {"$ref":"#"}'
    ' {"request_id":"a","metric":"m","value":1} {"text":"a"} {"type":"function_call","name":"f"}'
).split()
"""Items of arrays, and values of objects with many members."""

_TEXTS: dict[str, bytes] = {
    "letters": b"a",
    "words": b"a b ",
    "signs": b"!?",
    "characters of three bytes": "漢".encode(),
    "spaces": b" ",
    "escapes": b"\\n",
    "backslashes": b"\\\\",
    "quotes": b'\\"',
    "code points": b"\\ud83d\\ude00",
    "two bytes": "é".encode(),
    "four bytes": "😀".encode(),
    "digits": b"7",
    "commas": b",",
    "brackets": b"[{",
    "names of fields": b'\\"model\\":\\"',
    "nested": b"[],",
    "open quotes": b'\\"\\\\',
    "open sets": b"[\\\\",
    "open counts": b"a{",
    "groups": b"(a|b)",
    "open groups": b"(",
    "sets": b"[a-z]",
    "repeats": b"a{1,9}",
    "alternatives": b'\\"a\\" | ',
    "rules": b"root ::= root\\n",
    "pointers": b"/a",
}
"""What a long text repeats, as JSON writes it."""

_BEFORE: tuple[bytes, ...] = (b"", b"root ::= ", b"[", "😀".encode(), b"#")

_DOCUMENT = b'{"$ref":"#","type":"object","anyOf":['

_FIELDS = (
    "model user stop logit_bias tools tool_choice response_format metadata messages input prompt inputs parameters "
    "documents queries tokens stop_tokens bad_words seed chat_template_kwargs extra_params instances content system "
    "embedding_to_replace forced_output_tokens functions token_index_to_replace stop_token_ids allowed_token_ids "
    "instruction bad_word_tokens items texts x"
).split()

_PATHS: tuple[tuple[str, ...], ...] = (
    *((name,) for name in _FIELDS),
    ("structured_outputs", "grammar"),
    ("structured_outputs", "regex"),
    ("structured_outputs", "json"),
    ("structured_outputs", "json", "$ref"),
    ("structured_outputs", "json", "required"),
    ("structured_outputs", "choice"),
    ("response_format", "json_schema", "schema", "anyOf"),
    ("response_format", "json_schema", "schema", "properties"),
    ("response_format", "value"),
    ("parameters", "grammar", "value"),
    ("parameters", "stop"),
    ("extra_params", "x"),
    ("messages", "0", "content"),
    ("messages", "0", "tool_calls"),
    ("messages", "0", "x"),
    ("input", "0", "arguments"),
    ("input", "0"),
    ("tools", "0", "function", "parameters"),
    ("tools", "0", "tools"),
    ("tools", "0", "name"),
    ("response_format", "schema"),
    ("response_format", "schema", "$ref"),
    ("instances", "0", "parameters", "stop"),
    ("instances", "0", "parameters", "grammar"),
)
"""Where a bomb may lie in a body."""

EXPERIMENT: dict[str, object] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.1}],
    "secondary": [],
    "feedback": {},
    "guardrails": [],
    "ramp": {"steps": [50]},
    "strata": [],
    "covariates": [],
}
PLAN: dict[str, object] = {"weights": {"blue": 100, "green": 0}, "overrides": []}

_OTHERS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("POST", "/v1/messages/count_tokens", {"model": "chat", "messages": []}),
    ("POST", "/score", {"model": "embed", "queries": "a", "documents": ["b"]}),
    ("POST", "/v1/rerank", {"model": "embed", "query": "a", "documents": ["b"]}),
    ("POST", "/invocations", {"messages": [{"role": "user", "content": "hi"}]}),
    ("POST", "/", {"inputs": "a"}),
    ("POST", "/tgi/chat_tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
    ("POST", "/api/feedback", {"request_id": "a", "metric": "m", "value": 1}),
    ("POST", "/api/experiments/check", {"name": "e", "experiment": EXPERIMENT}),
    ("PUT", "/api/endpoints/chat/traffic?dry_run=true", PLAN),
    ("POST", "/api/endpoints/chat/traffic/rollback", {"generation": 0}),
    ("PUT", "/api/2.0/serving-endpoints/chat/config", {"traffic_config": {"routes": []}}),
)

TARGETS = [*(("POST", path, body) for path, _, body in VALID), *_OTHERS]
"""Every kind of route that reads a body: its method and path, and a body for it."""


@dataclass(frozen=True, slots=True)
class Bomb:
    """A request. `size` is its body's once it is decompressed."""

    method: str
    path: str
    body: bytes = field(repr=False)
    headers: tuple[tuple[bytes, bytes], ...]
    size: int
    name: str

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        """Hypothesis would write the body, too, and warn of its megabytes instead of what has failed."""
        printer.text(repr(self))


def array(item: bytes, size: int) -> bytes:
    """An array of this item, of about `size` bytes."""
    return b"[" + b",".join([item] * max(1, size // (len(item) + 1))) + b"]"


def wide(value: bytes, size: int) -> bytes:
    """An object with this value under many names."""
    count = max(1, size // (len(value) + 11))
    return b"{" + b",".join(b'"k%06d":%b' % (number, value) for number in range(count)) + b"}"


def colliding(size: int) -> bytes:
    """An array of different integers with one hash: Python's is the value modulo 2**61 - 1."""
    return b"[" + b",".join(b"%d" % (number * (2**61 - 1) + 5) for number in range(1, size // 25)) + b"]"


def words(size: int) -> bytes:
    """An array of different short texts: equal ones may be looked at once."""
    return b"[" + b",".join(b'"ab%d"' % number for number in range(size // 11)) + b"]"


def text_of(repeated: bytes, size: int, before: bytes = b"") -> bytes:
    """A string."""
    return b'"' + before + repeated * max(1, size // len(repeated)) + b'"'


_CHAT, _EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


def chat(content: bytes, more: bytes = b"") -> bytes:
    """A chat of one message; `more`: further members."""
    return b'{"model":"chat","messages":[{"role":"user","content":%b}]%b}' % (content, more)


def _image(before: bytes, size: int, after: bytes) -> bytes:
    return b"%bdata:image/png;base64,%b%b" % (before, b"QUJD" * (size // 4), after)


def _conversation(size: int) -> bytes:
    text = text_of(b'the quick brown fox says \\"hello\\"\\n', size // 4000)
    turn = b'{"role":"user","content":%b},{"role":"assistant","content":%b}' % (text, text)
    return b'{"model":"chat","messages":%b}' % array(turn, size * 9 // 10)


LEGITIMATE: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "an image": (
        _CHAT,
        lambda size: chat(
            _image(b'[{"type":"text","text":"a?"},{"type":"image_url","image_url":{"url":"', size, b'"}}]')
        ),
    ),
    "an image, Responses": (
        "/v1/responses",
        lambda size: _image(
            b'{"model":"chat","input":[{"role":"user","content":[{"type":"input_image","image_url":"', size, b'"}]}]}'
        ),
    ),
    "an image, Anthropic": (
        "/v1/messages",
        lambda size: (
            b'{"model":"chat","max_tokens":9,"messages":[{"role":"user","content":[{"type":"image","source":'
            b'{"type":"base64","media_type":"image/png","data":%b}}]}]}' % text_of(b"QUJD", size)
        ),
    ),
    "a text": (_CHAT, lambda size: chat(text_of(b"All work and no play. ", size))),
    "a text with an emoji": (_CHAT, lambda size: chat(text_of(b"All work and no play. ", size, "😀".encode()))),
    "a text of two bytes a letter": (_CHAT, lambda size: chat(text_of("é".encode(), size))),
    "a conversation": (_CHAT, _conversation),
    "inputs": (
        _EMBEDDINGS,
        lambda size: b'{"model":"embed","input":%b}' % array(text_of(b"word ", size // 2048), size),
    ),
    "token ids": (
        _EMBEDDINGS,
        lambda size: b'{"model":"embed","input":%b}' % array(b"12345", min(size, 6 * (MOST_VALUES - 1000))),
    ),
}
"""Large bodies of honest clients: the route, and a body of about so many bytes."""


@st.composite
def _values(draw: st.DrawFn, size: int) -> tuple[str, bytes]:
    """What it is, and the value."""
    kind = draw(
        st.sampled_from(
            ["array", "array", "wide", "words", "text", "text", "deep", "digits", "colliding", "spaces", "mixed"]
        )
    )
    item = draw(st.sampled_from(_ITEMS)).encode()
    if draw(st.booleans()):  # as many values as are not refused
        one = weight(item) + 1 + (weight(b":") if kind == "wide" else 0)
        size = min(size, (len(item) + 1 + (10 if kind == "wide" else 0)) * (MOST_VALUES - 1000) // one)
    if kind == "array":
        return f"array of {item!r}", array(item, size)
    if kind == "wide":
        return f"object of {item!r}", wide(item, size)
    if kind == "text":
        name, before = draw(st.sampled_from(sorted(_TEXTS))), draw(st.sampled_from(_BEFORE))
        return f"{before!r} and {name}", text_of(_TEXTS[name], size, before)
    if kind == "deep":
        opening, closing = draw(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b'{"anyOf":[', b"]}"), (b"[", b"")]))
        depth = draw(st.sampled_from([90, size // (len(opening) + len(closing))]))
        return f"{depth} times {opening!r}", opening * depth + b"1" + closing * depth
    if kind == "words":
        return "different words", words(size)
    if kind == "colliding":
        return "integers of one hash", colliding(size)
    if kind == "digits":
        length = draw(st.sampled_from([19, 300, 4000, size]))
        return f"numbers of {length} digits", array(b"9" * length, size)
    if kind == "spaces":
        return "spaces", b" " * size + b"1"
    branches = draw(st.sampled_from([b'{"anyOf":[{"const":1}]}', b'{"pattern":"(a|b)(a|b)","type":"string"}']))
    return "schema", _DOCUMENT + array(branches, size)[1:-1] + b"]}"


@st.composite
def bombs(draw: st.DrawFn, sizes: Sequence[int] = SIZES) -> Bomb:
    """A request whose body is valid except for one huge part, or huge altogether."""
    method, path, valid = draw(st.sampled_from(TARGETS))
    size = draw(st.sampled_from(sizes))
    what, value = draw(_values(size))
    own = [place for name, part in valid.items() for place in [(name,), *((name, inner) for inner in _members(part))]]
    place = draw(st.sampled_from([(), *own, *own, *_PATHS]))
    body = _placed(valid, place, value) if place else value
    headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
    if draw(st.booleans()):
        headers.append((b"extra-parameters", draw(st.sampled_from([b"drop", b"allow"]))))
    sent = body
    if draw(st.booleans()):
        sent = gzip.compress(body, 1)
        headers.append((b"content-encoding", b"gzip"))
    return Bomb(method, path, sent, tuple(headers), len(body), f"{'.'.join(place)}: {what}")


def _members(part: object) -> dict[str, object]:
    return part if isinstance(part, dict) else {}


def _placed(valid: dict[str, object], place: tuple[str, ...], value: bytes) -> bytes:
    """The body with the value at a place; what is on the way there is made."""
    first, *rest = place
    if len(rest) == 1 and (members := _members(valid.get(first))):
        siblings = compact({name: part for name, part in members.items() if name != rest[0]})[1:-1]
        value, rest = b"{%b%b%b:%b}" % (siblings, b"," if siblings else b"", compact(rest[0]), value), []
    for name in reversed(rest):
        value = b"[" + value + b"]" if name == "0" else compact(name) + b":" + value
        value = value if name == "0" else b"{" + _companions(name) + value + b"}"
    others = {name: value for name, value in valid.items() if name != first}
    if place[0] == "structured_outputs" or "parameters" in place[1:]:
        others |= {"tool_choice": "required"} if "parameters" in place[1:] else {}
    inside = compact(others)[1:-1]
    return b"{" + inside + (b"," if inside else b"") + compact(first) + b":" + value + b"}"


def _companions(name: str) -> bytes:
    """The other fields of an object with this one, without which it would be refused at once."""
    return {
        "content": b'"role":"user",',
        "tool_calls": b'"role":"assistant",',
        "arguments": b'"type":"function_call","call_id":"c","name":"f",',
        "json_schema": b'"type":"json_schema",',
        "schema": b'"name":"s",',
        "anyOf": b'"type":"object",',
        "properties": b'"type":"object",',
        "required": b'"type":"object","properties":{"a":{},"b":{}},',
        "value": b'"type":"json",',
        "function": b'"type":"function",',
        "parameters": b'"name":"f",',
        "tools": b'"type":"namespace","name":"n","description":"a",',
        "name": b'"type":"namespace","description":"a","tools":[{"type":"function","name":"f"}],',
    }.get(name, b"")
