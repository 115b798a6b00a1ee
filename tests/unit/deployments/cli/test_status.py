"""The table of `switchyard status`."""

from deployments.cli.status import Application, Deployment, Endpoint, Status


def test_deployments_with_one_application_show_its_replicas_as_common() -> None:
    status = Status(
        url="http://here",
        ready=True,
        endpoints={"chat": Endpoint(["chat"], True, {"base": 0, "fr": 100, "other": 0})},
        deployments={
            "base": Deployment("llama", True, "llama"),
            "fr": Deployment("french", True, "llama", "base"),
            "other": Deployment("mistral", True, "mistral"),
        },
        applications={"llama": Application("RUNNING", 2, 3), "mistral": Application("RUNNING", 1, 1)},
    )
    rows = [line.split() for line in status.table().splitlines() if " % " in line]
    assert [row[-len(end) :] for row, end in zip(rows, ENDS, strict=True)] == ENDS


ENDS = [
    ["2/3", "of", "llama", "llama"],
    ["2/3", "of", "llama", "french", "(adapts", "base)"],
    ["healthy", "1/1", "mistral"],
]
