"""What vLLM makes of the URLs of images, audio and video with the defaults of this project's engines."""

import json
import warnings
from typing import Any

import pytest
from vllm import envs
from vllm.multimodal.media.connector import MediaConnector

from app.engine.errors import NOT_FETCHED, engine_error, field_named_in

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
    from deployments.engine.application import ENGINE_KWARGS
    from deployments.engine.runtime_env import ENVIRONMENT

pytestmark = pytest.mark.real

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJ"
    "RU5ErkJggg=="
)
URLS = ["http://127.0.0.1:8265/x.png", "https://169.254.169.254/", "http://NONE.example/x", "http://[::1]/x"]


@pytest.fixture
def connector() -> MediaConnector:
    return MediaConnector(allowed_media_domains=ENGINE_KWARGS["allowed_media_domains"])


@pytest.mark.parametrize("url", URLS)
async def test_no_url_is_fetched_and_the_error_names_the_field(connector: MediaConnector, url: str) -> None:
    for fetch in (connector.fetch_image_async, connector.fetch_audio_async, connector.fetch_video_async):
        with pytest.raises(ValueError, match="allowed domains") as refused:
            await fetch(url)
    error: dict[str, Any] = {"message": str(refused.value), "type": "BadRequestError", "param": None, "code": 400}
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    ours = engine_error(json.dumps({"error": error}).encode(), 400)
    assert ours.message.startswith(NOT_FETCHED)
    assert "none.invalid" not in ours.message
    assert field_named_in(ours.message, body) == "messages[0].content[0].image_url.url"


async def test_a_data_url_is_read(connector: MediaConnector) -> None:
    assert (await connector.fetch_image_async(PIXEL)) is not None


async def test_a_file_of_the_engine_is_not_read(connector: MediaConnector) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        await connector.fetch_image_async("file:///etc/hostname")


def test_redirects_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert envs.VLLM_MEDIA_URL_ALLOW_REDIRECTS is False
