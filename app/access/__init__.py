"""Who is calling, and what they may use.

    headers -> guard.Access.caller -> Caller       before the body is read
                 ├── keys      API keys: made, kept as salted hashes, looked up (pure); keyfile reads them
                 └── tokens    an OpenID Connect issuer's JWTs: verified (pure); issuer fetches its keys
    Caller, config -> caller.must_use / visible    once it is known what is asked for

How much a caller may ask for is the business of `app.limits`. `python -m app.access create-key` makes keys.
"""
