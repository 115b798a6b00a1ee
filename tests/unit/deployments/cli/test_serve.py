"""`switchyard init` and `switchyard serve MODEL` up to the start."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config.file_check import check_file
from deployments.cli.main import main
from deployments.cli.options import ExitCode
from deployments.invocation import command
from deployments.local.fit import engine_problems
from deployments.local.processes import RUN_DIRECTORY, exclusive


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in which the command runs, with a model's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path / "run"))
    (tmp_path / "My-Model").mkdir()
    (tmp_path / "My-Model" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return tmp_path


def run(line: str) -> int:
    return main(shlex.split(line))


def served(file: str) -> dict[str, Any]:
    """The router's part of a file that was written."""
    assert check_file(Path(file), engine_problems) == []
    document = yaml.safe_load(Path(file).read_text())
    config: dict[str, Any] = document["applications"][0]["deployments"][0]["user_config"]
    return config


def test_a_folder_and_a_variant_share_the_traffic_from_the_first_minute(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init ./My-Model --as chat --variant cold='--no-enable-prefix-caching' --max-model-len 4k") == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "Wrote my-model.yaml, which is yours to edit; chat is 90 % my-model, 10 % cold",
        "It is for a CPU, as here; --gpu and a type, such as L4, writes one for GPUs",
    ]
    assert printed.out == f"Start it with: {command('serve my-model.yaml')}\n"
    assert served("my-model.yaml")["endpoints"]["chat"]["traffic"] == {"my-model": 90, "cold": 10}
    engines = yaml.safe_load(Path("my-model.yaml").read_text())["applications"][2:]
    (first, cold) = (engine["args"]["llm_config"] for engine in engines)
    assert first["model_loading_config"]["model_source"] == str(here / "My-Model")  # replicas stand elsewhere
    assert (first["engine_kwargs"]["max_model_len"], cold["engine_kwargs"]["max_model_len"]) == (4000, 4000)
    assert "enable_prefix_caching" not in first["engine_kwargs"]
    assert cold["engine_kwargs"]["enable_prefix_caching"] is False


def test_a_variant_may_be_another_model(here: Path) -> None:
    (here / "Other").mkdir()
    (here / "Other" / "config.json").write_text("{}")
    assert run("init My-Model --as chat --variant other='./Other --quantization fp8'") == 0
    (_, other) = yaml.safe_load(Path("my-model.yaml").read_text())["applications"][2:]
    config = other["args"]["llm_config"]
    assert config["model_loading_config"] == {"model_id": "My-Model", "model_source": str(here / "Other")}
    assert config["engine_kwargs"]["quantization"] == "fp8"


def test_the_same_arguments_take_the_file_again_whatever_its_comments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init My-Model --as chat") == 0
    edited = Path("my-model.yaml").read_text() + "# mine\n"
    Path("my-model.yaml").write_text(edited)
    assert run("init ./My-Model --as chat") == 0
    assert Path("my-model.yaml").read_text() == edited
    capsys.readouterr()
    assert run("serve My-Model --as talk") == ExitCode.WRONG
    said = capsys.readouterr().err
    assert said.startswith("my-model.yaml exists, and differs from what these arguments give. Serve it as it is: ")
    assert command("serve my-model.yaml") in said
    assert Path("my-model.yaml").read_text() == edited
    assert run("init My-Model --as talk --output talk.yaml") == 0
    assert [*served("talk.yaml")["endpoints"]] == ["talk"]


def test_a_model_that_embeds_is_recognized(here: Path) -> None:
    (here / "My-Model" / "modules.json").write_text("[]")
    assert run("init My-Model") == 0
    assert served("my-model.yaml")["endpoints"] == {
        "My-Model": {"tasks": ["embeddings", "rerank"], "traffic": {"my-model": 100}}
    }


def test_a_type_of_gpu_is_written_in_rays_spelling() -> None:
    assert run("init Qwen/Qwen3-8B --as chat --gpu l4 --variant fp8='--quantization fp8'") == 0
    (_, engine) = yaml.safe_load(Path("qwen3-8b.yaml").read_text())["applications"][2:]
    config = engine["args"]["llm_config"]
    assert (config["accelerator_config"], config["accelerator_type"]) == ({"kind": "gpu"}, "L4")
    assert config["placement_group_config"] == {"bundle_per_worker": {"GPU": 0.5}}
    assert config["engine_kwargs"]["gpu_memory_utilization"] == 0.45


@pytest.mark.parametrize(
    ("line", "said", "code"),
    [
        ("serve --as chat", "--as is for a model, and serve_config.yaml is a file: name the model first", 2),
        ("serve x.yaml --enforce-eager", "--enforce-eager is for a model, and x.yaml is a file: write it into x", 2),
        ("init My-Model --max-num-seqs many", "--max-num-seqs: expected a whole number, not many", 2),
        (
            "init My-Model --dtype bf16",
            "--dtype: expected one of auto, bfloat16, float, float16, float32, half, not",
            2,
        ),
        (
            "init My-Model --dtype fp32",
            "--dtype: expected one of auto, bfloat16, float, float16, float32, half, not f",
            2,
        ),
        ("init My-Model --gpu-memory-utilization 90%", "--gpu-memory-utilization: expected a number, not 90%; wr", 2),
        ("init My-Model --task embed", "this vLLM does not have --task: for a model that embeds or classifies use", 2),
        ("init My-Model --chat-template gone.jinja", "--chat-template: there is no file gone.jinja", 2),
        ("init My-Model --variant 'a b=-tp=2'", "--variant a b: 'a b' is no name: 63 letters, digits, ", 2),
        ("init My-Model \u2013tp=2", "'\u2013tp=2' begins with a dash: write two hyphens, --tp=2", 2),
        ("init mine2/", "The folder mine2/ does not exist", 1),
        ("init hf:Qwen/Qwen3-8B", "'hf:Qwen/Qwen3-8B' is neither a folder (/… or ./…), a hub's id (owner/name), ", 2),
        ("init My-Model --as a/b", "--as a/b: 'a/b' is no name", 2),
        ("init My-Model --as chat --variant chat=-tp=2", "--as chat: a deployment has the same name", 2),
        ("init My-Model --gpu H10O", "--gpu H10O is not a type that Ray knows; did you mean H100?", 2),
        (
            "init My-Model --gpu nvidia-h100-80gb",
            "--gpu nvidia-h100-80gb is not a type that Ray knows; did you mean H100?",
            2,
        ),
        ("init My-Model --gpu banana", "--gpu banana is not a type that Ray knows; leave it out to take any GPU", 2),
        ("init My-Model --variant fp8", "--variant fp8: expected --variant NAME=MODEL, or ", 2),
        (
            "init My-Model --max-model-len 32k --variant fp8=--quantization fp8",
            "--quantization needs a value; put both in quotes: --variant fp8='--quantization VALUE'",
            2,
        ),
        ("init My-Model --variant 'a=\"'", '--variant a=": No closing quotation', 2),
        ("init My-Model --variant router=-tp=2", "--variant router: the name is taken, it is another application's", 2),
        ("init My-Model --variant a=-tp=2 --variant a=-tp=4", "--variant a: the name is taken, two variants", 2),
        ("init My-Model " + " ".join(f"--variant v{i}=-tp=2" for i in range(10)), "10 variants are too many", 2),
        (
            "init My-Model --gpu L4 --variant a=--enforce-eager --gpu-memory-utilization 0.9",
            "--gpu-memory-utilization: the engine takes 0.9 of the GPU's memory, and has 0.5 of the GPU; set at most",
            2,
        ),
        ("init ./nothing", "The folder ./nothing does not exist", 1),
        ("init run", "run has no config.json: it is not a model's folder", 1),
        (
            "init SmolLM2-135M",
            "'SmolLM2-135M' is no folder or hub's id. Did you mean package:SmolLM2-135M-Instruct?",
            1,
        ),
        ("init mine.yaml", "mine.yaml is a file, and a model is a folder or a hub's id. A configuration: ", 1),
        ("serve mine", "'mine' is no folder or hub's id. Did you mean mine.yaml?", 1),
        ("init package:SmolLM2", "No recipe makes the model 'SmolLM2'", 1),
        ("init My-Model --output no/where.yaml", "no/where.yaml cannot be written: No such file or directory", 1),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    line: str, said: str, code: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.yaml").write_text("{}")
    (here / "run").mkdir()
    assert run(line) == code
    printed = capsys.readouterr()
    assert printed.err.startswith(said)
    assert printed.err.count("\n") == 1
    assert sorted(path.name for path in here.glob("*.yaml")) == ["mine.yaml"]


def test_beside_another_run_nothing_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with exclusive(here / "run"):
        assert run("serve My-Model --as chat") == ExitCode.WRONG
    assert capsys.readouterr().err.startswith("Another instance of this installation already runs")
    assert list(here.glob("*.yaml")) == []
