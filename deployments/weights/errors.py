class WeightsError(Exception):
    """A model cannot be prepared; the text says what is missing and what to do."""
