"""Every command and snippet of the pages that change what runs, against the real application, and the output that the
pages show. `tests/real/test_docs.py` has the other pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.conftest import Application, restore, settled
from tests.support.clients import snippets
from tests.support.clients.documents import CHANGING, Block, runnable
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", autouse=True)
def restored(application: Application) -> Iterator[None]:
    """The application is used by other tests too: pages that move traffic must not change theirs."""
    yield
    restore(application)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return snippets.checkout(tmp_path_factory.mktemp("checkout"))


@pytest.mark.parametrize("block", [block for block in runnable() if block.page in CHANGING], ids=lambda block: block.id)
def test_a_snippet_prints_what_its_page_shows(block: Block, application: Application, checkout: Path) -> None:
    wait_until(lambda: settled(application))  # an earlier snippet may have moved traffic
    printed = snippets.run(block, application.url, application.directory, checkout)
    assert block.shows(printed), printed
