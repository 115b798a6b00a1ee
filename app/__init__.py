"""The router. It imports neither Ray nor vLLM; `deployments` hosts it.

Seven layers. A module imports from its own layer's packages as listed and from the layers below, never upwards
(`tests/unit/test_layers.py`):

    1  aio  answer_cache  errors  internal_api  internal_keys  long_json  markdown  private_files  sse
                                                            what everything shares
    2  config  engine                                       what the YAML may say; vLLM's formats as pure functions
    3  activity  control_plane  exposures  limits  mirror  request_recordings  routing  telemetry  upstream
                                                            what one request needs besides its dialect
    4  access  dialects  experiments                        who is calling; each provider's wire format; verdicts
    5  exchange                                             one request's journey: start at `exchange/handler.py`
    6  pages  server                                        the console's files; the ASGI application
    7  `deployments`                                        Ray Serve, the engines, the command line
"""
