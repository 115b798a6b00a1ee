class WeightsError(Exception):
    """A model cannot be prepared; the message says what is missing and what to do."""
