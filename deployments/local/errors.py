class LaunchError(Exception):
    """A local run cannot start or continue. The text gives the reason and the remedy; it may have several lines."""


class NotRunning(LaunchError):
    """This installation runs no application."""


class Unanswered(NotRunning):
    """A part of this installation's run does not answer. The text names the part and the reason, without a remedy."""
