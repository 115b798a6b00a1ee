"""What the dialects promise and vLLM's `/v1/completions` lacks: `POST /switchyard/completions`.

`request` is the body, `route` the way from it to vLLM's own completion server, whose answers it gives. That server asks
an engine; here it asks one of `engines` or `beams`, which ask vLLM's in their own way.
"""
