"""Whether the vectors of an engine's answer are some: finite numbers, or base64 where the request asks for it. Pure."""

import base64
import math
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec
from pydantic_core import from_json


class _Embedding(msgspec.Struct):
    vector: msgspec.Raw = msgspec.field(name="embedding")


class _Pooled(msgspec.Struct):
    vector: msgspec.Raw = msgspec.field(name="data")


Item = TypeVar("Item", _Embedding, _Pooled)


class _Items(msgspec.Struct, Generic[Item]):
    data: list[Item]


_NOT_EMPTY = msgspec.Meta(min_length=1)
_Numbers = Annotated[list[float], _NOT_EMPTY]
_NUMBERS = msgspec.json.Decoder(_Numbers)
_LISTS = msgspec.json.Decoder(Annotated[list[_Numbers], _NOT_EMPTY])
VECTORS: Mapping[str, tuple[msgspec.json.Decoder[_Items[Any]], Sequence[msgspec.json.Decoder[Any]]]] = {
    "/v1/embeddings": (msgspec.json.Decoder(_Items[_Embedding]), (_NUMBERS,)),
    "/pooling": (msgspec.json.Decoder(_Items[_Pooled]), (_NUMBERS, _LISTS)),
}
"""Path to its vectors, and to what one of them may be: some have a list of numbers for each token."""


LONG = 256 * 1024
"""Bytes. A call that reads a longer answer at once would hold the interpreter's lock for too long."""

_VECTOR_BEGINS = b'"embedding":['


def outlined(answer: bytes, mark: str) -> bytes:
    """Embeddings with a text in place of each vector: the mark, and the vector's length.

    Inside a text there is no such beginning, because its quotes would be escaped. Raises ValueError for a vector that
    is none.
    """
    return _replaced(answer, lambda vector: b'"%b%d"' % (mark.encode(), len(_NUMBERS.decode(vector))))


def numbers(vector: memoryview) -> list[float]:
    """A vector of numbers."""
    read: list[float] = from_json(bytes(vector))
    return read


def embeddings(answer: bytes, read: Callable[[memoryview], Any] = numbers) -> dict[str, Any]:
    """The value of a checked answer of `/v1/embeddings`, each vector read by itself: between two, other threads run.

    `read`: `msgspec.Raw` leaves vectors as they are written, and takes none of the memory of their numbers.
    """
    vectors: list[Any] = []

    def number(vector: memoryview) -> bytes:
        vectors.append(read(vector))
        return b"%d" % (len(vectors) - 1)

    whole: dict[str, Any] = from_json(_replaced(answer, number))
    for item in whole["data"]:
        if isinstance(item["embedding"], int):
            item["embedding"] = vectors[item["embedding"]]
    return whole


def _replaced(answer: bytes, by: Callable[[memoryview], bytes]) -> bytes:
    """The answer with something else in place of each vector. Raises ValueError for one without an end."""
    parts: list[bytes] = []
    at, view = 0, memoryview(answer)
    while (found := answer.find(_VECTOR_BEGINS, at)) >= 0:
        start = found + len(_VECTOR_BEGINS) - 1
        end = answer.index(b"]", start) + 1
        parts += [answer[at:start], by(view[start:end])]
        at = end
    return b"".join([*parts, answer[at:]])


def check_vectors(path: str, answer: bytes, request: Mapping[str, Any] | None, mark: str) -> None:
    """Raises ValueError unless each vector has finite numbers, and all embeddings have the same length. `mark` is that
    of an outline."""
    items, kinds = VECTORS[path]
    # One at a time: the numbers of all of them would take gigabytes.
    form = {"encoding_format": "any"} if request is None else request
    lengths = {_length(item.vector, kinds, form, mark) for item in items.decode(answer).data}
    if path == "/v1/embeddings" and len(lengths) != 1:
        raise ValueError("vectors of different lengths")


def _length(
    json: msgspec.Raw, kinds: Sequence[msgspec.json.Decoder[Any]], request: Mapping[str, Any], mark: str
) -> int:
    """The length of a vector, which is in base64 only if the request asks for it: some servers know no other.

    Raises ValueError if it is none, or empty.
    """
    if bytes(memoryview(json)[:1]) == b"[":
        return len(_first_of(kinds, json))
    text = msgspec.json.decode(json, type=str)
    if text.startswith(mark):
        return int(text.removeprefix(mark))
    if request.get("encoding_format", "float") == "float":
        raise ValueError("a text instead of numbers")
    data = base64.b64decode(text, validate=True)
    if request.get("embed_dtype", "float32") == "float32":
        numbers = array("f", data)
        if request.get("endianness", "native") not in ("native", sys.byteorder):
            numbers.byteswap()
        if not math.isfinite(sum(numbers)):
            raise ValueError("not all numbers are finite")
    if not data:
        raise ValueError("no numbers")
    return len(data)


def _first_of(kinds: Sequence[msgspec.json.Decoder[Any]], json: msgspec.Raw) -> Sequence[Any]:
    """The value as the first kind that it is one of. Raises ValueError."""
    *others, last = kinds
    for kind in others:
        with suppress(msgspec.ValidationError):
            return cast(Sequence[Any], kind.decode(json))
    return cast(Sequence[Any], last.decode(json))
