"""The README's table of fields: it is the generated one, and it is one table."""

from pathlib import Path

import pytest

from app.dialects.common.support import VLLMS
from app.dialects.field_table import BEGIN, END, DialectFields, main, rows, table, updated
from tests.support.project import ROOT

README = ROOT / "README.md"


def test_the_readmes_table_is_the_generated_one() -> None:
    text = README.read_text()
    assert updated(text) == text, "run `make fields`"


def test_every_line_is_a_row_of_four_cells() -> None:
    assert {line.count("|") for line in table().splitlines()} == {5}


def test_fields_of_which_the_same_holds_share_a_row() -> None:
    chat = {"b": VLLMS, "a": VLLMS, "c": "done here", "model": "an endpoint"}
    dialect = DialectFields("D", {"chat": chat, "text": {"b": VLLMS, "model": "an endpoint"}}, "refused")
    assert [str(row) for row in rows(dialect)] == [
        "| D | chat | `a` | vLLM's |",
        "| D | all | `b` | vLLM's |",
        "| D | chat | `c` | done here |",
        "| D | all | `model` | an endpoint |",
        "| D | all | any other | refused |",
    ]


def test_only_what_is_between_the_marks_changes() -> None:
    assert updated(f"before\n{BEGIN}\nold\n{END}\nafter") == f"before\n{BEGIN}\n\n{table()}\n\n{END}\nafter"


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}"])
def test_a_text_without_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="there is no line"):
        updated(text)


def test_the_command_rewrites_the_file(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(f"{BEGIN}{END}")
    assert main([str(file)]) == 0
    assert table() in file.read_text()
