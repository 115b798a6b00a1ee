import gc
from collections.abc import Iterator

import pytest

from deployments.engine.collector import IMPORTING, few_collections


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_collections_are_rare_inside_and_normal_afterwards() -> None:
    gc.set_threshold(701, 11, 12)
    with few_collections():
        assert gc.get_threshold() == IMPORTING
    assert gc.get_threshold() == (701, 11, 12)


def test_objects_made_inside_are_not_collected_again() -> None:
    with few_collections():
        made: list[object] = [[]]
    assert not any(tracked is made for tracked in gc.get_objects())


def test_an_import_that_fails_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ImportError), few_collections():
        raise ImportError
    assert gc.get_threshold() == before
