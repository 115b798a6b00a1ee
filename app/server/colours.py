"""The colours in which the console draws deployments. Pure."""

from collections.abc import Mapping

from app.config.schema import Config

COLOURS = 6
"""The colours of the console's style sheet: `--arm-1` to `--arm-6`."""


def deployment_colours(config: Config) -> Mapping[str, int]:
    """The number of each deployment's colour, which is the same wherever the deployment is shown.

    In the file's order each has the next colour, but for those of earlier ones that share an endpoint with it: what is
    drawn side by side is told apart, as long as there are colours.
    """
    beside: dict[str, set[str]] = {name: set() for name in config.deployments}
    for endpoint in config.endpoints.values():
        for name in endpoint.traffic:
            beside[name].update(endpoint.traffic)
    colours: dict[str, int] = {}
    for place, name in enumerate(config.deployments):
        taken = {colours[other] for other in beside[name] if other in colours}
        order = [(place + step) % COLOURS + 1 for step in range(COLOURS)]
        colours[name] = next((colour for colour in order if colour not in taken), order[0])
    return colours
