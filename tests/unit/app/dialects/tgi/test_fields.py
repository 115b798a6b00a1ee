"""TGI's request fields: valid values, bounds, the sampling switch, and the profiles' differences."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import parse as parse_config
from app.dialects.base import Call, ParseContext, Request, ServingContext
from app.dialects.tgi.dialect import TGI
from app.errors import BadRequest, ClientError, Unprocessable
from tests.support.clients.dialect_calls import engine_request, lookups
from tests.support.clients.samples import CONFIG, CONTEXT, EXTENDED, MODEL, SERVED

SERVING = ServingContext("blue", SERVED.settings, EXTENDED)
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
    """Parses a request whose `parameters` are these fields; without fields the key is absent."""
    body = {"inputs": inputs, **({"parameters": fields} if fields else {})}
    headers = {"user-agent": agent}
    return TGI().parse(operation, Request("POST", "/x", json.dumps(body).encode(), headers=headers), context)


def engine_body(operation: str = "generate", **fields: Any) -> Any:
    return engine_request(parse(operation, **fields), SERVING).body


def rejection(operation: str = "generate", **fields: Any) -> str:
    """The error's message."""
    with pytest.raises(Unprocessable) as raised:
        engine_body(operation, **fields)
    return raised.value.message


def test_a_minimal_request_gets_the_defaults() -> None:
    call = parse()
    assert (call.task, call.model, call.translation.stream) == ("completions", None, False)
    assert engine_request(call, SERVING).path == "/v1/completions"
    assert engine_body() == {
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
    *[("top_k", value, {"top_k": value, "temperature": 1.0}) for value in (1, MODEL.vocab_size - 1)],
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


def test_only_mindies_profile_bounds_top_k_by_the_vocabulary() -> None:
    size = MODEL.vocab_size
    assert rejection(top_k=size) == f"`top_k` must be < {size}, the size of the vocabulary. Given: {size}"
    assert engine_body(context=TGI_3, top_k=2**31 - 1)["top_k"] == 2**31 - 1


@pytest.mark.parametrize(("field", "value", "sent"), SENT)
@pytest.mark.parametrize("operation", ["generate", "root", "invocations"])
def test_a_valid_field_reaches_the_engine(operation: str, field: str, value: Any, sent: dict[str, Any]) -> None:
    body = engine_body(operation, **{field: value})
    assert {**body, **sent} == body
    assert set(body) - set(engine_body(operation)) - set(sent) <= {"seed"}


def test_details_can_have_top_tokens() -> None:
    assert engine_body(details=True, top_n_tokens=5)["logprobs"] == 5


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
    assert engine_body(grammar=grammar)["structured_outputs"] == {"json": {"type": "object", **GRAMMAR["value"]}}


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
def test_a_broken_rule_is_rejected_with_tgis_text(operation: str, fields: dict[str, Any], text: str) -> None:
    assert rejection(operation, **fields) == text


def test_a_grammar_that_is_not_json_is_rejected() -> None:
    assert rejection(grammar={"type": "json", "value": "{"}).startswith("grammar is not valid: ")


@pytest.mark.parametrize("operation", ["generate_stream"])
def test_a_stream_cannot_have_candidates_or_prompt_details(operation: str) -> None:
    assert rejection(operation, best_of=2, do_sample=True) == "`best_of` != 1 is not supported when streaming tokens"
    text = rejection(operation, decoder_input_details=True)
    assert text == "`decoder_input_details` == true is not supported when streaming tokens"
    assert engine_body(operation)["logprobs"] == 0


def test_lengths_are_limited_in_tokens() -> None:
    prompt = MODEL.encode("hello")
    assert rejection(max_new_tokens=100) == (
        "`inputs` tokens + `max_new_tokens` must be <= 100. "
        f"Given: {len(prompt)} `inputs` tokens and 100 `max_new_tokens`"
    )
    long = "日" * 100
    assert rejection(inputs=long, details=True) == (
        f"`inputs` must have less than 99 tokens. Given: {len(MODEL.encode(long))}"
    )
    assert engine_body(inputs=long, truncate=99)["max_tokens"] == 1
    assert engine_body(inputs=long, truncate=90)["prompt"] == MODEL.encode(long)[-90:]


def test_inputs_are_limited_in_characters() -> None:
    assert rejection(inputs="") == "`inputs` cannot be empty"
    most = 256 * 1024
    assert rejection(inputs="x" * (most + 1)) == f"`inputs` must have at most {most} characters. Given: {most + 1}"
    long = "x " * (64 * 1024)
    assert engine_body(inputs=long, truncate=3)["prompt"] == MODEL.encode(long[-100:])[-3:]


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
def test_a_wrong_type_is_rejected_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(**{field: value})
    assert (raised.value.param or "").startswith(f"parameters.{field}")
    assert raised.value.message.startswith(f"`parameters.{field}")


@pytest.mark.parametrize(("body", "param"), [({"inputs": 5}, "inputs"), ({}, "inputs"), ({"inputs": ["a"]}, "inputs")])
def test_inputs_must_be_a_string(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        TGI().parse("root", Request("POST", "/", json.dumps(body).encode()), CONTEXT)
    assert raised.value.param == param


def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    nothing: Any = dict.fromkeys(("temperature", "seed", "stop", "grammar", "details", "do_sample", "best_of"))
    assert engine_body(**nothing, future_field=1) == engine_body()
    body = {"inputs": "hello", "parameters": None, "stream": None, "model": "x"}
    call = TGI().parse("root", Request("POST", "/", json.dumps(body).encode()), CONTEXT)
    assert not call.translation.stream


# Sent by the text-generation package with every request.
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
        pytest.param({"repetition_penalty": 2, "seed": 5}, False, id="penalties and seeds do not switch"),
        pytest.param({"do_sample": True}, True, id="do_sample"),
        pytest.param({"do_sample": False, "temperature": 0.5, "top_k": 5, "top_p": 0.5}, False, id="false wins"),
        pytest.param({**EVERY_FIELD}, False, id="the client's own false"),
        pytest.param({**EVERY_FIELD, "temperature": 0.5}, True, id="the client's own false does not win"),
        pytest.param({**EVERY_FIELD, "temperature": 1.0, "best_of": 2}, True, id="best_of needs sampling"),
    ],
)
def test_the_sampling_switch(fields: dict[str, Any], samples: bool) -> None:
    body = engine_body("root", **fields)
    assert (body["temperature"] > 0) is samples
    assert ("seed" in body) is samples
    if not samples:
        assert not {"top_k", "top_p"} & set(body)


def test_greedy_decoding_keeps_penalties_and_the_watermark() -> None:
    body = engine_body(do_sample=False, temperature=9, typical_p=0.5, watermark=True, repetition_penalty=1.2)
    assert (body["temperature"], body["repetition_penalty"]) == (0.0, 1.2)
    assert body["vllm_xargs"] == {"watermark": True}


@pytest.mark.parametrize(
    ("seed", "sent"),
    [(1, 1), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 2, -2), (2**64 - 1, -(2**63))],
)
def test_every_unsigned_seed_maps_to_a_signed_one(seed: int, sent: int) -> None:
    assert engine_body(do_sample=True, seed=seed)["seed"] == sent


def test_absent_seeds_are_drawn() -> None:
    drawn = {engine_body(do_sample=True)["seed"] for _ in range(20)}
    assert len(drawn) == 20
    assert all(0 < seed < 2**53 for seed in drawn)


@pytest.mark.parametrize(
    ("operation", "context", "agent", "fields", "accepted"),
    [
        pytest.param("root", CONTEXT, "", {}, False, id="MindIE's"),
        pytest.param("root", TGI_3, "", {}, True, id="TGI's profile"),
        pytest.param("root", CONTEXT, "unknown/None; hf_hub/2.4.0", {}, True, id="Hugging Face's client"),
        pytest.param("root", CONTEXT, "", {"best_of": None}, True, id="a field that only TGI has"),
        pytest.param("generate", CONTEXT, "", {}, True, id="TGI's route"),
    ],
)
def test_seed_0_is_rejected_by_mindies_description_only(
    operation: str, context: ParseContext, agent: str, fields: dict[str, Any], accepted: bool
) -> None:
    if accepted:
        assert engine_body(operation, context=context, agent=agent, do_sample=True, seed=0, **fields)["seed"] == 0
    else:
        assert rejection(operation, context=context, do_sample=True, seed=0).startswith("`seed` must be > 0")


def test_defaults_depend_on_the_profile() -> None:
    rest = 100 - len(MODEL.encode("hello"))
    assert (engine_body()["max_tokens"], engine_body(context=TGI_3)["max_tokens"]) == (20, rest)
    assert (engine_body()["temperature"], engine_body(context=TGI_3)["temperature"]) == (0.0, 1.0)
    assert engine_body(context=TGI_3, details=False)["temperature"] == 0.0
    assert engine_body(context=TGI_3, typical_p=0.9)["vllm_xargs"] == {"typical_p": 0.9}
    assert rejection(context=TGI_3, typical_p=1) == "`typical_p` must be > 0.0 and < 1.0"


def test_a_default_length_that_does_not_fit_is_shortened() -> None:
    assert engine_body(inputs="日" * 100, truncate=95)["max_tokens"] == 5


def test_an_adapter_is_a_deployment_of_the_endpoint() -> None:
    config = parse_config(
        {
            "endpoints": {"chat": {"tasks": ["completions"], "traffic": {"base": 100, "mine": 0}}},
            "deployments": {"base": {"app": "a", "model": "m"}, "mine": {"app": "a", "model": "lora"}},
            "defaults": {"completions": "chat"},
        }
    )
    for name in ("mine", "lora"):
        assert parse(context=ParseContext(config, Random(0)), adapter_id=name).deployment == name
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
def test_any_request_is_accepted_or_rejected_as_a_client_error(
    operation: str, inputs: Any, fields: Any, stream: Any
) -> None:
    body = {"inputs": inputs, "parameters": fields, "stream": stream}
    sent = {"instances": [body]} if operation == "vertex" else body
    try:
        lookups(TGI().parse(operation, Request("POST", "/", json.dumps(sent).encode()), CONTEXT), SERVING)
    except ClientError as raised:
        error = raised
    else:
        return
    reply = TGI().render_error(error, operation, Request("POST", "/", json.dumps(sent).encode()))
    assert reply.status in (200, 400, 422)


PLAIN = ServingContext("blue", SERVED.settings, MODEL)
WITHOUT = ServingContext("blue", SERVED.settings, replace(EXTENDED, processors=frozenset({"watermark"})))


@pytest.mark.parametrize(
    ("serving", "fields", "name"),
    [
        (PLAIN, {"watermark": True}, "watermark"),
        (PLAIN, {"typical_p": 0.5}, "typical_p"),
        (PLAIN, {"temperature": 2.5}, "temperature"),
        (WITHOUT, {"watermark": True, "typical_p": 0.5}, "typical_p"),
        (WITHOUT, {"temperature": 2.5}, "temperature"),
    ],
)
def test_a_field_that_the_deployment_lacks_is_rejected_by_name(
    serving: ServingContext, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(Unprocessable, match=f"^`{name}`: deployment 'blue' ") as raised:
        engine_request(parse(**fields), serving)
    assert (raised.value.param, raised.value.value) == (f"parameters.{name}", fields[name])


@pytest.mark.parametrize("serving", [PLAIN, WITHOUT])
@pytest.mark.parametrize(
    "fields", [{"watermark": False}, {"typical_p": 1}, {"temperature": 2}, {"do_sample": False, "typical_p": 0.5}]
)
def test_values_that_need_no_processor_go_to_any_deployment(serving: ServingContext, fields: dict[str, Any]) -> None:
    assert "vllm_xargs" not in engine_request(parse(**fields), serving).body
