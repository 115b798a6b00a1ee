"""Mistakes in engine arguments on the command line."""

import pytest

from deployments.cli.engine_options import engine_arguments
from deployments.cli.options import CommandError, ExitCode


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--max-num-seq 3", "--max-num-seq is neither *; did you mean --max-num-seqs?"),
        ("--varient a=b", "--varient is neither *; did you mean --variant?"),
        ("--max-num-seqs", "--max-num-seqs needs a value"),
        ("--max-num-seqs 3 4", "--max-num-seqs takes one value, and '4' follows '3'"),
        ("--enforce-eager 3", "--enforce-eager takes no value, and '3' follows it"),
        ("--no-enable-prefix-caching x", "--no-enable-prefix-caching takes no value, and 'x' follows it"),
        ("--hf-overrides {a}", "'{a}' is not JSON; *"),
        ("--served-model-name x", "--served-model-name is not an engine's argument: write --as NAME"),
        ("--port 3", "--port is not an engine's argument: *"),
        ("--hf-token hf_x", "--hf-token is not an engine's argument: export HF_TOKEN, *"),
        ("--tp 2", "--tp is neither *; did you mean --tensor-parallel-size?"),
        ("--ssl-keyfile k", "--ssl-keyfile is not an engine's argument: end TLS before the router"),
        ("extra --enforce-eager", "Got an unexpected 'extra'"),
        ("variant a=b", "Got an unexpected 'variant'; did you mean --variant?"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(line: str, said: str) -> None:
    with pytest.raises(CommandError) as wrong:
        engine_arguments(line.split(), ["--variant"])
    before, _, after = said.partition("*")
    assert wrong.value.message.startswith(before)
    assert wrong.value.message.endswith(after)
    assert wrong.value.exit_code == ExitCode.USAGE


def test_a_wrong_value_stays_for_the_check_which_knows_all_types() -> None:
    assert engine_arguments(["--max-num-seqs", "many"]) == {"max_num_seqs": "many"}
