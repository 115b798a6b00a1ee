"""Durable data of the controller of experiments: Parquet segments, a journal, small states. Start at `store.py`."""
