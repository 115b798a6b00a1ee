"""The router's side of experiments: one exposure for each request, in batches to the controller. No numpy here."""
