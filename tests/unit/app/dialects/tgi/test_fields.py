"""TGI's request fields: each one, valid, at its bounds and beyond; the sampling switch; where the profiles differ."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import parse as parse_config
from app.dialects.base import ParseContext, Request, ServingContext
from app.dialects.legacy import Call
from app.dialects.tgi.dialect import TGI
from app.errors import BadRequest, ClientError, Unprocessable
from tests.support.samples import CONFIG, CONTEXT, EXTENDED, MODEL, SERVED

DEPLOYED = ServingContext("blue", SERVED.settings, EXTENDED)
TGI_3 = ParseContext(parse_config({**CONFIG.model_dump(exclude_unset=True), "tgi": {"profile": "tgi"}}), Random(0))
GRAMMAR: Any = {"type": "json", "value": {"properties": {"a": {"type": "integer"}}}}


def parse(
    operation: str = "generate",
    *,
    inputs: Any = "hello",
    context: ParseContext = CONTEXT,
    agent: str = "",
    **fields: Any,
) -> Call:
    """`parameters` are the fields, or absent without any."""
    body = {"inputs": inputs, **({"parameters": fields} if fields else {})}
    headers = {"user-agent": agent}
    return TGI().parse(operation, Request("POST", "/x", json.dumps(body).encode(), headers=headers), context)


def question(operation: str = "generate", **fields: Any) -> dict[str, Any]:
    """What the engine is asked."""
    call = parse(operation, **fields)
    assert call.fit is not None
    return call.fit(call.body, DEPLOYED)


def refused(operation: str = "generate", **fields: Any) -> str:
    with pytest.raises(Unprocessable) as raised:
        question(operation, **fields)
    return raised.value.message


def test_the_least_request() -> None:
    call = parse()
    assert (call.task, call.path, call.model, call.stream) == ("completions", "/v1/completions", None, False)
    assert question() == {
        "prompt": MODEL.encode("hello"),
        "max_tokens": 20,
        "temperature": 0.0,
        "n": 1,
        "stream": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def test_the_prompt_is_text_until_the_deployment_is_chosen() -> None:
    assert parse().body["prompt"] == "hello"


SENT: list[tuple[str, Any, Any]] = [
    *[("temperature", value, {"temperature": value}) for value in (0.001, 0.5, 2)],
    ("temperature", 2.5, {"temperature": 2.0, "vllm_xargs": {"temperature": 2.5}}),
    ("temperature", 1e30, {"temperature": 2.0, "vllm_xargs": {"temperature": 1e30}}),
    *[("top_k", value, {"top_k": value, "temperature": 1.0}) for value in (1, 2**31 - 1)],
    *[("top_p", value, {"top_p": value, "temperature": 1.0}) for value in (0.001, 0.999)],
    ("typical_p", 0.5, {"temperature": 1.0, "vllm_xargs": {"typical_p": 0.5}}),
    ("typical_p", 1, {"temperature": 0.0}),
    *[("repetition_penalty", value, {"repetition_penalty": value}) for value in (0.01, 1, 3)],
    *[("frequency_penalty", value, {"frequency_penalty": value}) for value in (-2, 0, 2)],
    ("do_sample", True, {"temperature": 1.0}),
    ("do_sample", False, {"temperature": 0.0}),
    *[("max_new_tokens", value, {"max_tokens": value}) for value in (1, 99 - len(MODEL.encode("hello")))],
    ("stop", ["a", "b", "c", "d"], {"stop": ["a", "b", "c", "d"], "include_stop_str_in_output": True}),
    ("stop", [], {}),
    ("watermark", True, {"vllm_xargs": {"watermark": True}, "temperature": 0.0}),
    ("watermark", False, {}),
    ("details", True, {"logprobs": 0}),
    ("decoder_input_details", True, {"logprobs": 0, "prompt_logprobs": 0}),
    ("top_n_tokens", 0, {}),
    ("grammar", GRAMMAR, {"structured_outputs": {"json": {"type": "object", **GRAMMAR["value"]}}}),
    ("grammar", {"type": "regex", "value": "[ab]+"}, {"structured_outputs": {"regex": "[ab]+"}}),
    ("truncate", 99, {"prompt": MODEL.encode("hello")}),
    ("truncate", 1, {"prompt": MODEL.encode("hello")[-1:]}),
    ("return_full_text", True, {}),
]


@pytest.mark.parametrize(("field", "value", "sent"), SENT)
@pytest.mark.parametrize("operation", ["generate", "root", "invocations"])
def test_a_valid_field_reaches_the_engine(operation: str, field: str, value: Any, sent: dict[str, Any]) -> None:
    asked = question(operation, **{field: value})
    assert {**asked, **sent} == asked
    assert set(asked) - set(question(operation)) - set(sent) <= {"seed"}


def test_details_may_have_the_likeliest_tokens() -> None:
    assert question(details=True, top_n_tokens=5)["logprobs"] == 5


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": json.dumps(GRAMMAR["value"])},
        {"type": "json_object", "value": GRAMMAR["value"]},
        {"type": "json_schema", "value": {"name": "n", "schema": GRAMMAR["value"]}},
        {"type": "json_schema", "value": {"schema": {"type": "object", **GRAMMAR["value"]}}},
    ],
)
def test_a_grammar_has_several_spellings(grammar: Any) -> None:
    assert question(grammar=grammar)["structured_outputs"] == {"json": {"type": "object", **GRAMMAR["value"]}}


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 0}, "`best_of` must be > 0 and <= 2. Given: 0"),
    ({"best_of": 3, "do_sample": True}, "`best_of` must be > 0 and <= 2. Given: 3"),
    ({"best_of": 2}, "you must use sampling when `best_of` is > 1"),
    ({"best_of": 2, "do_sample": False, "temperature": 0.5}, "you must use sampling when `best_of` is > 1"),
    ({"best_of": 2, "do_sample": True, "seed": 1}, "`seed` must not be set when `best_of` > 1"),
    *[({"temperature": value}, "`temperature` must be strictly positive") for value in (0, -1)],
    *[({"repetition_penalty": value}, "`repetition_penalty` must be strictly positive") for value in (0, -0.1)],
    *[({"frequency_penalty": value}, "`frequency_penalty` must be >= -2.0 and <= 2.0") for value in (-2.1, 2.1)],
    *[({"top_p": value}, "`top_p` must be > 0.0 and < 1.0") for value in (0, 1, 1.0, -1, 2)],
    *[({"typical_p": value}, "`typical_p` must be > 0.0 and < 1.0") for value in (0, -1, 1.1)],
    *[({"top_k": value}, "`top_k` must be strictly positive") for value in (0, -5)],
    ({"top_k": 2**31}, "`top_k` must be <= 2147483647. Given: 2147483648"),
    *[({"max_new_tokens": value}, "`max_new_tokens` must be strictly positive") for value in (0, -5)],
    ({"max_new_tokens": 2**32}, "`max_new_tokens` must be <= 4294967295. Given: 4294967296"),
    ({"stop": list("abcde")}, "`stop` supports up to 4 stop sequences. Given: 5"),
    ({"stop": [""]}, "`stop` must not hold an empty stop sequence"),
    *[({"top_n_tokens": n}, f"`top_n_tokens` must be >= 0 and <= 5. Given: {n}") for n in (-1, 6)],
    *[({"truncate": n}, f"`truncate` must be strictly positive and less than 99. Given: {n}") for n in (0, -1, 100)],
    ({"seed": 2**64}, f"`seed` must be > 0 and <= {2**64 - 1}. Given: {2**64}"),
    ({"seed": -1}, f"`seed` must be > 0 and <= {2**64 - 1}. Given: -1"),
    ({"grammar": {"type": "json", "value": {}}}, "grammar is not valid: Grammar must have a 'properties' field"),
    ({"grammar": {"type": "json", "value": []}}, "grammar is not valid: Grammar must have a 'properties' field"),
    ({"grammar": {"type": "regex", "value": ""}}, "grammar is not valid: the value of a regex must be a string"),
    ({"grammar": {"type": "regex", "value": {}}}, "grammar is not valid: the value of a regex must be a string"),
    ({"adapter_id": "mine"}, "`adapter_id` mine is not available"),
]


@pytest.mark.parametrize(("fields", "text"), BROKEN)
@pytest.mark.parametrize("operation", ["generate", "root"])
def test_a_broken_rule_is_told_in_tgis_words(operation: str, fields: dict[str, Any], text: str) -> None:
    assert refused(operation, **fields) == text


def test_a_grammar_that_is_no_json_is_refused() -> None:
    assert refused(grammar={"type": "json", "value": "{"}).startswith("grammar is not valid: ")


@pytest.mark.parametrize("operation", ["generate_stream"])
def test_what_a_stream_cannot_do(operation: str) -> None:
    assert refused(operation, best_of=2, do_sample=True) == "`best_of` != 1 is not supported when streaming tokens"
    told = refused(operation, decoder_input_details=True)
    assert told == "`decoder_input_details` == true is not supported when streaming tokens"
    assert question(operation)["logprobs"] == 0


def test_the_lengths_are_counted_in_tokens() -> None:
    prompt = MODEL.encode("hello")
    assert refused(max_new_tokens=100) == (
        "`inputs` tokens + `max_new_tokens` must be <= 100. "
        f"Given: {len(prompt)} `inputs` tokens and 100 `max_new_tokens`"
    )
    long = "日" * 100
    assert refused(inputs=long, details=True) == (
        f"`inputs` must have less than 99 tokens. Given: {len(MODEL.encode(long))}"
    )
    assert question(inputs=long, truncate=99)["max_tokens"] == 1
    assert question(inputs=long, truncate=90)["prompt"] == MODEL.encode(long)[-90:]


def test_inputs_have_a_length() -> None:
    assert refused(inputs="") == "`inputs` cannot be empty"
    assert refused(inputs="x" * (512 * 1024 + 1)) == "`inputs` must have at most 524288 characters. Given: 524289"
    assert question(inputs="x" * 512 * 1024, truncate=3)["prompt"] == MODEL.encode("xxxxxx")[-3:]


WRONG_TYPES: list[tuple[str, Any]] = [
    *[(name, "1") for name in ("temperature", "top_k", "seed", "max_new_tokens", "details", "do_sample", "watermark")],
    *[(name, 1.5) for name in ("top_k", "seed", "max_new_tokens", "truncate", "best_of", "top_n_tokens")],
    *[(name, True) for name in ("temperature", "top_k", "seed", "adapter_id")],
    ("details", 1),
    ("stop", "a"),
    ("stop", [1]),
    ("grammar", "json"),
    ("grammar", {"type": "bnf", "value": ""}),
    ("grammar", {"type": "json"}),
]


@pytest.mark.parametrize(("field", "value"), WRONG_TYPES)
def test_a_wrong_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(**{field: value})
    assert (raised.value.param or "").startswith(f"parameters.{field}")
    assert raised.value.message.startswith(f"`parameters.{field}")


@pytest.mark.parametrize(("body", "param"), [({"inputs": 5}, "inputs"), ({}, "inputs"), ({"inputs": ["a"]}, "inputs")])
def test_inputs_is_a_string(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        TGI().parse("root", Request("POST", "/", json.dumps(body).encode()), CONTEXT)
    assert raised.value.param == param


def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    nothing: Any = dict.fromkeys(("temperature", "seed", "stop", "grammar", "details", "do_sample", "best_of"))
    assert question(**nothing, future_field=1) == question()
    body = {"inputs": "hello", "parameters": None, "stream": None, "model": "x"}
    call = TGI().parse("root", Request("POST", "/", json.dumps(body).encode()), CONTEXT)
    assert not call.stream


# What the text-generation package sends, whatever its user set.
EVERY_FIELD: dict[str, Any] = {
    "do_sample": False,
    "max_new_tokens": 20,
    "repetition_penalty": None,
    "frequency_penalty": None,
    "return_full_text": False,
    "stop": [],
    "seed": None,
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "truncate": None,
    "typical_p": None,
    "best_of": None,
    "watermark": False,
    "details": True,
    "decoder_input_details": False,
    "top_n_tokens": None,
    "grammar": None,
}


@pytest.mark.parametrize(
    ("fields", "samples"),
    [
        pytest.param({"max_new_tokens": 5}, False, id="nothing set"),
        pytest.param({"temperature": 0.5}, True, id="temperature"),
        pytest.param({"temperature": 1.0}, False, id="temperature 1 is none"),
        pytest.param({"top_k": 5}, True, id="top_k"),
        pytest.param({"top_p": 0.5}, True, id="top_p"),
        pytest.param({"typical_p": 0.5}, True, id="typical_p"),
        pytest.param({"repetition_penalty": 2, "seed": 5}, False, id="penalties and seeds do not count"),
        pytest.param({"do_sample": True}, True, id="do_sample"),
        pytest.param({"do_sample": False, "temperature": 0.5, "top_k": 5, "top_p": 0.5}, False, id="false wins"),
        pytest.param({**EVERY_FIELD}, False, id="the client's own false"),
        pytest.param({**EVERY_FIELD, "temperature": 0.5}, True, id="the client's own false does not win"),
        pytest.param({**EVERY_FIELD, "temperature": 1.0, "best_of": 2}, True, id="best_of needs sampling"),
    ],
)
def test_the_sampling_switch(fields: dict[str, Any], samples: bool) -> None:
    asked = question("root", **fields)
    assert (asked["temperature"] > 0) is samples
    assert ("seed" in asked) is samples
    if not samples:
        assert not {"top_k", "top_p"} & set(asked)


def test_greedy_keeps_what_is_no_sampling() -> None:
    asked = question(do_sample=False, temperature=9, typical_p=0.5, watermark=True, repetition_penalty=1.2)
    assert (asked["temperature"], asked["repetition_penalty"]) == (0.0, 1.2)
    assert asked["vllm_xargs"] == {"watermark": True}


@pytest.mark.parametrize(
    ("seed", "sent"),
    [(1, 1), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 2, -2), (2**64 - 1, -(2**63))],
)
def test_every_unsigned_seed_is_one_of_the_engines(seed: int, sent: int) -> None:
    assert question(do_sample=True, seed=seed)["seed"] == sent


def test_absent_seeds_are_drawn() -> None:
    drawn = {question(do_sample=True)["seed"] for _ in range(20)}
    assert len(drawn) == 20
    assert all(0 < seed < 2**53 for seed in drawn)


@pytest.mark.parametrize(
    ("operation", "context", "agent", "fields", "fine"),
    [
        pytest.param("root", CONTEXT, "", {}, False, id="MindIE's"),
        pytest.param("root", TGI_3, "", {}, True, id="TGI's profile"),
        pytest.param("root", CONTEXT, "unknown/None; hf_hub/2.4.0", {}, True, id="Hugging Face's client"),
        pytest.param("root", CONTEXT, "", {"best_of": None}, True, id="a field of TGI's own"),
        pytest.param("generate", CONTEXT, "", {}, True, id="TGI's route"),
    ],
)
def test_seed_0_is_refused_in_mindies_words_only(
    operation: str, context: ParseContext, agent: str, fields: dict[str, Any], fine: bool
) -> None:
    if fine:
        assert question(operation, context=context, agent=agent, do_sample=True, seed=0, **fields)["seed"] == 0
    else:
        assert refused(operation, context=context, do_sample=True, seed=0).startswith("`seed` must be > 0")


def test_the_profiles_defaults() -> None:
    rest = 100 - len(MODEL.encode("hello"))
    assert (question()["max_tokens"], question(context=TGI_3)["max_tokens"]) == (20, rest)
    assert (question()["temperature"], question(context=TGI_3)["temperature"]) == (0.0, 1.0)
    assert question(context=TGI_3, details=False)["temperature"] == 0.0
    assert question(context=TGI_3, typical_p=0.9)["vllm_xargs"] == {"typical_p": 0.9}
    assert refused(context=TGI_3, typical_p=1) == "`typical_p` must be > 0.0 and < 1.0"


def test_a_default_length_that_does_not_fit_is_shortened() -> None:
    assert question(inputs="日" * 100, truncate=95)["max_tokens"] == 5


def test_an_adapter_is_a_deployment_of_the_endpoint() -> None:
    config = parse_config(
        {
            "endpoints": {"chat": {"tasks": ["completions"], "traffic": {"base": 100, "mine": 0}}},
            "deployments": {"base": {"app": "a", "model": "m"}, "mine": {"app": "a", "model": "lora"}},
            "defaults": {"completions": "chat"},
        }
    )
    assert parse(context=ParseContext(config, Random(0)), adapter_id="mine").deployment == "mine"
    assert parse(context=ParseContext(config, Random(0))).deployment is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
parameters = st.dictionaries(st.sampled_from(sorted(EVERY_FIELD)), json_values, max_size=6)


@given(
    operation=st.sampled_from(["root", "generate", "generate_stream", "invocations", "vertex", "tokenize"]),
    inputs=json_values | st.just("hello"),
    fields=parameters | json_values,
    stream=json_values,
)
def test_any_request_is_taken_or_refused_as_the_clients_fault(
    operation: str, inputs: Any, fields: Any, stream: Any
) -> None:
    body = {"inputs": inputs, "parameters": fields, "stream": stream}
    sent = {"instances": [body]} if operation == "vertex" else body
    try:
        call = TGI().parse(operation, Request("POST", "/", json.dumps(sent).encode()), CONTEXT)
        if call.fit is not None:
            call.fit(call.body, DEPLOYED)
    except ClientError as raised:
        error = raised
    else:
        return
    reply = TGI().render_error(error, operation, Request("POST", "/", json.dumps(sent).encode()))
    assert reply.status in (200, 400, 422)


PLAIN = ServingContext("blue", SERVED.settings, MODEL)
WITHOUT = ServingContext("blue", SERVED.settings, replace(EXTENDED, processors=frozenset({"watermark"})))


@pytest.mark.parametrize(
    ("served", "fields", "name"),
    [
        (PLAIN, {"watermark": True}, "watermark"),
        (PLAIN, {"typical_p": 0.5}, "typical_p"),
        (PLAIN, {"temperature": 2.5}, "temperature"),
        (WITHOUT, {"watermark": True, "typical_p": 0.5}, "typical_p"),
        (WITHOUT, {"temperature": 2.5}, "temperature"),
    ],
)
def test_what_the_deployment_would_leave_out_is_refused_by_name(
    served: ServingContext, fields: dict[str, Any], name: str
) -> None:
    call = parse(**fields)
    assert call.fit is not None
    with pytest.raises(Unprocessable, match=f"^`{name}`: deployment 'blue' ") as raised:
        call.fit(call.body, served)
    assert (raised.value.param, raised.value.value) == (f"parameters.{name}", fields[name])


@pytest.mark.parametrize("served", [PLAIN, WITHOUT])
@pytest.mark.parametrize(
    "fields", [{"watermark": False}, {"typical_p": 1}, {"temperature": 2}, {"do_sample": False, "typical_p": 0.5}]
)
def test_what_asks_for_no_processor_is_for_every_deployment(served: ServingContext, fields: dict[str, Any]) -> None:
    call = parse(**fields)
    assert call.fit is not None
    assert "vllm_xargs" not in call.fit(call.body, served)
