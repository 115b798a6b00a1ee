"""The table of `switchyard status`."""

from deployments.cli.status import ApplicationStatus, DeploymentStatus, EndpointStatus, Status


def test_deployments_with_one_application_show_its_replicas_as_common() -> None:
    status = Status(
        url="http://here",
        ready=True,
        endpoints={"chat": EndpointStatus(["chat"], True, {"base": 0, "fr": 100, "other": 0})},
        deployments={
            "base": DeploymentStatus("llama", True, "llama"),
            "fr": DeploymentStatus("french", True, "llama", "base"),
            "other": DeploymentStatus("mistral", True, "mistral"),
        },
        applications={"llama": ApplicationStatus("RUNNING", 2, 3), "mistral": ApplicationStatus("RUNNING", 1, 1)},
    )
    rows = [line.split() for line in status.table().splitlines() if " % " in line]
    assert [row[-len(end) :] for row, end in zip(rows, ENDS, strict=True)] == ENDS


ENDS = [
    ["2/3", "of", "llama", "llama"],
    ["2/3", "of", "llama", "french", "(adapts", "base)"],
    ["healthy", "1/1", "mistral"],
]
