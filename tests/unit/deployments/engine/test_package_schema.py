"""`packages.json` describes the installed Ray Serve and vLLM: a new version of either needs `make schema`."""

import warnings

import pytest

from app.config.reference import packages

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
    from deployments.package_schema import package_schema


@pytest.mark.filterwarnings("ignore")
def test_the_committed_description_is_that_of_the_installed_packages() -> None:
    assert package_schema() == packages(), "run `make schema`"


@pytest.mark.parametrize("name", ["max_num_seqs", "dtype", "tool_call_parser", "lora_modules", "speculative_config"])
def test_arguments_of_the_engine_and_of_its_server_are_known(name: str) -> None:
    assert name in packages()["$defs"]["EngineArguments"]["properties"]
