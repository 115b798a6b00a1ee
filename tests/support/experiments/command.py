"""A router with a running experiment, against which `switchyard experiments` runs."""

from typing import Any

import pytest

from app.exposures.controller_client import ControllerClient
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from deployments.cli.main import main
from tests.support.experiments.reader import GREEN_FLOAT32

NAME = "green-float32"


class ExperimentsCommand:
    """`url` is set once the router is served."""

    def __init__(
        self, controller: ControllerClient, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.router = Router(RuntimeEnvironment(), controller=controller)
        endpoints = config["endpoints"]
        chat = {**endpoints["chat"], "traffic": {"blue": 60, "green": 40}, "sticky": {"by": "conversation"}}
        section = {**GREEN_FLOAT32, "control": "blue", "treatments": ["green"]}
        self.router.reconfigure({**config, "endpoints": {**endpoints, "chat": chat}, "experiments": {NAME: section}})
        self.url, self._capsys = "", capsys

    def switchyard(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        code = main(["experiments", *arguments, "--url", self.url])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err
