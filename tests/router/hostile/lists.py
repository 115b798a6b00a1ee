"""For every list and map of every request that the OpenAPI document describes, bodies with as many items as there may
be: what one item costs adds up."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.long_json import MOST_VALUES, weight

Schema = Mapping[str, Any]
Place = tuple[str, ...]
"""The members on the way to a value, "0" for a list's first item."""

_DEPTH = 6
_HERE = "the place of the list"
_FEW = 4096
"""As many messages as a conversation may have: longer lists are often refused for their length alone."""

_VALUES: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": "a"}],
    "role": "user",
    "max_tokens": 3,
    "input_type": "search_query",
}
"""Values of members that make a request valid, where the shortest do not."""

_ITEMS: Mapping[str, str] = {
    "content": '{"type":"text","text":"a"}',
    "messages": '{"role":"user","content":"a"}',
    "tools": '{"type":"function","function":{"name":"a"}}',
    "tool_calls": '{"type":"function","id":"a","function":{"name":"a","arguments":"{}"}}',
    "stop_tokens": '{"tokens":[1]}',
    "bad_word_tokens": '{"tokens":[1]}',
}
"""Items of lists of this name that are valid, where the shortest are not."""

_OF_VECTORS = ("embed", "pooling", "class", "score", "rerank", "similarity", "predict")


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, or a map, of a request: its place, and the JSON of an item of each kind."""

    method: str
    path: str
    place: Place
    items: Sequence[str]
    is_map: bool
    body: str = field(repr=False)

    def bodies(self, size: int) -> Iterator[tuple[str, bytes]]:
        """What is in the list, and the body of at most `size` bytes: many short items, and fewer long ones."""
        for item in self.items:
            yield f"many {item[:40]}", self._body(item.encode(), size, 0)
            if '"a"' in item:
                yield f"{_FEW} long {item[:40]}", self._body(item.encode(), size, _FEW)

    def _body(self, item: bytes, size: int, count: int) -> bytes:
        """With `count` long items; 0: with as many short ones as are not refused before they are looked at."""
        room, text = size - len(self.body), b"a"
        if count:
            text *= max(1, room // count - len(item) - 20)
        else:
            count = min(room // (len(item) + 20), (MOST_VALUES - 1000) // (weight(item) + (9 if self.is_map else 1)))
        items = b",".join(self._item(item, text, number) for number in range(count))
        return self.body.encode().replace(compact(_HERE), (b"{%b}" if self.is_map else b"[%b]") % items)

    def _item(self, item: bytes, text: bytes, number: int) -> bytes:
        """An item that differs from the others: equal ones may be looked at once."""
        item = b"%d" % number if item == b"1" else item.replace(b'"a"', b'"%b%d"' % (text, number), 1)
        return b'"%d":%b' % (number, item) if self.is_map else item


def compact(value: Any) -> bytes:
    """JSON as a client sends it."""
    return json.dumps(value, separators=(",", ":")).encode()


class Requests:
    """The requests that an OpenAPI document describes."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def lists(self) -> list[Listed]:
        """Every list and map, once for each schema: the routes that share one treat it alike."""
        routes: dict[str, tuple[str, str]] = {}
        alone: set[str] = set()
        for path, operations in self._document["paths"].items():
            for method, operation in operations.items():
                content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                alternatives = self._alternatives(content.get("schema", {"type": "null"}))
                for name in (str(schema["$ref"]) for schema in alternatives if "$ref" in schema):
                    if name not in routes or (len(alternatives) == 1 and name not in alone):
                        routes[name] = method.upper(), path
                    if len(alternatives) == 1:
                        alone.add(name)
        return [listed for name, (method, path) in routes.items() for listed in self._of(name, method, path)]

    def _of(self, name: str, method: str, path: str) -> Iterator[Listed]:
        model = "embed" if any(word in f"{name}{path}".lower() for word in _OF_VECTORS) else "chat"
        for part in ("endpoint", "name", "deployment"):
            path = path.replace(f"{{{part}}}", model)
        if "azure." in name:
            path += "?api-version=2024-05-01-preview"
        lists: dict[Place, list[Schema]] = {}
        for place, schema in self._places({"$ref": name}, (), frozenset()):
            lists.setdefault(place, []).append(schema)
        for place, schemas in lists.items():
            is_map = schemas[0].get("type") != "array"
            kinds = [kind for schema in schemas for kind in self._alternatives(_items(schema))]
            items = dict.fromkeys([*(compact(self._value(kind)).decode() for kind in kinds), *_known(place)])
            body = self._value({"$ref": name}, place)
            members = self._resolved({"$ref": name}).get("properties", {})
            body |= {
                member: value
                for member, value in (("model", model), ("prompt", "a"))
                if member in members.keys() - body
            }
            yield Listed(method, path, place, list(items), is_map, compact(body).decode())

    def _places(self, schema: Schema, place: Place, above: frozenset[str]) -> Iterator[tuple[Place, Schema]]:
        """The lists and maps within a schema."""
        for kind in self._alternatives(schema):
            name, own = str(kind.get("$ref", "")), self._resolved(kind)
            if name in above or len(place) > _DEPTH:
                continue
            within = above | ({name} if name else set())
            if own.get("type") == "array" or isinstance(own.get("additionalProperties"), dict):
                yield place, own
            if own.get("type") == "array":
                yield from self._places(_items(own), (*place, "0"), within)
            for member, inner in own.get("properties", {}).items():
                yield from self._places(inner, (*place, member), within)

    def _alternatives(self, schema: Schema) -> list[Schema]:
        """The kinds of values that a schema allows, without null."""
        own = self._resolved(schema)
        parts = own.get("anyOf", own.get("oneOf")) if "properties" not in own else None
        if parts is not None:
            return [kind for part in parts for kind in self._alternatives(part)]
        return [] if own.get("type") == "null" else [schema]

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            value: Any = self._document
            for name in str(schema["$ref"]).removeprefix("#/").split("/"):
                value = value[name]
            schema = value
        return schema

    def _value(self, schema: Schema, place: Place | None = None) -> Any:
        """A short value, in which the list stands at a `place`."""
        if place == ():
            return _HERE
        kinds = [self._resolved(kind) for kind in self._alternatives(schema)]
        own = next((kind for kind in kinds if place is None or _has(kind, place[0])), {"type": "null"})
        if "const" in own or "enum" in own:
            return own.get("const", own.get("enum", [None])[0])
        if own.get("type") == "array":
            count = 1 if place else int(own.get("minItems", 0))
            return [self._value(_items(own), place[1:] if place else None)] * count
        if own.get("type") == "object":
            return self._members(own, place)
        return _SHORTEST.get(own.get("type", ""), "a")

    def _members(self, own: Schema, place: Place | None) -> dict[str, Any]:
        values = {
            name: _VALUES.get(name) or self._value(own.get("properties", {}).get(name, {}))
            for name in own.get("required", ())
        }
        if place:
            values[place[0]] = self._value(own["properties"][place[0]], place[1:])
        return values


_SHORTEST: Mapping[str, Any] = {"integer": 1, "number": 1, "boolean": False, "null": None}


def _known(place: Place) -> list[str]:
    return [_ITEMS[place[-1]]] if place[-1] in _ITEMS else []


def _items(schema: Schema) -> Schema:
    items = schema.get("items" if schema.get("type") == "array" else "additionalProperties", {})
    return items if isinstance(items, dict) else {}


def _has(own: Schema, member: str) -> bool:
    return own.get("type") == "array" if member == "0" else member in own.get("properties", {})


UNDOCUMENTED = [
    Listed("POST", path, (*place, name), [item], name == "logit_bias", body % member)
    for path, body in (
        ("/openai/v1/chat/completions", '{"model":"chat","messages":[{"role":"user","content":"a"}],%s}'),
        ("/openai/v1/completions", '{"model":"chat","prompt":"a",%s}'),
        ("/openai/v1/responses", '{"model":"chat","input":"a",%s}'),
        ("/v1/messages", '{"model":"chat","max_tokens":3,"messages":[{"role":"user","content":"a"}],%s}'),
        ("/chat/completions?api-version=2024-05-01-preview", '{"messages":[{"role":"user","content":"a"}],%s}'),
        ("/invocations", '{"model":"chat","messages":[{"role":"user","content":"a"}],%s}'),
    )
    for place, name, item in (
        ((), "stop_token_ids", "1"),
        ((), "allowed_token_ids", "1"),
        ((), "logprob_token_ids", "1"),
        ((), "logit_bias", "1"),
        ((), "bad_words", '"a"'),
        ((), "documents", '{"a":"a"}'),
        (("structured_outputs",), "choice", '"a"'),
        (("vllm_xargs",), "x", "1"),
    )
    for member in [f'"{name}":"{_HERE}"' if not place else f'"{place[0]}":{{"{name}":"{_HERE}"}}']
]
"""Lists of vLLM's fields, which some APIs pass on and none describes."""
