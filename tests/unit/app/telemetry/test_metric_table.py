"""The table of metrics in docs/operate/metrics.md is the generated one."""

from pathlib import Path

import pytest

from app.telemetry.metric_table import BEGIN, END, main, table, updated
from tests.support.processes.project import ROOT


def test_the_page_has_the_generated_table() -> None:
    text = (ROOT / "docs" / "operate" / "metrics.md").read_text()
    assert updated(text) == text, "run `make fields`"


def test_a_row_has_the_name_that_is_scraped_its_labels_and_its_help() -> None:
    rows = table().splitlines()
    assert "| `switchyard_pins` | gauge | `endpoint` | " in "".join(rows)
    assert any(row.startswith("| `switchyard_config_reloads_total` | counter | `outcome` | Conf") for row in rows)
    assert any(row.startswith("| `switchyard_asyncio_tasks` | gauge |  | Tasks") for row in rows)
    assert not any("process_" in row for row in rows)


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}"])
def test_a_page_without_marks_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="there is no line"):
        updated(text)


def test_the_command_rewrites_the_page(tmp_path: Path) -> None:
    page = tmp_path / "metrics.md"
    page.write_text(f"before\n{BEGIN}{END}\nafter")
    assert main([str(page)]) == 0
    assert page.read_text() == f"before\n{BEGIN}\n\n{table()}\n\n{END}\nafter"
