"""The threat model names, for each line, tests that exist."""

import ast
import re

import pytest

from tests.support.processes.project import ROOT

TEXT = (ROOT / "SECURITY.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))
LINES = [
    line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| who ", "| threat"))
]


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_is_named_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_line_names_a_test() -> None:
    assert LINES
    assert [line for line in LINES if not re.search(r"`tests/[\w/]+\.py::\w+`", line)] == []
