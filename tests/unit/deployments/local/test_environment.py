"""Variables of the user's shell that a local run takes over, and those that stop it."""

import pytest

from deployments.local.environment import DEFAULTS, REQUIRED, require_closed
from deployments.local.processes import LaunchError


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in REQUIRED:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("value", ["", "disabled", "k8s", "0"])
def test_a_variable_that_would_open_a_run_stops_it_in_one_line(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name, (wanted, _) in REQUIRED.items():
        with monkeypatch.context() as shell:
            shell.setenv(name, "2" if value == wanted else value)
            with pytest.raises(LaunchError, match=f"^{name} is '.*', and not '{wanted}': .*unset {name}") as raised:
                require_closed()
            assert "\n" not in str(raised.value)


def test_a_shell_without_them_or_with_the_required_values_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    require_closed()
    for name, (wanted, _) in REQUIRED.items():
        monkeypatch.setenv(name, wanted.upper())
    require_closed()


def test_what_is_required_is_what_a_run_would_choose() -> None:
    for name, (wanted, _) in REQUIRED.items():
        assert DEFAULTS.get(name, "token") == wanted
