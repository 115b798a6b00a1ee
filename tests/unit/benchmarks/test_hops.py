from benchmarks.hops import calls_of_a_request


async def test_an_answered_request_enters_more_files_with_an_experiment() -> None:
    without, with_one = await calls_of_a_request("off"), await calls_of_a_request("on")
    assert without.keys() > {"exchange/handler.py", "exchange/forward.py", "dialects/openai/translations.py", "sse.py"}
    assert with_one.keys() > without.keys()
