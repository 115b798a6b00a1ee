"""What requests without a value, or without an end, allow for."""

from tests.support.experiments.world import DAY_S, START, World, analysis_of, config


def test_streams_that_go_on_may_have_had_few_tokens_in_ten_minutes() -> None:
    """Seven of green's 3,000, whose others are 15 % faster, would make its rate the lower one."""
    world = World(slower=1 / 1.15, hangs=0.001, error_rate=(0.0, 0.0))
    rate = {"primary": [{"metric": "tokens_per_second", "minimal_effect": 0.05}], "strata": [], "guardrails": []}
    analysis = analysis_of(world, config(**rate))
    world.requests(6000).tell(analysis)
    analysis.tick(START + 1.1 * DAY_S)
    report = analysis.report(START + 1.1 * DAY_S)
    (tokens,) = report.primary
    assert report.running["green"] == 7
    assert (tokens.verdict, report.decision) == ("undecided", "keep_going")
    assert tokens.effect.estimate is not None
    assert tokens.effect.estimate > 0.14
    assert tokens.effect.lower is not None
    assert tokens.effect.lower < 0.05, "each had the least tokens in the longest time"
