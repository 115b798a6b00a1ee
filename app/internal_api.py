ROUTER = "router"
"""The name of the router's application in `serve_config.yaml`."""

LOOPBACK_VARIABLE = "SWITCHYARD_LOOPBACK"
"""Set to 1 where Serve listens on the loopback interface alone, which a router in a replica cannot see for itself."""

APP_PREFIX = "/deployments/"
"""A model application's route is this and its name: the router finds it there."""

INTERNAL_KEY_HEADER = "x-switchyard-key"

INTERNAL_KEY_VARIABLE = "SWITCHYARD_INTERNAL_KEY"
"""The key that the router shows and model applications ask for, and where both processes find it."""

EXTENDED_PATH = "/switchyard/completions"

MODEL_PATH = "/switchyard/model"
"""Where a model application tells about its model."""
