"""Readable, unique operationIds for the OpenAPI document, from which generators make the names of methods."""

import re
from collections.abc import Mapping, Sequence

Place = tuple[str, str]
"""Path and method."""


def operation_ids(places: Mapping[Place, Sequence[tuple[str, str]]]) -> dict[Place, str]:
    """An id for each path and method, given the dialects there and their names for the operation.

    ``openai_chat`` is the operation's plain path; at another one the id ends in the differing part of that path, as
    ``openai_chat_openai_v1``. Where several methods have one name, the method is part of it.
    """
    groups: dict[tuple[str, str], list[Place]] = {}
    for place, dialects in places.items():
        groups.setdefault(_owner(place, dialects), []).append(place)
    ids: dict[Place, str] = {}
    for (dialect, name), group in groups.items():
        several = len({method for _, method in group}) > 1
        for method in dict.fromkeys(method for _, method in group):
            its = [place for place in group if place[1] == method]
            stem = f"{dialect}_{method.lower()}_{name}" if several else f"{dialect}_{name}"
            rests = _different([_words(path) for path, _ in its])
            plain = rests.index([]) if [] in rests else 0
            for index, (place, rest) in enumerate(zip(its, rests, strict=True)):
                ids[place] = stem if index == plain else "_".join([stem, *rest])
    return ids


def _owner(place: Place, dialects: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Paths below /v1 are OpenAI's first; others belong to the first dialect that has them."""
    of_openai = [it for it in dialects if it[0] == "openai" and place[0].startswith("/v1/")]
    return (of_openai or dialects)[0]


def _words(path: str) -> list[str]:
    return [re.sub(r"\W+", "_", re.sub(r":\w+", "", part)).strip("_") for part in path.split("/") if part]


def _different(paths: Sequence[list[str]]) -> list[list[str]]:
    """The paths without the end that all of them have."""
    common = 0
    while all(len(path) > common for path in paths) and len({path[-common - 1] for path in paths}) == 1:
        common += 1
    return [path[: len(path) - common] for path in paths]
