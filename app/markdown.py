"""The parts of Markdown pages that a command writes: tables made of the code."""


def with_part(page: str, begin: str, end: str, part: str) -> str:
    """`page` with `part` between its lines `begin` and `end`. Raises ValueError if they are missing."""
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no line {begin}, or there is no line {end} after it")
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"
