"""Misspelt names: a letter more, less, replaced or moved, a capital, another separator."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

_SHORTEST = 4
"""Letters of a name that has misspellings; more of shorter ones are other words."""

_LONGEST = 64


class Names:
    """Names that are looked up often. `shortest_replaced`: the letters of a name in which another letter is a slip."""

    def __init__(self, names: Iterable[str], shortest_replaced: int = _SHORTEST) -> None:
        self._names, self._shortest_replaced = names, shortest_replaced

    def meant(self, name: str) -> Sequence[str]:
        """The names of which `name` is a misspelling, in alphabetical order."""
        if len(name) > _LONGEST:
            return []
        letters = _letters(name)
        near = {meant for rest in _rests(letters) for meant in self._by_rest.get(rest, ())}
        return sorted(meant for meant in near if self._is_slip(letters, _letters(meant)))

    def _is_slip(self, letters: str, meant: str) -> bool:
        """Whether letters that have a rest in common with those of a name are a misspelling of it."""
        replaced = len(letters) == len(meant) and sorted(letters) != sorted(meant)
        return not replaced or len(meant) >= self._shortest_replaced

    @cached_property
    def _by_rest(self) -> Mapping[str, Sequence[str]]:
        """What remains of a name, with and without each of its letters, to the names."""
        names: dict[str, list[str]] = {}
        for name in self._names:
            if len(name) >= _SHORTEST:
                for rest in _rests(_letters(name)):
                    names.setdefault(rest, []).append(name)
        return names


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The first of the known names of which `name` is a misspelling. It makes no table of them, as `Names` does: for
    names of which one is looked up."""
    if len(name) > _LONGEST:
        return None
    letters = _letters(name)
    rests = set(_rests(letters))
    long_enough = (other for other in known if len(other) >= _SHORTEST)
    return next((other for other in long_enough if _is_near(letters, rests, _letters(other))), None)


def _is_near(letters: str, rests: Collection[str], others: str) -> bool:
    return abs(len(letters) - len(others)) <= 1 and any(rest in rests for rest in _rests(others))


def question(name: str, known: Iterable[str]) -> str:
    """What was meant, in brackets, to append to what says that there is no such name; empty if no name is near."""
    return f" (did you mean '{meant}'?)" if (meant := nearest(name, known)) is not None else ""


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _rests(letters: str) -> list[str]:
    return [letters, *(letters[:place] + letters[place + 1 :] for place in range(len(letters)))]
