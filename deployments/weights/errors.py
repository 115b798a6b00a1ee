class WeightsError(Exception):
    """A model cannot be prepared; the message states what is missing and the remedy."""
