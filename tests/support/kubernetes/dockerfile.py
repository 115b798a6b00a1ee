"""Parses a Dockerfile into stages and their steps, as far as ours uses its syntax."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stage:
    """`base`: an image or another stage. `steps`: instruction and argument, lines joined."""

    name: str
    base: str
    steps: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        """The arguments of every instruction of that name."""
        return [argument for name, argument in self.steps if name == instruction]


def stages(path: Path) -> dict[str, Stage]:
    """Every stage, in order."""
    by_name: dict[str, Stage] = {}
    for instruction, argument in _instructions(path.read_text()):
        if instruction == "FROM":
            base, _, name = argument.partition(" AS ")
            by_name[name] = Stage(name, base, ())
        elif by_name:  # before the first stage: the arguments of FROM
            last = next(reversed(by_name.values()))
            by_name[last.name] = Stage(last.name, last.base, (*last.steps, (instruction, argument)))
    return by_name


def chain(of: dict[str, Stage], name: str) -> list[Stage]:
    """A stage and its base stages, the first base first."""
    stage = of[name]
    return [*(chain(of, stage.base) if stage.base in of else []), stage]


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    kept = "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    for line in re.sub(r"\s*\\\n\s*", " ", kept).splitlines():
        instruction, _, argument = line.partition(" ")
        yield instruction, argument.strip()
