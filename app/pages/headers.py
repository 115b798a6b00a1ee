"""The headers of every page and of its files."""

from collections.abc import Mapping

PAGE_HEADERS: Mapping[str, str] = {
    # Scripts, styles and requests of this server only. `data:` is for Swagger UI's icons, which are data URLs in its
    # style sheet, and for pictures that a visitor of the console chose to send.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
