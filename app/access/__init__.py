"""Authentication and authorization: API keys, OIDC tokens, and what each caller may use."""
