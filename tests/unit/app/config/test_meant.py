"""A number with a unit, a separator or a percent sign is the number that a person means by it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.meant import FORMER_ARGUMENTS, number_meant, number_remedy
from app.config.reference import packages

SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "minutes": 60, "h": 3600, "hours": 3600, "d": 86400}
BYTES = {"B": 1, "k": 1000, "kB": 1000, "KiB": 1024, "Mi": 1024**2, "MB": 1000**2, "GiB": 1024**3, "gb": 1000**3}
COUNTS = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}


@given(st.integers(0, 999), st.sampled_from(["", " "]), st.data())
def test_a_number_with_a_unit_is_in_the_unit_of_its_key(number: int, space: str, data: st.DataObject) -> None:
    for key, units in (("total_s", SECONDS), ("max_body_bytes", BYTES), ("max_model_len", COUNTS)):
        unit = data.draw(st.sampled_from(sorted(units)))
        assert number_meant(f"{number}{space}{unit}", key) == pytest.approx(number * units[unit])
    assert number_meant(f"{number}{space}weeks", "retention_days") == 7 * number


@given(st.integers(0, 10**12))
def test_separators_of_thousands_are_no_part_of_a_number(number: int) -> None:
    assert number_meant(f"{number:,}", "max_model_len") == number == number_meant(f"{number:_}", "max_model_len")


@given(st.floats(0, 100, exclude_min=True, exclude_max=True))
def test_a_part_of_the_traffic_is_mended_to_whole_percentages(share: float) -> None:
    remedy = number_remedy(share, "blue", is_whole=True, most=100)
    written = [int(number) for number in re.findall(r"(?:write|or) (\d+)(?= for|,| or)", remedy)]
    assert len(written) == 2
    assert all(0 <= percent <= 100 for percent in written)
    assert any(abs(percent - share) <= 1 for percent in written)


@given(st.text(max_size=12))
def test_any_other_text_has_a_remedy_or_none(text: str) -> None:
    for key in ("total_s", "max_body_bytes", "alpha", ""):
        remedy = number_remedy(text, key, is_whole=True, most=1)
        assert remedy == "" or remedy.startswith("; write ")


@pytest.mark.parametrize(
    ("text", "key"),
    [("5 apples", "total_s"), ("2.5", "max_num_seqs"), ("5s", "max_num_seqs"), ("x", "total_s"), ("", "x")],
)
def test_what_is_no_number_of_the_key_has_no_remedy(text: str, key: str) -> None:
    assert number_remedy(text, key, is_whole=True) == ""


def test_an_argument_of_an_earlier_vllm_is_none_of_this_one() -> None:
    assert not FORMER_ARGUMENTS.keys() & packages()["$defs"]["EngineArguments"]["properties"].keys()
