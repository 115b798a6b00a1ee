"""Draws the units that are mirrored. Pure."""

import hashlib


def is_drawn(unit: int, endpoint: str, percent: float) -> bool:
    """Whether the unit is among `percent` of the endpoint's. With a larger share, those of a smaller one stay drawn.

    The hash is another one than that of arms, so that both arms of a split are mirrored alike.
    """
    digest = hashlib.blake2b(endpoint.encode(), digest_size=8, key=unit.to_bytes(8), person=b"mirror").digest()
    return int.from_bytes(digest) < percent / 100 * 2**64
