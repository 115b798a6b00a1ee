from benchmarks.hops import calls_of_a_request, calls_of_a_tick

MOST_FOR_A_REQUEST, MOST_FOR_A_TICK = 40, 30
"""Files that a reader may have to enter. Before raising one, hand over the value that the new file is entered for."""


async def test_an_answered_request_enters_more_files_with_an_experiment() -> None:
    without, with_one = await calls_of_a_request("off"), await calls_of_a_request("on")
    assert without.keys() > {"exchange/handler.py", "exchange/stream.py", "dialects/openai/translations.py", "sse.py"}
    assert with_one.keys() > without.keys()
    assert len(with_one) <= MOST_FOR_A_REQUEST


async def test_a_tick_writes_looks_and_acts() -> None:
    calls = await calls_of_a_tick()
    folders = {path.rpartition("/")[0] for path in calls}
    assert folders > {f"experiments/{name}" for name in ("storage", "analysis", "statistics", "automation")}
    assert len(calls) <= MOST_FOR_A_TICK
