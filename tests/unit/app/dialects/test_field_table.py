"""The tables of fields in docs/use-with are the generated ones."""

from pathlib import Path

import pytest

from app.dialects.base import Dialect
from app.dialects.bodies import IDLE
from app.dialects.field_table import BEGIN, END, main, rows, table, updated
from app.dialects.registry import DIALECTS
from app.dialects.schemas import VLLM
from tests.support.processes.project import ROOT

PAGES = ROOT / "docs" / "use-with"

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def test_every_page_has_the_generated_table() -> None:
    for dialect in DIALECTS:
        text = (PAGES / f"{dialect.name}.md").read_text()
        assert updated(text, dialect) == text, f"{dialect.name}.md: run `make fields`"


@every_dialect
def test_every_line_is_a_row_of_three_cells(dialect: Dialect) -> None:
    assert {line.count("|") for line in table(dialect).splitlines()} == {4}


def test_fields_with_the_same_support_share_a_row() -> None:
    chat = {"b": VLLM, "a": VLLM, "c": "done here", "model": "an endpoint"}
    support = {"chat": chat, "text": {"b": VLLM, "model": "an endpoint"}}
    *own, unknown, idle, misspelt, others = map(str, rows(support, "rejected", "unread"))
    assert own == [
        "| chat | `a` | vLLM's |",
        "| all | `b` | vLLM's |",
        "| chat | `c` | done here |",
        "| all | `model` | an endpoint |",
    ]
    assert unknown == "| all | any other | rejected |"
    assert all(f"`{field}`" in idle for fields in IDLE.values() for field in fields)
    assert misspelt == "| all | a misspelt field of a nested object | rejected, with the name that was meant |"
    assert others == "| all | any other field of a nested object | unread |"


@every_dialect
def test_only_the_text_between_the_marks_changes(dialect: Dialect) -> None:
    expected = f"before\n{BEGIN}\n\n{table(dialect)}\n\n{END}\nafter"
    assert updated(f"before\n{BEGIN}\nold\n{END}\nafter", dialect) == expected


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}"])
def test_a_text_without_marks_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="there is no line"):
        updated(text, DIALECTS[0])


def test_the_command_rewrites_every_dialects_page(tmp_path: Path) -> None:
    for dialect in DIALECTS:
        (tmp_path / f"{dialect.name}.md").write_text(f"{BEGIN}{END}")
    assert main([str(tmp_path)]) == 0
    for dialect in DIALECTS:
        assert table(dialect) in (tmp_path / f"{dialect.name}.md").read_text()
