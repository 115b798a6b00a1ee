"""The headers of every page and of its files."""

from collections.abc import Mapping


def page_headers(*connect: str) -> Mapping[str, str]:
    """Headers that allow scripts, styles and requests of this server only, and requests to the sources `connect`.

    `data:` is for Swagger UI's icons, which are data URLs in its style sheet, and for images that a visitor of the
    console has chosen to send.
    """
    sources = " ".join(("'self'", *connect))
    return {
        "content-security-policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            f"connect-src {sources}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


PAGE_HEADERS = page_headers()
