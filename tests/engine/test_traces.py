"""vLLM's spans join the router's: it reads the context that the router sends, with the installed vLLM's own code."""

import json
import subprocess
import sys

import pytest

from app.telemetry.request_trace import SAMPLED, headers_of
from tests.support.telemetry.otlp_receiver import receiving

pytestmark = pytest.mark.real

TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7

# In a process of its own: importing vLLM takes seconds, and its tracer is the process's. What its server does with a
# request's headers, and its engine at a request's end (`OutputProcessor.do_tracing`).
ENGINE = """
import json, sys
from vllm.tracing import SpanKind, extract_trace_context, extract_trace_headers, init_tracer, instrument_manual
init_tracer("vllm.llm_engine", sys.argv[1])
for headers in json.loads(sys.argv[2]):
    context = extract_trace_context(extract_trace_headers(headers))
    instrument_manual("llm_request", start_time=1, context=context, kind=SpanKind.SERVER)
"""


def test_vllms_spans_are_children_of_the_routers_with_the_same_sampling() -> None:
    others = {"content-type": "application/json", "x-request-id": "r"}
    sampled = {**others, **headers_of(TRACE, PARENT, SAMPLED, "vendor=1")}
    unsampled = {**others, **headers_of(TRACE + 1, PARENT, 0)}
    with receiving() as (collector, url):
        subprocess.run(
            [sys.executable, "-c", ENGINE, f"{url}/v1/traces", json.dumps([sampled, unsampled, others])],
            check=True,
            capture_output=True,
            timeout=1200,
            env={
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                "OTEL_TRACES_SAMPLER": "parentbased_always_off",
            },
        )
    (span,) = [span for span in collector.spans if span.name == "llm_request"]
    assert (span.trace, span.parent, span.kind) == (f"{TRACE:032x}", f"{PARENT:016x}", "SERVER")
    assert span.wire.trace_state == "vendor=1"
