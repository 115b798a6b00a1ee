"""Compressed request bodies."""

import gzip
import zlib
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import BadRequest, TooLarge, UnsupportedMediaType
from app.exchange.request import body_decoder

LIMIT = 10_000


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


CODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
}


def decoded(coding: str | None, body: bytes, step: int = 7, limit: int = LIMIT) -> bytes:
    decoder = body_decoder(coding, limit)
    content = b"".join(piece for at in range(0, len(body), step) for piece in decoder.feed(body[at : at + step]))
    decoder.close()
    return content


@pytest.mark.parametrize("coding", CODERS)
@given(data=st.binary(max_size=2000), step=st.integers(1, 50))
def test_a_body_is_decoded_in_any_parts(coding: str, data: bytes, step: int) -> None:
    assert decoded(coding.upper(), CODERS[coding](data), step) == data


def test_deflate_without_the_zlib_header_is_read_too() -> None:
    assert decoded("deflate", raw_deflate(b"{}" * 100)) == b"{}" * 100


def test_gzip_members_follow_one_another() -> None:
    assert decoded("gzip", gzip.compress(b"{") + gzip.compress(b"}")) == b"{}"


@given(
    text=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255), high=st.integers(0, 15)
)
def test_raw_deflate_whose_first_byte_looks_like_a_header_is_read_too(text: str, high: int) -> None:
    """A stored block (RFC 1951, 3.2.4): three bits, padding of any value, the length and its complement, the data."""
    length = len(text)
    block = bytes([high << 4 | 8, length, 0, 255 - length, 255]) + text.encode()
    assert decoded("deflate", block + raw_deflate(b"")) == text.encode()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_the_limit_holds_after_decoding(coding: str) -> None:
    assert len(decoded(coding, CODERS[coding](b"x" * LIMIT))) == LIMIT
    with pytest.raises(TooLarge, match="10000 bytes once it is decompressed"):
        decoded(coding, CODERS[coding](b"x" * 50_000_000), step=1000)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "body",
    [b"\x08 no such data", b"{}", gzip.compress(b"x" * 500, mtime=0)[:-4], b"\x78\x9c"],
    ids=["noise", "plain", "cut", "head"],
)
def test_broken_data_is_rejected_naming_the_header(coding: str, body: bytes) -> None:
    with pytest.raises(BadRequest) as raised:
        decoded(coding, body)
    assert raised.value.param == "content-encoding"


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress"])
def test_any_other_coding_is_unsupported(coding: str) -> None:
    with pytest.raises(UnsupportedMediaType, match=coding):
        body_decoder(coding, LIMIT)
