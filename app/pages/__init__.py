"""The console's pages: a static shell, whose scripts read `/api` with the visitor's key."""
