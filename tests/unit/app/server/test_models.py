"""What is loaded where, as a document: sums, unknown values, and arguments that may be secrets."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.activity.board import MOST_STARTS, Board
from app.activity.report import ReplicaStart
from app.config.schema import Config, parse
from app.engine.card import EngineCard
from app.server.fleet import ApplicationState, Fleet, Replica
from app.server.models import HIDDEN, models_document, replica_starts, shown
from tests.support.processes.fake_fleet import MemoryFleet

SECRET = "hunter2-secret"


def config() -> Config:
    """`blue` and `adapter` share an application; `green` has one, and `far` is a server elsewhere."""
    return parse(
        {
            "endpoints": {
                "chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}, "fallback": ["far"]},
                "fine": {"tasks": ["chat"], "traffic": {"adapter": 100}},
            },
            "deployments": {
                "blue": {"app": "blue-app", "model": "base"},
                "adapter": {"app": "blue-app", "model": "lora"},
                "green": {"app": "green-app", "model": "m"},
                "far": {"url": "http://127.0.0.1:1", "model": "m"},
            },
        }
    )


def card(**fields: Any) -> EngineCard:
    known = {"vllm": "1.0", "ray": "2.0", "device": "cuda", "devices": 1, "arguments": {}, "ready_at": 100.0}
    return EngineCard(**{**known, **fields})


def applications(fleet: Fleet | None, cards: dict[str, EngineCard] | None = None) -> dict[str, Any]:
    document = models_document(config(), fleet, cards or {})
    assert [one["deployment"] for one in document["elsewhere"]] == ["far"]
    return {one["application"]: one for one in document["applications"]}


counts = st.none() | st.integers(0, 10**9)
said = st.none() | st.builds(
    card,
    running=counts,
    waiting=counts,
    kv_cache_use=st.none() | st.floats(0, 1),
    prefix_queries=counts,
    prefix_hits=counts,
    vllm=st.sampled_from(["1.0", "1.1"]),
    devices=st.integers(1, 8),
)
replicas = st.lists(st.tuples(st.sampled_from(["blue-app", "green-app", "other"]), said), max_size=8)


@given(replicas)
def test_every_sum_is_one_of_the_replicas_that_are_listed(found: list[tuple[str, EngineCard | None]]) -> None:
    fleet = Fleet([Replica(f"r{number}", app, "10.0.0.1") for number, (app, _) in enumerate(found)])
    cards = {f"r{number}": said for number, (_, said) in enumerate(found) if said is not None}
    for application in applications(fleet, cards).values():
        listed = application["replicas"]
        assert application["running_replicas"] == sum(not one["is_silent"] for one in listed)
        assert [one["is_silent"] for one in listed] == [one["id"] not in cards for one in listed]
        for name in ("running", "waiting", "prefix_queries", "prefix_hits"):
            known = [one[name] for one in listed if one[name] is not None]
            assert application[name] == (sum(known) if known else None)
        uses = [one["kv_cache_use"] for one in listed if one["kv_cache_use"] is not None]
        assert application["kv_cache_use"] == max(uses, default=None)
        # Every replica whose engine has answered is in exactly one group, and no other.
        grouped = [id for engine in application["engines"] for id in engine["replicas"]]
        assert sorted(grouped) == sorted(one["id"] for one in listed if one["id"] in cards)
        assert len(application["engines"]) == len({(cards[id].vllm, cards[id].devices) for id in grouped})


def test_an_application_lists_every_deployment_and_endpoint_that_it_serves() -> None:
    blue = applications(Fleet())["blue-app"]
    assert blue["deployments"] == [{"deployment": "blue", "model": "base"}, {"deployment": "adapter", "model": "lora"}]
    assert blue["endpoints"] == ["chat", "fine"]


def test_what_is_unknown_is_null_and_never_nought() -> None:
    unknown = applications(None)["blue-app"]
    figures = ("status", "source", "arguments", "running_replicas", "running", "waiting", "kv_cache_use", "prefix_hits")
    assert {unknown[name] for name in (*figures, "prefix_hit_rate")} == {None}
    none = applications(Fleet())["blue-app"]
    assert (none["running_replicas"], none["running"], none["replicas"]) == (0, None, [])
    silent = applications(Fleet([Replica("r", "blue-app", "")]))["blue-app"]["replicas"][0]
    assert {value for name, value in silent.items() if name not in ("id", "state", "is_silent")} == {None}


def test_a_start_takes_from_the_process_to_the_engine_and_is_unknown_where_clocks_disagree() -> None:
    fleet = Fleet([Replica("a", "blue-app", "n", "RUNNING", 58.5), Replica("b", "blue-app", "n", "RUNNING", 101.0)])
    replica = applications(fleet, {"a": card(), "b": card()})["blue-app"]["replicas"]
    assert [(one["started_at"], one["start_s"]) for one in replica] == [(58.5, 41.5), (None, None)]


async def test_the_starts_of_engines_are_those_that_are_known_to_have_run() -> None:
    engine = ApplicationState("RUNNING", "", {"llm_config": {}})
    source = MemoryFleet(Fleet(applications={"blue-app": engine, "router": ApplicationState("RUNNING", "", {})}))
    for replica in (
        Replica("a", "blue-app", "n", "RUNNING", 58.5),
        Replica("known", "blue-app", "n", "RUNNING", 60.0),
        Replica("recovered", "blue-app", "n", "RUNNING", 101.0),
        Replica("silent", "blue-app", "n", "RUNNING", 60.0),
        Replica("starting", "blue-app", "n", "STARTING", 60.0, can_answer=False),
        Replica("r", "router", "n", "RUNNING", 60.0),
    ):
        source.start(replica, lambda endpoints: b"")
        if replica.id != "silent":
            source.cards[replica.id] = card()
    stopping = Replica("stopping", "blue-app", "n", "STOPPING", 60.0, can_answer=False, has_time_to_stop=True)
    failed = Replica("failed", "blue-app", "n", "STOPPING", 60.0, can_answer=False)
    for replica in (stopping, failed):
        source.start(replica, lambda endpoints: b"")
    assert await replica_starts(source, {"known"}) == ([ReplicaStart("a", "blue-app", 58.5, 41.5)], ["stopping"])
    board = Board()
    assert board.starts(200.0) is None
    board.started([ReplicaStart(f"r{at}", "blue-app", float(at), took) for at, took in ((10, 9.0), (20, 5.0))], 100.0)
    board.started([ReplicaStart("r10", "blue-app", 10.0, 9.0), ReplicaStart("x", "other", 30.0, 1.0)], 101.0, ["r20"])
    again = Board()
    again.load(board.dump(), 102.0)
    for one in (board, again):
        starts = one.starts(200.0)
        blue = models_document(config(), Fleet(), {}, starts)["applications"][0]["starts"]
        known = {"since": 10.0, "count": 2, "median_s": 7.0, "longest_s": 9.0, "last_at": 20.0}
        assert blue == {**known, "gone": 2, "stopped": 1}
        left = Fleet(replicas=[Replica("r20", "blue-app", "n")])
        for fleet, counts in ((left, {"gone": 1, "stopped": 0}), (None, {"gone": None, "stopped": None})):
            assert models_document(config(), fleet, {}, starts)["applications"][0]["starts"] == {**known, **counts}
        green = models_document(config(), Fleet(), {}, starts)["applications"][1]["starts"]
        assert green == {**dict.fromkeys(known), "since": 10.0, "count": 0, "gone": 0, "stopped": 0}
    week = 7 * 86400
    board.started([ReplicaStart(f"n{number}", "blue-app", 50.0 + week, 1.0) for number in range(MOST_STARTS + 9)], week)
    listed = board.starts(200.0 + week)
    assert listed is not None
    assert (listed["applications"]["blue-app"]["count"], listed["since"]) == (MOST_STARTS, 200.0)


def test_the_arguments_of_the_file_are_shown_beside_the_engines_own() -> None:
    loading = {"model_id": "m", "model_source": "Qwen/Qwen3-8B"}
    engine = {"max_model_len": 4096, "dtype": "bfloat16", "hf_token": SECRET, "additional_config": {"key": SECRET}}
    state = ApplicationState("RUNNING", "", {"llm_config": {"model_loading_config": loading, "engine_kwargs": engine}})
    fleet = Fleet([Replica("r", "blue-app", "n")], applications={"blue-app": state})
    blue = applications(fleet, {"r": card(arguments={"max_model_len": 4096, "block_size": 16})})["blue-app"]
    assert blue["source"] == "Qwen/Qwen3-8B"
    assert blue["arguments"] == {
        "additional_config": HIDDEN,
        "dtype": "bfloat16",
        "hf_token": HIDDEN,
        "max_model_len": 4096,
    }
    assert blue["engines"][0]["arguments"] == {"block_size": 16, "max_model_len": 4096}
    assert SECRET not in json.dumps(blue)


names = st.sampled_from(
    """api_key hf_token model_loader_extra_config additional_config kv_transfer_config speculative_config
    otlp_traces_endpoint chat_template lora_modules hf_overrides ssl_keyfile middleware root_path""".split()
) | st.text(max_size=10).map(lambda text: f"x{text}")
secrets = st.recursive(
    st.just(SECRET) | st.just(f"https://me:{SECRET}@host/path"),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text(max_size=5), inner, min_size=1),
    max_leaves=5,
)


@given(names, secrets)
def test_no_text_of_an_argument_that_may_hold_a_secret_is_shown(name: str, value: Any) -> None:
    assert shown(name, value) == HIDDEN


@given(st.sampled_from(["model", "tokenizer", "served_model_name", "revision"]), st.sampled_from(["?sig=", "//me:"]))
def test_a_model_at_an_address_with_a_password_is_hidden(name: str, before: str) -> None:
    assert shown(name, f"https:{before}{SECRET}@host/model") == HIDDEN


def test_numbers_switches_vllms_words_and_models_are_shown() -> None:
    plain = {"max_num_seqs": 8, "enforce_eager": True, "seed": None, "cudagraph_capture_sizes": [1, 2], "dtype": "auto"}
    texts = {"model": "/models/qwen", "quantization": "fp8", "tool_call_parser": "hermes"}
    for name, value in (plain | texts).items():
        assert shown(name, value) == value
    assert shown("dtype", SECRET) == HIDDEN
    assert shown("api_key", 12345) == HIDDEN
