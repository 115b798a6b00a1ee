"""What a scrape reads: every request once, and histograms of no more than some endpoints."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from app.engine.output import Usage
from app.telemetry.logs import Record
from app.telemetry.metrics import OWN_HISTOGRAMS, TOGETHER, Telemetry

NAMES = [f"e{number}" for number in range(OWN_HISTOGRAMS + 20)]
REQUESTS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([200, 429]), st.integers(0, 10**9)), max_size=60)


def answered(telemetry: Telemetry, endpoint: str, status: int, tokens: int) -> None:
    record = Record("openai", "chat", "id", endpoint=endpoint, deployment=f"for-{endpoint}", status=status)
    record.usage = Usage(tokens, 1)
    telemetry.finish(record)


def scraped(text: bytes) -> dict[tuple[str, str, str], float]:
    """The values by sample's name, endpoint and `le`, summed over the other labels."""
    values: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            values[sample.name, sample.labels.get("endpoint", ""), sample.labels.get("le", "")] += sample.value
    return values


@given(configurations=st.lists(st.lists(st.sampled_from(NAMES), unique=True), max_size=3), requests=REQUESTS)
def test_every_request_is_in_one_histogram_and_the_bound_holds(
    configurations: list[list[str]], requests: list[tuple[str, int, int]]
) -> None:
    telemetry = Telemetry()
    for names in [*configurations, NAMES]:
        telemetry.show(names)
    for request in requests:
        answered(telemetry, *request)

    whole, name = scraped(telemetry.expose()), "gen_ai_client_token_usage_tokens"
    shown = {endpoint for metric, endpoint, _ in whole if metric == f"{name}_count"}
    assert len(shown - {TOGETHER}) <= OWN_HISTOGRAMS
    each = {endpoint: scraped(telemetry.expose([endpoint])) for endpoint in {endpoint for endpoint, _, _ in requests}}
    for kind, bound in {(metric.removeprefix(name), le) for metric, _, le in whole if metric.startswith(name)}:
        for endpoint, values in each.items():  # who sees only this endpoint reads its own histograms
            assert {label for _, label, _ in values} == {endpoint}
            if endpoint in shown:
                assert values[f"{name}{kind}", endpoint, bound] == whole[f"{name}{kind}", endpoint, bound]
        sharing = each.keys() - shown
        together = sum(each[endpoint][f"{name}{kind}", endpoint, bound] for endpoint in sharing)
        assert whole[f"{name}{kind}", TOGETHER, bound] == together
    for endpoint, count in Counter(endpoint for endpoint, _, _ in requests).items():
        assert whole["switchyard_requests_total", endpoint, ""] == count


def test_an_endpoint_keeps_its_histograms_when_the_configuration_changes() -> None:
    telemetry = Telemetry()
    telemetry.show(NAMES)
    answered(telemetry, NAMES[-1], 200, 1)
    telemetry.show(reversed(NAMES))
    answered(telemetry, NAMES[-1], 200, 1)
    answered(telemetry, NAMES[0], 200, 1)
    values = scraped(telemetry.expose())
    metric = "gen_ai_client_token_usage_tokens_count"
    assert (values[metric, TOGETHER, ""], values[metric, NAMES[0], ""]) == (4, 2)  # input and output
