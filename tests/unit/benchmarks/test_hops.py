from benchmarks.hops import calls_of_a_request, calls_of_a_tick


async def test_an_answered_request_enters_more_files_with_an_experiment() -> None:
    without, with_one = await calls_of_a_request("off"), await calls_of_a_request("on")
    assert without.keys() > {"exchange/handler.py", "exchange/stream.py", "dialects/openai/translations.py", "sse.py"}
    assert with_one.keys() > without.keys()


async def test_a_tick_writes_looks_and_acts() -> None:
    folders = {path.rpartition("/")[0] for path in await calls_of_a_tick()}
    assert folders > {f"experiments/{name}" for name in ("storage", "analysis", "statistics", "automation")}
