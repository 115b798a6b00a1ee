"""The audit log: every management call and every refused one, with its caller, its origin and what it changed."""
