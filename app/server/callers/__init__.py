"""Who is calling, what they may use, and what they have used: `/api/me` and `/api/callers`."""
