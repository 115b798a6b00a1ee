"""Every metric of experiments and queues that a dashboard or an alert uses exists on a live router."""

import httpx

from app.experiments.contract.series import METRICS
from tests.router.experiments.conftest import LiveRig
from tests.router.experiments.test_hosts import traffic
from tests.support.processes.load import ask_all
from tests.support.processes.monitoring import WHERE_CONFIGURED, metrics_asked_for, metrics_in


async def test_every_metric_of_experiments_and_queues_is_there(live: LiveRig) -> None:
    live.chat_endpoint(admission={"max_concurrent": 1000})
    live.experiment(guardrails=[{"event": "error"}], ramp={"steps": [50]})
    await ask_all(live.url, traffic(150))
    await live.report_of(150)
    async with httpx.AsyncClient() as http:
        there = metrics_in((await http.get(f"{live.url}/metrics")).text)
    calls = metrics_asked_for() & {*METRICS, *WHERE_CONFIGURED}
    assert sorted(calls - there) == []
    assert len(calls) > 8
