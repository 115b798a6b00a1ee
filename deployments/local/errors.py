class LaunchError(Exception):
    """A local run cannot start or go on. The text says why and what to do; it may have several lines."""


class NotRunning(LaunchError):
    """No application runs from this directory."""
