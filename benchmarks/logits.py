"""The cost of the logits processors: vLLM without them, with all of them unused, and with each in use.

Two offline engines in this process, with a model of one random layer, so that a step is short and what is added
shows; 16 requests at once, all of the same length. The variants take turns in each round, and the medians count. They
are compared by the CPU time of one thread, which hardly depends on the machine's load.

    python -m benchmarks.logits        prints a table; exit status 1 if unused processors cost more than the bar
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.programs import SMALL_ENGINE
from deployments.engine.logits.registry import PROCESSORS
from deployments.weights.cache import default_cache, prepare_tiny

BATCH = 16
PROMPT = 32
BAR = 1.03

ENVIRONMENT = {
    **SMALL_ENGINE,
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: its time is this process's
}

NONE = "none registered"
UNUSED = "registered, unused"

IN_USE: Mapping[str, Mapping[str, Any]] = {
    "watermark": {"watermark": True},
    "no_repeat_ngram": {"no_repeat_ngram": 3},
    "bad_word_tokens": {"bad_word_tokens": [token for i in range(500) for token in (i, i + 1, -1)] + [7]},
    "forced_output_tokens": {"forced_output_tokens": [9] * 2000},
    "temperature": {"temperature": 4.0},
    "typical_p": {"typical_p": 0.9},
    "xtc": {"xtc_threshold": 0.1, "xtc_probability": 0.5},
}
"""The parameters of each of the 16 requests."""


def engine(logits_processors: Sequence[str]) -> Any:
    """An offline engine."""
    from vllm import LLM

    return LLM(
        model=str(prepare_tiny(default_cache())),
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=BATCH,
        enforce_eager=True,
        disable_log_stats=True,
        logits_processors=list(logits_processors),
    )


def step_ms(llm: Any, tokens: int, xargs: Mapping[str, Any] | None) -> float:
    """Milliseconds per step of the batch: each gives every request a token."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=2.0 if xargs and "temperature" in xargs else 1.0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        extra_args=dict(xargs) if xargs else None,
    )
    prompts = [{"prompt_token_ids": list(range(100 * i, 100 * i + PROMPT))} for i in range(BATCH)]
    begin = time.process_time()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.process_time() - begin
    assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
    return elapsed / tokens * 1000


def measure(rounds: int, tokens: int) -> dict[str, list[float]]:
    """Milliseconds per step in every round, by variant."""
    without, with_ours = engine(()), engine(tuple(PROCESSORS))
    ways: list[tuple[str, Any, Mapping[str, Any] | None]] = [(NONE, without, None), (UNUSED, with_ours, None)]
    ways += [(name, with_ours, xargs) for name, xargs in IN_USE.items()]
    for _, llm, xargs in ways:
        step_ms(llm, 16, xargs)
    measured: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    for number in range(rounds):
        # The two that the target compares run every time, in alternating order; the others less often.
        chosen = ways if number % 5 == 0 else ways[:2]
        for name, llm, xargs in chosen if number % 2 else reversed(chosen):
            measured[name].append(step_ms(llm, tokens, xargs))
    return measured


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.logits")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=256)
    arguments = parser.parse_args(argv)
    os.environ |= ENVIRONMENT
    measured = measure(arguments.rounds, arguments.tokens)
    medians = {name: statistics.median(times) for name, times in measured.items()}
    print(f"| batch of {BATCH} | ms per step | ratio |\n| --- | --- | --- |")
    for name, median in medians.items():
        print(f"| {name} | {median:.3f} | {median / medians[NONE]:.3f} |")
    return 0 if medians[UNUSED] <= BAR * medians[NONE] else 1


if __name__ == "__main__":
    sys.exit(main())
