"""What the controller of experiments keeps for good: Parquet segments, a journal, small states. Start at `store.py`."""
