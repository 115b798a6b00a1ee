"""The weights that running conversations follow after changes, as a router sees them."""

from collections.abc import Mapping
from typing import Any

from app.routing.rules import Earlier, InForce, in_force, same

BLUE, HALF, GREEN = {"blue": 100, "green": 0}, {"blue": 50, "green": 50}, {"blue": 0, "green": 100}
STOPPED = {"green": "blue"}


def after(before: InForce | None, weights: Mapping[str, int], *, now: float = 1000.0, **more: Any) -> InForce:
    given: dict[str, Any] = {"stops": {}, "listed": [], "pin_s": 60.0, **more}
    return in_force(before, weights, given.pop("stops"), given.pop("listed"), now=now, **given)


def test_a_new_router_follows_the_plans_earlier_weights() -> None:
    assert after(None, HALF) == InForce(HALF, {}, [])
    listed = [Earlier(BLUE, 999.0), Earlier(GREEN, 1001.0)]
    assert after(None, HALF, listed=listed).earlier == [Earlier(GREEN, 1001.0)], "expired weights are left out"


def test_a_change_by_a_file_is_seen_by_a_router_that_runs() -> None:
    running = after(None, BLUE)
    assert after(running, BLUE).earlier == []
    assert after(running, {"blue": 100}).earlier == [], "a deployment without a share counts as absent"
    changed = after(running, HALF)
    assert changed.earlier == [Earlier(BLUE, 1060.0)]
    assert after(changed, HALF, now=1030.0).earlier == [Earlier(BLUE, 1060.0)], "the same weights again are no change"
    assert after(changed, HALF, now=1060.0).earlier == []


def test_a_change_restarts_the_time_of_all_weights_still_followed() -> None:
    changed = after(after(None, BLUE), HALF)
    twice = after(changed, GREEN, now=1030.0)
    assert twice.earlier == [Earlier(BLUE, 1090.0), Earlier(HALF, 1090.0)]
    assert after(changed, GREEN, now=1061.0).earlier == [Earlier(HALF, 1121.0)]


def test_weights_of_the_plan_and_weights_that_were_seen_are_merged() -> None:
    running = after(None, BLUE)
    listed = [Earlier(BLUE, 1059.0)]
    assert after(running, HALF, listed=listed).earlier == [Earlier(BLUE, 1060.0)]
    by_file = after(running, HALF)
    then = after(by_file, GREEN, now=1010.0, listed=[Earlier(HALF, 1070.0)])
    assert then.earlier == [Earlier(BLUE, 1070.0), Earlier(HALF, 1070.0)], "the plan does not include the previous file"
    skipped = after(running, GREEN, listed=[Earlier(BLUE, 1060.0), Earlier(HALF, 1060.0)])
    assert [it.weights for it in skipped.earlier] == [BLUE, HALF], "a plan that this router never served"


def test_going_back_and_forth_keeps_each_weights_once() -> None:
    state = after(None, BLUE)
    for number in range(6):
        state = after(state, HALF if number % 2 == 0 else BLUE, now=1000.0 + number)
    assert [it.weights for it in state.earlier] == [BLUE, HALF]


def test_without_a_pinning_time_no_earlier_weights_are_followed() -> None:
    assert after(after(None, BLUE), HALF, pin_s=0.0).earlier == []


def test_a_stop_is_no_change_and_lifting_one_is() -> None:
    stopped = after(after(None, HALF), HALF, stops=STOPPED)
    assert (stopped.stops, stopped.earlier) == (STOPPED, [])
    assert after(stopped, HALF).earlier == [Earlier(HALF, 1060.0, STOPPED)], "moved conversations stay"
    assert after(stopped, BLUE, stops=STOPPED).earlier == [Earlier(HALF, 1060.0, STOPPED)]
    assert after(after(stopped, BLUE, stops=STOPPED), BLUE).earlier == [Earlier(HALF, 1060.0, STOPPED)]


def test_no_conversation_returns_to_a_stopped_deployment_when_the_plan_has_taken_over() -> None:
    stopped = after(after(None, HALF), HALF, stops=STOPPED)
    planned = after(stopped, BLUE, stops=STOPPED, listed=[Earlier(HALF, 1060.0)])
    lifted = after(planned, BLUE, listed=[Earlier(HALF, 1060.0)])
    assert lifted.earlier == [Earlier(HALF, 1060.0, STOPPED)]


def test_a_stop_after_a_change_is_kept_with_the_followed_weights() -> None:
    changed = after(after(None, HALF), GREEN)
    stopped = after(changed, GREEN, stops=STOPPED, now=1001.0)
    lifted = after(stopped, GREEN, now=1002.0)
    assert lifted.earlier == [Earlier(HALF, 1062.0, STOPPED), Earlier(GREEN, 1062.0, STOPPED)]


def test_weights_that_draw_the_same_are_equal() -> None:
    assert same({"a": 100}, {"a": 100, "b": 0})
    assert not same({"a": 99, "b": 1}, {"a": 100})


def test_a_withdrawal_is_remembered_when_the_plan_no_longer_has_it() -> None:
    planned = after(None, BLUE, listed=[Earlier(HALF, 1060.0)], withdrawn=STOPPED)
    assert planned.earlier == [Earlier(HALF, 1060.0, STOPPED)]
    assert after(planned, BLUE).earlier == [Earlier(HALF, 1060.0, STOPPED)]
    received = after(after(None, BLUE, listed=[Earlier(HALF, 1060.0)]), BLUE, listed=[Earlier(HALF, 1060.0, STOPPED)])
    assert received.earlier == [Earlier(HALF, 1060.0, STOPPED)], "also on a router that had not received it"


def test_a_conversation_that_was_moved_twice_is_where_the_second_stop_moved_it() -> None:
    moved = after(None, BLUE, listed=[Earlier(HALF, 1060.0, STOPPED)], withdrawn={"blue": "red"})
    assert moved.earlier[0].stops == {"green": "red", "blue": "red"}
