"""The pages agree with the code and with one another, and are readable."""

import ast
import configparser
import json
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.config.loading import load_document
from app.config.reference import updated
from app.config.schema import parse
from app.dialects.common.requests import model_card
from app.errors import CLIENT_GONE, CLIENT_TIMEOUT, NO_ENGINE, ROUTER_LOST, SwitchyardError
from app.experiments.contract.series import METRICS
from app.internal_api import ENGINE_KEY_VARIABLE, INTERNAL_KEY_VARIABLE, UNIT_SECRET_VARIABLE
from app.server.application import Router
from app.server.fleet import CONTROL_PLANE_UP, CONTROLLER_UP, REPLICAS
from app.server.metrics import GAUGES
from app.telemetry.metrics import Telemetry
from app.upstream.target import RuntimeEnvironment
from app.version import own_version
from deployments.cli.experiments_client import Check
from deployments.cli.main import commands, main
from deployments.cli.options import ExitCode
from deployments.engine.adapters import adapter_kwargs
from deployments.kubernetes import chart, environment
from deployments.kubernetes.demands import demands
from tests.support.clients.documents import (
    PAGES,
    RUNNABLE,
    WITH_CLIENTS,
    Block,
    anchors,
    blocks,
    links,
    paragraphs,
    runnable,
    words,
)
from tests.support.processes.project import ROOT

DOCS = ROOT / "docs"
LINKED = sorted({*PAGES, *ROOT.glob("*.md")})
LANGUAGES = {*RUNNABLE, *WITH_CLIENTS, "console", "text", "yaml", "yaml clients"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def first_cells(text: str) -> list[str]:
    """The words in backticks in the first column of the tables in `text`."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [word for cell in rows for word in re.findall(r"`([^`]+)`", cell)]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 140


def test_the_pages_have_at_most_thirty_thousand_words() -> None:
    measured = {DOCS / "internals" / f"{name}-measured.md" for name in ("experiments", "cluster")}  # targets write them
    assert sum(words(page) for page in DOCS.rglob("*.md") if page not in measured) <= 30_000


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
    broken = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_linked_from_another_one() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in LINKED for link in links(page)}
    assert [name(page) for page in PAGES if page not in linked and page != ROOT / "README.md"] == []


@pytest.mark.parametrize(
    ("repository", "expected"),
    [("https://git.example/a/b/", "[k](https://git.example/a/b/blob/HEAD/k8s/chart/values.yaml#x)"), ("", "k")],
)
def test_the_sites_links_out_of_the_pages_lead_to_the_repository(repository: str, expected: str) -> None:
    hook = runpy.run_path(str(DOCS / "repository_links.py"))["on_page_markdown"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="start/kubernetes.md"))
    config = SimpleNamespace(docs_dir=str(DOCS), repo_url=repository)
    unchanged = "[a](../operate/open.md#tls) [b](../../gone.yaml) [c](https://d.example/../e)"
    source = f"{unchanged} [k](../../k8s/chart/values.yaml#x)"
    assert hook(source, page=page, config=config, files=None) == f"{unchanged} {expected}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_paragraph_has_a_hundred_words(page: Path) -> None:
    assert [text for text in paragraphs(page) if len(text.split()) >= 100] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_names_a_language_that_says_whether_it_is_run(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("block", runnable(), ids=lambda block: block.id)
def test_every_snippet_parses(block: Block) -> None:
    if block.language == "python":
        compile(block.code, block.id, "exec")
    else:
        subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)


def yaml_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == "yaml"]


@pytest.mark.parametrize("block", yaml_blocks(), ids=lambda block: block.id)
def test_every_yaml_example_is_valid(block: Block) -> None:
    example = yaml.safe_load(block.code)
    if isinstance(example, list):  # Serve applications
        for application in example:
            module, _, function = application["import_path"].partition(":")
            assert f"def {function}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()
            assert application["route_prefix"] == f"/deployments/{application['name']}"
        return
    if {"models", "router"} & example.keys():  # values of the chart
        assert "rayservice.yaml" in chart.files(example, name="switchyard", namespace="switchyard")
        return
    endpoints = example.setdefault("endpoints", {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}}})
    embeds = [*example.get("access", {}).get("limits", {}).get("endpoints", {})]
    endpoints |= {embed: {"tasks": ["chat"], "traffic": {"blue": 100}} for embed in embeds if embed not in endpoints}
    named = {deployment for endpoint in endpoints.values() for deployment in endpoint["traffic"]}
    example.setdefault("deployments", {name: {"app": name, "model": "m"} for name in named})
    parse(example)


def test_ten_adapters_are_one_gpus_application() -> None:
    page = DOCS / "split" / "adapters.md"
    shown = page.read_text()
    examples = [
        yaml.safe_load(block.code) for block in blocks(page) if block.language == "yaml" and block.code in shown
    ]
    ((engine,), config) = examples
    router = {"name": "router", "route_prefix": "/", "deployments": [{"name": "Router", "user_config": config}]}
    document = {"applications": [router, engine]}
    served = load_document(document)
    assert sum(bundle.get("GPU", 0) for demand in demands(document) for bundle in demand.bundles) == 1
    modules = adapter_kwargs(engine["args"]["llm_config"])
    assert (modules["max_loras"], len(served.endpoints["chat"].traffic)) == (10, 10)
    (card,) = [json.loads(block.code) for block in blocks(page) if block.language == "text" and block.code in shown]
    assert card == json.loads(json.dumps(model_card(served, "tone-3", card["created"])))


def test_the_exit_codes_of_all_commands_are_in_one_table() -> None:
    rows = (DOCS / "reference" / "command-line.md").read_text().partition("| exit code | meaning |\n")[2]
    listed = [int(number) for number in re.findall(r"^\| (\d+) \|", rows.partition("\n\n")[0], re.MULTILINE)]
    assert listed == sorted({*map(int, ExitCode), *map(int, Check)})
    others = [page for page in PAGES if "| exit code |" in page.read_text()]
    assert others == [DOCS / "reference" / "command-line.md"]


def test_the_units_command_line_is_one_that_the_program_takes() -> None:
    page = (DOCS / "start" / "gpu.md").read_text()
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[method-assign,assignment]  # the names have capitals
    unit.read_string(page.partition("```text\n[Unit]")[2].partition("```")[0].join(["[Unit]", ""]))
    program, name, *arguments = unit["Service"]["ExecStart"].split()
    assert program == f"{unit['Service']['WorkingDirectory']}/.venv/bin/switchyard"
    command = commands().commands[name]
    assert command.make_context(name, arguments).params["target"] == "qwen3-8b.yaml"
    assert unit["Service"]["KillMode"] == "mixed"  # Ray's processes get no signal before the launcher has stopped them


def test_the_container_of_the_gpu_page_is_one_that_the_dockerfile_builds_and_its_command_runs() -> None:
    page, dockerfile = (DOCS / "start" / "gpu.md").read_text(), (ROOT / "k8s" / "Dockerfile").read_text()
    shell = page.partition("## As a container")[2].partition("```text\n")[2].partition("```")[0].replace("\\\n", " ")
    build, _, start = (shlex.split(line.replace("$", "")) for line in shell.splitlines())
    image = build[build.index("-t") + 1]
    assert (ROOT / build[build.index("-f") + 1]).is_file()
    assert f"AS {build[build.index('--target') + 1]}\n" in dockerfile
    assert image == f"switchyard:{own_version()}-gpu"
    options, arguments = start[: start.index(image)], start[start.index(image) + 1 :]
    mounted = options[options.index("--volume") + 1].partition(":")[2]
    assert options[options.index("--workdir") + 1] == mounted
    assert f"HOME={mounted}" in options  # the cache, and the record of the run, outlive the container
    program, name, *rest = arguments
    assert program == "switchyard"
    assert "/venv/bin:$PATH" in dockerfile
    command = commands().commands[name]
    assert command.make_context(name, rest).params["target"] == "Qwen/Qwen3-8B"


def test_every_model_command_of_the_gpu_page_writes_a_valid_file_of_the_name_that_the_page_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init` is `serve` without the hub and the start."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "start" / "gpu.md").read_text()
    lines = re.findall(r"^\.venv/bin/switchyard serve (Qwen/.*)$", page, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert main(["init", *shlex.split(line), "--gpu", "L4", "-o", f"{len(line)}.yaml"]) == 0
        assert main(["check", f"{len(line)}.yaml"]) == 0
    assert main(["init", *shlex.split(lines[0])]) == 0
    assert (tmp_path / "qwen3-8b.yaml").is_file()
    shared = (tmp_path / f"{len(lines[1])}.yaml").read_text()
    for block in re.findall(r"^(placement_group_config: .*?|engine_kwargs: \{.*?\})  +#", page, re.MULTILINE):
        key, value = block.split(": ", 1)
        assert (block if key == "placement_group_config" else value.strip("{}")) in shared


def test_the_kubernetes_page_makes_the_secrets_and_waits_for_what_its_values_ask_for(tmp_path: Path) -> None:
    page, values = (DOCS / "start" / "kubernetes.md").read_text(), tmp_path / "mine.yaml"
    values.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    objects = chart.of_values(values, name="switchyard", namespace="switchyard")
    asked = json.dumps(objects)
    made = {*re.findall(r"create secret generic (\S+)", page)}
    assert made == {"switchyard", "switchyard-keys", "switchyard-hub"}
    keys = {*re.findall(r'"name": "switchyard", "key": "([\w-]+)"', asked)}
    assert keys == {"internal-key", "engine-key", "unit-secret", "redis-password"}
    assert {"unit-secret", "redis-password"} <= {*re.split(r"[\s;]+", page)}  # the others are `keys internal`'s
    assert {name for name in made if f'"{name}"' in asked} == made
    (job,) = (item for item in objects if item["kind"] == "Job")
    assert f"-l app.kubernetes.io/name={job['metadata']['labels']['app.kubernetes.io/name']} " in page
    (service,) = (item for item in objects if item["kind"] == "RayService")
    assert f"rayservice/{service['metadata']['name']} " in page
    assert f"service/{service['metadata']['name']}-serve-svc " in page  # KubeRay's name


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in LINKED for target in re.findall(r"(?:`|^|\$ )make ([a-z0-9-]+)", page.read_text())}
    assert named - targets == set()


BARE = re.compile(r"(?<![\w/.-])(switchyard(?= [a-z-]+)|python3?(?= )|pytest(?= )|pip(?= ))")
"""A program that only an activated environment finds."""
IN_A_POD = re.compile(r"((-n|namespace|install|generic) switchyard|-- \w+|switchyard:\S+ \w+) ")


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_every_command_in_a_code_block_can_be_pasted_after_make_serve(page: Path) -> None:
    shells = [block for block in blocks(page) if block.language in ("bash", "console", "sh", "text")]
    bare = [line for block in shells for line in block.code.splitlines() if BARE.search(IN_A_POD.sub("", line))]
    assert bare == []
    if page in PAGES:
        files = re.findall(r"(?<![\w/])(\.venv/bin/[\w-]+)", "".join(block.code for block in shells))
        assert [file for file in files if not (ROOT / file).exists()] == []


CALL = re.compile(r"(?:^|[\s$(`])(?:\S*/)?switchyard ([a-z](?:(?! 2>)[^`\n|>&#)])*)")
"""A command of the program in a block's line or in backticks, without what the shell does with it."""


def calls() -> Iterator[Any]:
    """The command lines that pages have a reader type, but for forms with `[…]` of a table."""
    for page in (page for page in LINKED if page.name != "CHANGELOG.md"):
        text = page.read_text().replace("\\\n", " ")
        shells = [
            block.code.replace("\\\n", " ")
            for block in blocks(page)
            if block.language in ("bash", "console", "sh", "text")
        ]
        lines = [line for code in shells for line in code.splitlines() if ".venv/bin/switchyard" in line]
        lines += re.findall(r"(?<!`)`(?:\.venv/bin/)?switchyard [^`\n]*`", text)
        for line in lines:
            if not re.search(r"[\[\]…]", line):
                yield from (pytest.param(call.strip(), id=f"{name(page)}: {call[:40]}") for call in CALL.findall(line))


@pytest.mark.parametrize("call", list(calls()))
def test_every_command_line_is_one_that_the_program_takes(call: str) -> None:
    words, command = shlex.split(call), cast("Any", commands())
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if words:  # without them, it only names the command
        assert not hasattr(command, "commands"), call
        command.make_context("switchyard", words)


WRITTEN = re.compile(r"(?:^|\s)(?:\d?> *|--(?:file|output|out)[ =])([\w./-]+)")
"""A file that a command writes."""


def test_git_ignores_every_file_that_a_page_or_an_example_of_the_help_has_a_reader_write(tmp_path: Path) -> None:
    shells = (block.code for page in PAGES for block in blocks(page) if block.language in ("bash", "console"))
    lines = [line for text in (*shells, *helps()) for line in text.splitlines() if "kubectl" not in line]
    written = {file for line in lines for file in WRITTEN.findall(line) if not file.startswith("/")}
    assert {"keys.yaml", "router.yaml", "audit.jsonl"} <= written
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    done = subprocess.run(
        ["git", "check-ignore", "--stdin"], cwd=tmp_path, input="\n".join(written), capture_output=True, text=True
    )
    assert written - set(done.stdout.split()) - {"serve_config.schema.json"} == set()  # the last is in the repository


def helps() -> Iterator[str]:
    """The help of every command."""
    remaining: list[Any] = [commands()]
    while remaining:
        command = remaining.pop()
        yield command.help or ""
        remaining += getattr(command, "commands", {}).values()


def test_the_readme_says_how_the_program_is_called_before_any_page_calls_it_by_name() -> None:
    before, _, after = (ROOT / "README.md").read_text().partition("`source .venv/bin/activate`")
    assert after
    assert "The command line is `.venv/bin/switchyard`" in before
    assert [text for text in re.findall(r"`([^`\n]+)`", before + after) if BARE.match(text)] == []


def test_every_module_that_a_page_runs_exists() -> None:
    named = {module for page in LINKED for module in re.findall(r"python -m ([\w.]+)", page.read_text())}
    paths = {module: ROOT / module.replace(".", "/") for module in named}
    missing = [module for module, path in paths.items() if not path.with_suffix(".py").exists() and not path.is_dir()]
    assert missing == []


def plain(path: str) -> str:
    """A path without the names of its parameters."""
    return re.sub(r"{[^}]*}", "{}", path)


async def test_every_route_that_a_page_names_exists() -> None:
    transport = httpx.ASGITransport(Router(RuntimeEnvironment()).app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        document = (await client.get("/openapi.json")).json()
    served = {(method.upper(), plain(path)) for path, methods in document["paths"].items() for method in methods}
    named = {
        (method, plain(path))
        for page in PAGES
        for method, path in re.findall(r"`(GET|POST|PUT|DELETE) (/[^`\s]*)`", page.read_text())
    }
    assert named - served == set()


def test_the_configuration_reference_is_the_generated_one() -> None:
    page = (DOCS / "reference" / "configuration.md").read_text()
    assert updated(page) == page, "run `make schema`"


def test_how_soon_a_bad_treatment_is_stopped_is_as_measured() -> None:
    page = (DOCS / "split" / "rollouts.md").read_text()
    measured = (DOCS / "internals" / "experiments-measured.md").read_text()
    table = page.partition("### How soon\n")[2].partition("\n| ")[2].partition("\n\n")[0]
    assert len(table.splitlines()) > 5
    assert table in measured


def test_the_page_of_metrics_lists_every_metric() -> None:
    page = (DOCS / "operate" / "metrics.md").read_text()
    families = text_string_to_metric_families(Telemetry().expose().decode())
    exposed = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    exposed = {name for name in exposed if not name.startswith("process_")}
    former = {name for name, meaning in METRICS.items() if meaning.startswith("Deprecated")}
    assert [name for name in former if f"`{name}`" not in page] == []
    exposed |= (
        METRICS.keys() - former | GAUGES.keys() | {CONTROL_PLANE_UP, CONTROLLER_UP, REPLICAS, "switchyard_draining"}
    )
    listed = [name for name in first_cells(page) if "{" not in name]
    assert exposed - set(listed) == set()
    assert {name for name in listed if re.match("switchyard|gen_ai|http", name)} - exposed == set()


def kinds(error: type[SwitchyardError]) -> Iterator[str]:
    """The kinds that are raised: `upstream` is only the base of three."""
    if "kind" in vars(error) and error.kind != "upstream":
        yield error.kind
    for below in error.__subclasses__():
        yield from kinds(below)


def test_the_page_of_errors_lists_every_kind() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    without_a_class = {CLIENT_GONE, CLIENT_TIMEOUT, NO_ENGINE, ROUTER_LOST}
    assert sorted(first_cells(page)) == sorted({*kinds(SwitchyardError), *without_a_class})


def events() -> Iterator[str]:
    """The names of all log events, as the code has them."""
    for path in (*(ROOT / "app").rglob("*.py"), *(ROOT / "deployments").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "event":
                (first, *_) = node.args
                assert isinstance(first, ast.Constant), f"{path}:{node.lineno}: the name is not a literal"
                yield str(first.value)


def test_the_page_of_logs_lists_every_event() -> None:
    listed = first_cells((DOCS / "operate" / "logs.md").read_text().partition("### Access log")[0])
    assert sorted(listed) == sorted(set(events()))


def test_the_page_of_the_environment_lists_that_of_every_node() -> None:
    listed = (DOCS / "reference" / "environment.md").read_text()
    drain = {environment.DRAIN: str(environment.WORKER_DRAIN_S)}
    for variable, value in {**environment.EVERY_NODE, **drain}.items():
        assert f"| `{variable}` | `{value}`" in listed
    assert set(first_cells(listed)) == {
        *environment.EVERY_NODE,
        *drain,
        INTERNAL_KEY_VARIABLE,
        ENGINE_KEY_VARIABLE,
        UNIT_SECRET_VARIABLE,
    }
