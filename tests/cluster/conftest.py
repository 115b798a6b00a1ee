"""The cpu-demo overlay on a pod network of this machine: nodes, autoscaler, routers; engines that keep a given pace."""

import copy
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from deployments.draining import GRACE_S
from deployments.kubernetes.environment import DRAIN
from tests.support.cluster import manifest, memory, network
from tests.support.cluster.figures import Figures
from tests.support.cluster.lab import Cluster, Lab, lab
from tests.support.cluster.pods import Pod
from tests.support.kubernetes.overlays import rendered
from tests.support.processes.project import ROOT

ENGINES, ROUTERS = "engines", "cpu"
"""The groups of nodes."""

BLUE, GREEN = "smollm2-blue", "smollm2-green"
QUICK = {"upscale_delay_s": 2, "downscale_delay_s": 6, "look_back_period_s": 4, "metrics_interval_s": 1}
IDLE_S = 10
SUCCESSOR_S = 180

REASON = network.obstacle() or memory.obstacle()


ORDER = (
    "policies",
    "placement",
    "metrics",
    "scaling",
    "refusals",
    "disruptions",
    "continuation",
    "variants",
    "strangers",
    "memory",
    "keys",
    "second_release",
    "whole_cluster",
)
"""The order in which the files run: the last one takes the cluster down."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the files. Skips all tests where namespaces or control groups are not allowed, since there are no pods."""
    items.sort(key=lambda item: ORDER.index(item.path.stem.removeprefix("test_")))
    if REASON is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    """Shown at the end, and written into the document that SWITCHYARD_FIGURES names, if every test has passed."""
    found = Figures()
    yield found
    sys.stderr.write(f"\n{found.table()}\n")
    if (document := os.environ.get("SWITCHYARD_FIGURES")) and not request.session.testsfailed:
        found.write(ROOT / document)


@pytest.fixture(scope="session")
def the_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(rendered("cpu-demo"), tmp_path_factory.mktemp("lab")) as made:
        yield made


def served(made: Lab, **autoscaling: Any) -> dict[str, Any]:
    """The overlay's applications: its routers, and one engine with a given pace in place of the model."""
    document = yaml.safe_load(made.service_object()["spec"]["serveConfigV2"])
    applications = {application["name"]: application for application in document["applications"]}
    router, blue = applications["router"], applications[BLUE]
    router["deployments"][0]["autoscaling_config"] |= QUICK
    user_config = router["deployments"][0]["user_config"]
    user_config["endpoints"] = {"chat": {"tasks": ["chat"], "traffic": {BLUE: 100}}}
    user_config["defaults"] = {"chat": "chat"}
    user_config["deployments"] = {BLUE: user_config["deployments"][BLUE]}
    user_config["access"]["limits"]["default"] = {"requests_per_minute": 10**6}
    user_config["timeouts"] = {"idle_s": IDLE_S, "first_byte_s": 60}
    return {**document, "applications": [router, paced(blue, **autoscaling)]}


def paced(application: dict[str, Any], **autoscaling: Any) -> dict[str, Any]:
    """The application with the paced engine: placed as the model, one to a node, with quick decisions."""
    changed = copy.deepcopy(application)
    changed["import_path"] = "tests.support.cluster.engine_app:build"
    changed["args"]["llm_config"]["deployment_config"]["ray_actor_options"]["num_cpus"] = 2
    [engine] = changed["deployments"]
    engine["autoscaling_config"] |= {**QUICK, "target_ongoing_requests": 4, **autoscaling}
    engine["max_ongoing_requests"] = 64
    return changed


def at_work(cluster: Cluster) -> list[Pod]:
    """The pods with a replica of the engine, as an idle node may be there for a while."""
    return [pod for pod in cluster.kuberay.of(ENGINES) if pod.address in addresses(cluster)]


def addresses(cluster: Cluster) -> set[str]:
    """Those of the engine's replicas."""
    return {replica.address for replica in cluster.replicas(BLUE).values()}


def on_few_nodes(raycluster: dict[str, Any]) -> None:
    """The lab's changes of the RayCluster: empty nodes are removed early, and replicas on a node that is drained wait
    for their successors for a shorter time."""
    raycluster["spec"]["autoscalerOptions"]["idleTimeoutSeconds"] = 15
    for group in raycluster["spec"]["workerGroupSpecs"]:
        environment = manifest.ray_container(group)["env"]
        drain = next(entry for entry in environment if entry["name"] == DRAIN)
        drain["value"] = str(int(GRACE_S) + SUCCESSOR_S)


@pytest.fixture(scope="session")
def cluster(the_lab: Lab) -> Iterator[Cluster]:
    with the_lab.cluster("blue", on_few_nodes) as made:
        made.document = served(the_lab, min_replicas=1, max_replicas=2)
        made.apply(made.document)
        yield made
