"""`vllm bench serve` reads the traces that `switchyard experiments export --format vllm-bench` writes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.experiments.replay.traces import Estimates, trace
from tests.support.clients.samples import MODEL
from tests.unit.app.experiments.replay.test_requests import request

pytestmark = pytest.mark.real

# In a separate process: importing vLLM takes seconds and emits warnings.
READ = """
import json, sys
from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer
from vllm.benchmarks.datasets.datasets import CustomDataset, TimedTrace, add_dataset_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

path, tokenizer = sys.argv[1:]
parser = FlexibleArgumentParser()
add_dataset_parser(parser)
defaults = vars(parser.parse_args(["--dataset-path", path]))
fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(tokenizer))
timed = TimedTrace(**defaults).sample(tokenizer=fast, num_requests=10)
custom = CustomDataset(dataset_path=path, disable_shuffle=True).sample(
    tokenizer=fast, num_requests=3, output_len=-1, skip_chat_template=True
)
print("RESULT" + json.dumps({
    "timed": [[it.timestamp, it.prompt_len, it.expected_output_len, it.prompt[:16]] for it in timed],
    "custom": [[it.prompt, it.expected_output_len] for it in custom],
}))
"""


def test_vllm_reads_times_lengths_and_texts(tmp_path: Path) -> None:
    recorded = [
        request(at=1000.0, unit="a", prompt_tokens=40, completion_tokens=7),
        request(at=1001.5, unit="a", prompt_tokens=50, completion_tokens=8),
        request(at=1004.0, unit="b", prompt_tokens=3, completion_tokens=9, body={"prompt": "once upon"}),
    ]
    path, tokenizer = tmp_path / "trace.jsonl", tmp_path / "tokenizer.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in trace(recorded, "vllm-bench", Estimates())))
    tokenizer.write_text(MODEL.tokenizer.to_str())
    command = [sys.executable, "-c", READ, str(path), str(tokenizer)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.rpartition("RESULT")[2])
    timed = found["timed"]
    assert [it[:3] for it in timed] == [[0.0, 40, 7], [1.5, 50, 8], [4.0, 3, 9]]
    assert timed[0][3] == timed[1][3] != timed[2][3], "prompts of one unit have the same beginning"
    made_up = [line["prompt"] for line in trace(recorded, "vllm-bench", Estimates())]
    assert found["custom"] == [[made_up[0], 7], [made_up[1], 8], ["once upon", 9]]
