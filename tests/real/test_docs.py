"""Every command and snippet of the pages that only use the application, and the output that the pages show.
`alone/test_docs.py` has those that change it."""

from pathlib import Path

import pytest

from tests.real.conftest import Application
from tests.support.clients import snippets
from tests.support.clients.documents import CHANGING, Block, blocks, runnable
from tests.support.clients.snippets import URL
from tests.support.processes.project import ROOT

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return snippets.checkout(tmp_path_factory.mktemp("checkout"))


@pytest.mark.parametrize("block", [it for it in runnable() if it.page not in CHANGING], ids=lambda block: block.id)
def test_a_snippet_prints_what_its_page_shows(block: Block, application: Application, checkout: Path) -> None:
    printed = snippets.run(block, application.url, application.directory, checkout)
    assert block.shows(printed), printed


def test_the_application_starts_as_the_readme_shows(application: Application) -> None:
    (start,) = (block for block in blocks(ROOT / "README.md") if block.language == "console")
    terminal = (application.directory / "terminal").read_text().replace(application.url, URL)
    assert start.code.splitlines()[-1] in terminal
