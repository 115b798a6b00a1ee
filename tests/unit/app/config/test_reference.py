"""The configuration reference in docs/reference/configuration.md."""

from pathlib import Path

import pytest

from app.config.reference import BEGIN, END, main, reference, schema, updated


def test_an_object_has_a_table_with_value_default_and_meaning_of_its_keys() -> None:
    rows = reference(schema()).splitlines()
    assert "### `endpoints.<name>.admission`" in rows
    assert (
        "| `max_queued` | whole number ≥ 0 | `0` | Requests that wait for a slot; more are rejected at once. |" in rows
    )
    assert any(
        row.startswith("| `by` | `header`, `user`, `api_key`, `conversation` | required | Where") for row in rows
    )


def test_objects_in_a_list_have_a_table_and_bounds_on_both_sides() -> None:
    rows = reference(schema()).splitlines()
    assert "### `experiments.<name>.guardrails[]`" in rows
    assert "| `primary` | list of objects | required | The metrics that decide. |" in rows
    assert "| `alpha` | number > 0, < 1 | `0.05` | The chance of any false primary verdict. |" in rows


def test_an_object_in_several_places_has_one_table() -> None:
    headings = [line for line in reference(schema()).splitlines() if "access.limits.callers" in line]
    assert headings == ["### `access.limits.default`, `access.limits.endpoints.<name>`, `access.limits.callers.<name>`"]


def test_every_key_has_a_meaning() -> None:
    assert [row for row in reference(schema()).splitlines() if row.endswith("| |")] == []


def test_angle_brackets_outside_code_are_escaped() -> None:
    key = {"type": "string", "description": "at <app>, `<app>`"}
    config = {"properties": {"app": key}, "description": "Top"}
    assert "at &lt;app>, `<app>` |" in reference({"$defs": {"Config": config}})


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}{BEGIN}"])
def test_a_page_without_marks_is_rejected(page: str) -> None:
    with pytest.raises(ValueError, match="the page has no line"):
        updated(page)


def test_the_command_rewrites_the_page(tmp_path: Path) -> None:
    page = tmp_path / "configuration.md"
    page.write_text(f"before\n{BEGIN}{END}\nafter")
    assert main([str(page)]) == 0
    assert page.read_text() == f"before\n{BEGIN}\n\n{reference(schema())}\n\n{END}\nafter"
