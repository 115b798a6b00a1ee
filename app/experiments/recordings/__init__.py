"""Recordings of requests in the ledger's directory."""
