"""Pins go from one router to the others while they are valid, up to a bound."""

from app.experiments.controller import PinExchange
from app.exposures.wire import Pins

NOW, UNTIL = 1000.0, 2000.0


def pins(*conversations: int, deployment: str = "blue", endpoint: str = "chat", until: float = UNTIL) -> Pins:
    return Pins(endpoint, deployment, until, list(conversations))


def test_every_router_gets_the_others_pins_once_in_order() -> None:
    exchange = PinExchange()
    exchange.take("a", [pins(1, 2), pins(3, deployment="green")], NOW)
    exchange.take("b", [pins(4)], NOW)
    assert exchange.after(0, "b") == ([pins(1, 2), pins(3, deployment="green")], 4)
    assert exchange.after(0, "a") == ([pins(4)], 4)
    assert exchange.after(4, "a") == exchange.after(4, "b") == ([], 4)
    exchange.take("b", [pins(5)], NOW)
    assert exchange.after(4, "a") == ([pins(5)], 5)


def test_a_repeated_pin_is_passed_on_once_and_a_newer_one_counts() -> None:
    exchange = PinExchange()
    exchange.take("a", [pins(1)], NOW)
    exchange.take("a", [pins(1)], NOW)
    exchange.take("b", [pins(1)], NOW)
    assert exchange.after(0, "c") == ([pins(1)], 1)
    exchange.take("b", [pins(1, deployment="green")], NOW)
    assert exchange.after(1, "a") == exchange.after(0, "a") == ([pins(1, deployment="green")], 2)


def test_a_router_that_is_far_behind_reads_in_parts() -> None:
    exchange = PinExchange(most_at_once=2)
    exchange.take("a", [pins(1, 2, 3, 4, 5)], NOW)
    assert exchange.after(0, "b") == ([pins(1, 2)], 2)
    assert exchange.after(2, "b") == ([pins(3, 4)], 4)
    assert exchange.after(4, "b") == ([pins(5)], 5)
    assert exchange.after(0, "a") == ([], 2), "its own are skipped"


def test_beyond_the_bound_the_oldest_pins_are_dropped() -> None:
    exchange = PinExchange(most_kept=3)
    exchange.take("a", [pins(1, 2), pins(3, endpoint="other")], NOW)
    exchange.take("a", [pins(4)], NOW)
    assert exchange.after(0, "b") == ([pins(2, 4), pins(3, endpoint="other")], 4)


def test_an_endpoints_pins_end_together_at_the_latest_reported_time() -> None:
    exchange = PinExchange()
    exchange.take("a", [pins(1), pins(2, endpoint="other")], NOW)
    exchange.take("b", [pins(until=3000.0, deployment="")], NOW)
    exchange.take("b", [], UNTIL)
    assert len(exchange) == 1
    assert exchange.after(0, "c") == ([pins(1, until=3000.0)], 2)
    exchange.take("c", [pins(7, until=2500.0)], 2500.0)
    assert len(exchange) == 1, "pins that have already expired are not kept"
    exchange.take("c", [], 3000.0)
    assert (len(exchange), exchange.after(0, "c")) == (0, ([], 2))


def test_every_controller_has_another_id() -> None:
    assert PinExchange().id != PinExchange().id
