"""The console's pages: a static shell, with scripts that read `/api` with the visitor's key."""
