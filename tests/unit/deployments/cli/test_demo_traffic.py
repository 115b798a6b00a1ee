"""The questions of `switchyard demo traffic`, their times and users."""

from collections import Counter
from itertools import islice

import pytest

from deployments.cli.demo_traffic import DemoTraffic, questions

PLAN = DemoTraffic(endpoint="chat", users=50, rate=4.0, seconds=500.0, max_tokens=8, seed=3)


def test_the_same_seed_asks_the_same_questions() -> None:
    assert list(islice(questions(PLAN), 50)) == list(islice(questions(PLAN), 50))


def test_questions_come_at_the_rate_until_the_time_is_over() -> None:
    calls = list(questions(PLAN))
    assert sum(question.after_s for question in calls) <= PLAN.seconds
    assert len(calls) == pytest.approx(PLAN.rate * PLAN.seconds, rel=0.1)


def test_users_differ_in_how_often_they_ask_and_prompts_in_length() -> None:
    calls = list(questions(PLAN))
    per_user = Counter(question.session for question in calls)
    assert len(per_user) > PLAN.users / 2
    assert max(per_user.values()) > 5 * min(per_user.values())
    assert max(len(question.prompt) for question in calls) > 5 * min(len(question.prompt) for question in calls)
