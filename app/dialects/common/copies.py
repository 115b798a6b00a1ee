"""The bound on texts of a request that are written several times: once for each choice.

The bodies and the numbers in them are bounded; without a bound on the product, one request would take gigabytes.
"""

from typing import Any

from app.dialects.json_body import dump
from app.errors import BadRequest

MAX_COPIED_BYTES = 8 * 1024 * 1024
"""Of all copies of one value together, as JSON."""


def check_copies(field: str, value: Any, copies: int) -> None:
    """Raises BadRequest about `field` if `copies` of `value` (JSON), besides the one that was sent, are too long."""
    if copies > 0 and (size := len(dump(value))) * copies > MAX_COPIED_BYTES:
        raise BadRequest(
            f"{field}: {copies} more copies of {size} bytes would be over {MAX_COPIED_BYTES} bytes; "
            "send several requests",
            param=field,
        )
