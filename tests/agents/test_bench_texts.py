"""`vllm bench serve` reads the texts of the traces that `switchyard experiments export --format vllm-bench` writes.

It needs pandas, which Ray Serve would import in every process if this environment had it: 0.2 s of each one's start.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from app.experiments.replay.traces import Estimates, trace
from tests.agents.test_use_with import CLIENTS
from tests.support.clients.samples import MODEL
from tests.support.processes.project import ROOT
from tests.unit.app.experiments.replay.test_traces import request_requests

READ = """
import json, sys
sys.path += sys.argv[3:]
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from vllm.benchmarks.datasets.datasets import CustomDataset

tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(sys.argv[2]))
requests = CustomDataset(dataset_path=sys.argv[1], disable_shuffle=True).sample(
    tokenizer=tokenizer, num_requests=2, output_len=-1, skip_chat_template=True
)
print(json.dumps([(request.prompt, request.expected_output_len) for request in requests]))
"""


def test_vllm_reads_texts(tmp_path: Path) -> None:
    recorded = [
        request_requests(at=1000.0, unit="a", prompt_tokens=40, completion_tokens=7),
        request_requests(at=1004.0, unit="b", prompt_tokens=3, completion_tokens=9, body={"prompt": "once upon"}),
    ]
    lines = list(trace(recorded, "vllm-bench", Estimates()))
    path, tokenizer = tmp_path / "trace.jsonl", tmp_path / "tokenizer.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tokenizer.write_text(MODEL.tokenizer.to_str())
    packages = map(str, (CLIENTS / "clients" / "lib").glob("python*/site-packages"))
    command = [sys.executable, "-c", READ, str(path), str(tokenizer), *packages]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[lines[0]["prompt"], 7], ["once upon", 9]]
