"""The command line reads engine arguments as `vllm serve` does."""

import argparse
import shlex
from typing import Any

import pytest
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from app.config.reference import packages
from deployments.cli.engine_options import engine_arguments

KNOWN = packages()["$defs"]["EngineArguments"]["properties"]

SWITCHES = [name for name, schema in KNOWN.items() if "boolean" in schema.get("type", ())]


@pytest.fixture(scope="module")
def vllm() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return parser


def read(vllm: argparse.ArgumentParser, tokens: list[str], names: Any) -> dict[str, Any]:
    """What `vllm serve` reads from the tokens for the arguments with these names."""
    parsed = vars(vllm.parse_args(tokens))
    return {name: parsed[name] for name in names}


@pytest.mark.parametrize(
    "line",
    [
        "--max-model-len 32k --max-num-batched-tokens 8K",
        "--max-model-len auto",
        "--max-model-len 25.6k",
        "--max-model-len=4096 --max-num-seqs 128",
        "-tp 2 -pp 2 --enforce-eager",
        "-q fp8 --kv-cache-dtype fp8 --dtype bfloat16",
        "--gpu-memory-utilization .45",
        "--gpu-memory-utilization 1",
        "--no-enable-prefix-caching --enable-auto-tool-choice --tool-call-parser hermes",
        """--limit-mm-per-prompt '{"image": 2}'""",
        "--allowed-media-domains a.example b.example --max-num-seqs 3",
        "--cudagraph-capture-sizes 1 2 4",
        "--tokenizer org/name --revision 123abc --seed 7",
    ],
)
def test_a_line_means_what_it_means_to_vllm(line: str, vllm: argparse.ArgumentParser) -> None:
    tokens = shlex.split(line)
    ours = engine_arguments(tokens)
    assert ours == read(vllm, tokens, ours)


def test_every_switch_is_one_of_vllm(vllm: argparse.ArgumentParser) -> None:
    options = {option for action in vllm._actions for option in action.option_strings}
    checked = 0
    for name in SWITCHES:
        for option, value in ((f"--{name.replace('_', '-')}", True), (f"--no-{name.replace('_', '-')}", False)):
            assert engine_arguments([option]) == {name: value}
            if option in options:
                assert read(vllm, [option], [name]) == {name: value}
                checked += 1
    assert checked > 100
