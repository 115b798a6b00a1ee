import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own, when it is imported
    from vllm import PoolingParams, SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    from app.engine.errors import TOO_COSTLY
    from deployments.engine.tried_requests import constraint_of, tried

from deployments.engine.trial import TooCostly, Trials


def sampling(**constraint: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))


@pytest.mark.parametrize(
    ("params", "constraint"),
    [
        (SamplingParams(), None),
        (PoolingParams(), None),
        (sampling(json={"type": "object"}), ("json", '{"type": "object"}')),
        (sampling(json="{"), ("json", "{")),
        (sampling(json_object=True), ("json", '{"type": "object"}')),
        (sampling(regex="a+"), ("regex", "a+")),
        (sampling(choice=["a", 'b"']), ("grammar", 'root ::= "a" | "b\\""')),
        (sampling(grammar='root ::= "a"'), ("grammar", 'root ::= "a"')),
        (sampling(grammar='start: "a" | "b"'), ("grammar", 'root ::= start\nstart ::= "a" | "b"')),
        (sampling(grammar="start"), None),  # vLLM says that it is no grammar
        (sampling(structural_tag="{}"), ("structural_tag", "{}")),
    ],
)
def test_a_trial_is_of_what_vllm_compiles(params: Any, constraint: tuple[str, str] | None) -> None:
    assert constraint_of(params) == constraint


class Verdict(Trials):
    def __init__(self, verdict: Exception | None) -> None:
        super().__init__("")
        self.verdict = verdict

    async def check(self, kind: str, text: str) -> None:
        if self.verdict:
            raise self.verdict


async def test_a_request_whose_constraint_is_too_costly_does_not_reach_the_engine() -> None:
    added: list[Any] = []

    async def add_request(*args: Any, **kwargs: Any) -> str:
        added.append((args, kwargs))
        return "queue"

    params = sampling(regex="a")
    with pytest.raises(VLLMValidationError, match=TOO_COSTLY):
        await tried(add_request, Verdict(TooCostly("it takes long")))("1", "prompt", params)
    assert added == []
    assert await tried(add_request, Verdict(None))("1", "prompt", params, priority=1) == "queue"
    assert await tried(add_request, Verdict(TooCostly()))("2", "prompt", SamplingParams()) == "queue"
    assert added == [(("1", "prompt", params), {"priority": 1}), (("2", "prompt", SamplingParams()), {})]
