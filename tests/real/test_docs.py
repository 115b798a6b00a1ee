"""Every command and snippet of the pages that only use the application, and the output that the pages show.
`alone/test_docs.py` has those that change it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from deployments.local import processes
from tests.real.conftest import Application
from tests.support.clients import snippets
from tests.support.clients.documents import CHANGING, Block, blocks, runnable
from tests.support.clients.snippets import URL
from tests.support.processes.project import ROOT

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return snippets.checkout(tmp_path_factory.mktemp("checkout"))


@pytest.mark.parametrize(
    "block", [block for block in runnable() if block.page not in CHANGING], ids=lambda block: block.id
)
def test_a_snippet_prints_what_its_page_shows(block: Block, application: Application, checkout: Path) -> None:
    printed = snippets.run(block, application.url, application.directory, checkout)
    assert block.shows(printed), printed


def test_the_last_lines_of_a_start_name_a_command_that_can_be_pasted(application: Application) -> None:
    terminal = (application.directory / "terminal").read_text()
    (line,) = re.findall(r"^To look at it: (.*)$", terminal, re.MULTILINE)
    variables = {**os.environ, processes.RUN_DIRECTORY: str(application.directory)}
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert application.url in done.stdout


def test_the_application_starts_as_the_readme_shows(application: Application) -> None:
    (start,) = (block for block in blocks(ROOT / "README.md") if block.language == "console")
    terminal = (application.directory / "terminal").read_text().replace(application.url, URL)
    assert start.code.splitlines()[-1] in terminal
