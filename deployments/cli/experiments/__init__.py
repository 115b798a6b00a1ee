"""`switchyard experiments`: a running server's experiments, or those of a ledger directory."""
