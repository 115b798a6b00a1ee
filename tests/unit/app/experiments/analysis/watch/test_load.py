import numpy as np

from app.experiments.analysis.traffic import Load

BLUE, GREEN = 0, 1


def add(load: Load, arm: int, in_flight: int, rows: int = 10) -> None:
    load.add(np.full(rows, in_flight, np.uint16), np.full(rows, arm, np.int8))


def test_arms_are_compared_by_requests_in_flight_per_replica() -> None:
    load = Load(["blue", "green"], ["blue", "green"])
    add(load, BLUE, 4)
    add(load, GREEN, 2)
    load.observe(3, {"blue": 4, "green": 1})
    assert load.in_flight == {"blue": 12.0, "green": 6.0}
    assert load.replicas == {"blue": 4.0, "green": 1.0}
    assert load.warnings() == [
        "The arms' loads differ: requests in flight per replica were 3.0 on blue (replicas: 4), "
        "6.0 on green (replicas: 1). Compare them as provisioned."
    ]


def test_as_many_requests_for_each_replica_are_no_difference() -> None:
    load = Load(["blue", "green"], ["blue", "green"])
    add(load, BLUE, 40)
    add(load, GREEN, 11)
    load.observe(1, {"blue": 4, "green": 1})
    assert load.warnings() == []


def test_replicas_that_come_and_go_count_by_the_requests_meanwhile() -> None:
    load = Load(["blue", "green"], ["blue", "green"])
    add(load, BLUE, 1, rows=30)
    load.observe(1, {"blue": 1, "green": 1})
    for _ in range(5):
        load.observe(1, {"blue": 9, "green": 9})
    load.observe(2, {"blue": 3, "green": 2})
    add(load, BLUE, 1, rows=10)
    add(load, GREEN, 1)
    assert load.replicas == {"blue": 1.5, "green": 2.0}
    assert load.in_flight == {"blue": 1.25, "green": 2.0}


def test_without_known_replicas_deployments_are_compared() -> None:
    load = Load(["blue", "green"], ["blue", "green"])
    add(load, BLUE, 2)
    add(load, GREEN, 3)
    load.observe(1, None)
    assert load.warnings() == []
    add(load, GREEN, 5)
    assert load.replicas == {"blue": None, "green": None}
    assert load.warnings() == [
        "The arms' loads differ: requests in flight were 2.0 on blue, 4.0 on green, and their replicas are not known. "
        "Compare them as provisioned."
    ]


def test_labels_of_aa_share_controls_replicas() -> None:
    load = Load(["blue", "label"], ["blue", "blue"])
    add(load, BLUE, 2)
    add(load, GREEN, 2)
    load.observe(1, {"blue": 2})
    assert load.replicas == {"blue": 2.0, "label": 2.0}
