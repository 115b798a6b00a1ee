"""Reads the words of a report, and finds those that its own intervals deny."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_NUMBER = r"(\d[\d,]*(?:\.\d+)?)( %| ms| s| tokens|/s|)"
_LESS = ("earlier", "shorter", "lower")
_MORE = ("later", "longer", "higher")
_GOOD = {
    "First token": -1,
    "Time between tokens": -1,
    "Longest gap between tokens": -1,
    "Time to the whole answer": -1,
    "Tokens per second": 1,
    "Cost": -1,
    "Share of good answers": 1,
    **{f"Rate of {kind}": -1 for kind in ("slow answers", "empty answers", "truncated answers", "stalled streams")},
    "Error rate": -1,
}
"""The subjects whose good direction the words imply: 1 for more."""
_SENTENCE = re.compile(
    rf"(?:(\S+): )?(Of the \w+ that [a-z ]+, )?([A-Za-z][^:;,.(]*?)(?: \(\w+\))? {_NUMBER} (\w+) \(([^()]*)\)[.;]"
)
_CHANGE = re.compile(r"([+-])" + _NUMBER)
_BETTER = re.compile(r"(?:^|; |: )(\S+) is (better|worse) than \S+?((?: in [^;]+?)?)(?=;|\.$)")
_ROW = re.compile(
    r"^([a-z]\w*)\S* .* {2,}([+-]\S+)(?: \S+)? {2,}([+-]\S+)(?: \S+)? to ([+-]\S+)(?: \S+)? {2,}"
    r"(better|worse|different|equivalent|undecided)(.*)$",
    re.MULTILINE,
)
_GOOD_METRICS = {
    **dict.fromkeys(("ttft", "itl", "duration", "cost", "error", "slow", "empty", "truncated", "stalled"), -1),
    **dict.fromkeys(("tokens_per_second", "goodput"), 1),
}
_EQUAL = re.compile(r"(?:; |: )(\S+) (differs from|is equivalent to) ")
_OPEN = re.compile(r"no verdict on (\S+) against")


class Statement(NamedTuple):
    """One sentence about an effect: signed numbers, more of the metric above 0; an open end is infinite."""

    treatment: str
    """Empty where the report has one treatment."""
    subject: str
    estimate: float
    lower: float
    upper: float
    measured: bool = False
    """It is about what was measured alone, and says why."""

    @property
    def good(self) -> int:
        """1 if more is better, -1 if less is; 0 if the words do not tell."""
        return _GOOD.get(self.subject, 0)


def statements(text: str) -> list[Statement]:
    """The sentences on effects in a report's words."""
    return [_statement(match) for match in _SENTENCE.finditer(_unwrapped(text))]


def contradictions(text: str) -> list[str]:
    """What a report says that the intervals beside it deny. `text`: the whole report in words, or its beginning."""
    problems = [*_denied_cells(text), *_denied_rows(text)]
    headline = _unwrapped(text.split("\n\n")[0].split(".\n")[0] + ".")
    said = statements(text)
    for statement in said:
        if not statement.lower <= statement.estimate <= statement.upper:
            problems.append(f"the estimate is outside its interval: {statement}")
    words = {name: "both" if ", worse in " in rest else word for name, word, rest in _BETTER.findall(headline)}
    words |= {name: word.split()[0] for name, word in _EQUAL.findall(headline)}
    words |= dict.fromkeys(_OPEN.findall(headline), "open")
    for name, word in words.items():
        mine = [line for line in said if line.treatment in (name, "")]
        if mine and not _holds(word, mine):
            problems.append(f"{name} is said to be {word}, beside {mine}")
    return problems


def _holds(word: str, said: list[Statement]) -> bool:
    """Whether any interval allows the word: for all of the metrics together where it is about all of them."""
    doubtful, said = [line for line in said if line.measured], [line for line in said if not line.measured]
    known = [line for line in said if line.good]
    is_good = any(_side(line) * line.good > 0 for line in known)
    is_bad = any(_side(line) * line.good < 0 for line in known)
    apart = any(_side(line) for line in said)
    unclear = len(known) < len(said)
    match word:
        case "better":
            return (is_good or (unclear and apart)) and not is_bad
        case "worse":
            return is_bad or (unclear and apart)
        case "both":
            return (is_good and is_bad) or (unclear and apart)
        case "differs":
            return apart
        case "open":
            return bool(doubtful) or (not is_good and not is_bad)
        case _:
            return not any(abs(end) == float("inf") for line in (*said, *doubtful) for end in (line.lower, line.upper))


def _side(statement: Statement) -> int:
    return 1 if statement.lower > 0 else -1 if statement.upper < 0 else 0


def _statement(match: re.Match[str]) -> Statement:
    treatment, measured, subject, number, _, direction, range_ = match.groups()
    lower, upper = _bounds(range_)
    subject = subject[0].upper() + subject[1:]
    return Statement(treatment or "", subject, _signed(number, direction), lower, upper, measured is not None)


def _bounds(text: str) -> tuple[float, float]:
    if text == "no bounds yet":
        return -float("inf"), float("inf")
    if text in ("no lower bound yet", "no upper bound yet"):
        return -float("inf"), float("inf")
    if least := re.fullmatch(rf"at least {_NUMBER} (\w+)", text):
        return _signed(least[1], least[3]), float("inf")
    if same := re.fullmatch(rf"between {_NUMBER} and {_NUMBER} (\w+)", text):
        ends = sorted(_signed(same[number], same[5]) for number in (1, 3))
        return ends[0], ends[1]
    two = re.fullmatch(rf"between {_NUMBER} (\w+) and {_NUMBER} (\w+)", text)
    assert two is not None, text
    return _signed(two[1], two[3]), _signed(two[4], two[6])


def _signed(number: str, direction: str) -> float:
    assert direction in (*_LESS, *_MORE), direction
    return float(number.replace(",", "")) * (1 if direction in _MORE else -1)


def _denied_cells(text: str) -> Iterator[str]:
    """Rows of metrics whose word or estimate their interval denies; those that wrap are not read."""
    for match in _ROW.finditer(text):
        metric, word, remark = match[1], match[5], match[6]
        change, lower, upper = (float(match[place].replace(",", "")) for place in (2, 3, 4))
        side = 1 if lower > 0 else -1 if upper < 0 else 0
        good = side * _GOOD_METRICS.get(metric, 0)
        holds = {
            "better": good >= 0,
            "worse": good <= 0,
            "different": True,
            "undecided": side == 0 or re.match(r",(?: see|$)", remark) is not None,
        }.get(word, True)
        is_apart = word not in ("better", "worse", "different") or side != 0 or 0.0 in (lower, upper)
        if not (holds and is_apart and lower <= change <= upper):
            yield match[0]


def _denied_rows(text: str) -> Iterator[str]:
    """Sentences on subgroups that deny themselves."""
    for line in _unwrapped(text).split(". "):
        if "against all others by" not in line:
            continue
        numbers = [float(sign + number.replace(",", "")) for sign, number, _ in _CHANGE.findall(line)]
        change, low, high, against, least, most = numbers[-6:]
        if not (low <= change <= high and least <= against <= most and (least > 0 or most < 0)):
            yield line


def _unwrapped(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text).strip()
