"""`vllm bench serve` reads the times of the traces that `switchyard experiments export --format vllm-bench` writes. It
reads their texts with pandas: `tests/agents/test_bench_texts.py`."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from vllm.benchmarks.datasets.datasets import TimedTrace, add_dataset_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from app.experiments.replay.traces import Estimates, trace
from tests.support.clients.samples import MODEL
from tests.unit.app.experiments.replay.test_traces import request_requests

pytestmark = pytest.mark.real


def test_vllm_reads_times_and_lengths(tmp_path: Path) -> None:
    recorded = [
        request_requests(at=1000.0, unit="a", prompt_tokens=40, completion_tokens=7),
        request_requests(at=1001.5, unit="a", prompt_tokens=50, completion_tokens=8),
        request_requests(at=1004.0, unit="b", prompt_tokens=3, completion_tokens=9, body={"prompt": "once upon"}),
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in trace(recorded, "vllm-bench", Estimates())))
    parser = FlexibleArgumentParser()
    add_dataset_parser(parser)
    defaults = vars(parser.parse_args(["--dataset-path", str(path)]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(MODEL.tokenizer.to_str()))
    timed = TimedTrace(**defaults).sample(tokenizer=tokenizer, num_requests=10)
    assert [(request.timestamp, request.prompt_len, request.expected_output_len) for request in timed] == [
        (0.0, 40, 7),
        (1.5, 50, 8),
        (4.0, 3, 9),
    ]
    beginnings = [request.prompt[:16] for request in timed]
    assert beginnings[0] == beginnings[1] != beginnings[2], "prompts of one unit have the same beginning"
