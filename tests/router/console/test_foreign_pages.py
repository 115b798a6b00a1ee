"""Pages of someone else in the operator's own browser, without `access`: they move no traffic and read nothing."""

from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import Browser
from starlette.responses import HTMLResponse

from tests.router.console.conftest import Managed
from tests.support.processes.servers import serve
from tests.support.waiting import wait_until

PAGE = HTMLResponse("<!doctype html><title>A page</title><iframe name=hidden></iframe>")
ATTACKS = """async (router) => {
  const rollback = `${router}/api/endpoints/chat/traffic/rollback`, text = JSON.stringify({ generation: 0 });
  const chat = JSON.stringify({ model: "chat", messages: [{ role: "user", content: "free" }] });
  const change = { method: "PUT", headers: { "content-type": "application/json", "if-match": "*" } };
  const fetched = async (path, options) => {
    try {
      return (await fetch(path, options)).type;
    } catch (error) {
      return error.name;
    }
  };
  const submit = (action, enctype, name) => {
    const form = Object.assign(document.createElement("form"), { action, enctype, method: "post", target: "hidden" });
    form.append(Object.assign(document.createElement("input"), { name }));
    document.body.append(form);
    return new Promise((done) => {
      document.querySelector("iframe").addEventListener("load", done, { once: true });
      form.submit();
    });
  };
  const found = {
    simple: await fetched(rollback, { method: "POST", mode: "no-cors", body: text }),
    chat: await fetched(`${router}/v1/chat/completions`, { method: "POST", mode: "no-cors", body: chat }),
    json: await fetched(rollback, { ...change, method: "POST", body: text }),
    put: await fetched(`${router}/api/endpoints/chat/traffic`, { ...change, body: '{"weights":{"green":100}}' }),
    read: await fetched(`${router}/api/endpoints/chat/traffic`),
    silent: await fetched(`${router}/api/endpoints/chat/traffic`, { mode: "no-cors" }),
    beacon: navigator.sendBeacon(rollback, text),
  };
  await submit(rollback, "text/plain", text.slice(0, -1) + ', "reason": "');
  await submit(rollback, "application/x-www-form-urlencoded", text);
  const image = document.createElement("img");
  await new Promise((done) => { image.onerror = image.onload = done; image.src = `${router}/metrics`; });
  return found;
}"""
REBOUND = """async () => {
  const headers = { "content-type": "application/json", "if-match": "*" };
  const chat = { model: "chat", messages: [{ role: "user", content: "free" }] };
  const calls = [
    ["GET", "/metrics"], ["GET", "/api/endpoints/chat/traffic"], ["GET", "/api/exposures"], ["GET", "/ui"],
    ["PUT", "/api/endpoints/chat/traffic", { weights: { green: 100 } }],
    ["POST", "/api/endpoints/chat/traffic/rollback", { generation: 0 }],
    ["POST", "/v1/chat/completions", chat],
  ];
  const answers = calls.map(([method, path, body]) => fetch(path, { method, headers, body: JSON.stringify(body) }));
  return (await Promise.all(answers)).map((answer) => answer.status);
}"""


def refused(managed: Managed) -> int:
    """How many requests the router has refused, by its metrics."""
    lines = httpx.get(f"{managed.url}/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("switchyard_requests_total") and 'status="403"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in counted)


@pytest.mark.parametrize("name", ["evil.example", "localhost"])
async def test_a_foreign_page_moves_no_traffic(managed: Managed, browser: Browser, name: str) -> None:
    managed.put({"blue": 20, "green": 80}, "the plan that must stay")
    with serve(PAGE) as foreign:
        page = await browser.new_page()
        try:
            await page.goto(f"http://{name}:{urlsplit(foreign).port}/")
            results = await page.evaluate(ATTACKS, managed.url)
        finally:
            await page.close()
    failed = dict.fromkeys(("json", "put", "read"), "TypeError")
    assert results == {"simple": "opaque", "chat": "opaque", "silent": "opaque", "beacon": True} | failed
    # The preflights' requests were never sent; the others were: three by `fetch`, the beacon, two forms, the picture.
    wait_until(lambda: refused(managed) >= 7, lambda: httpx.get(f"{managed.url}/metrics").text)
    assert managed.weights() == {"blue": 20, "green": 80}
    assert managed.control.replaced == 1
    assert managed.blue.requests == managed.green.requests == []


@pytest.mark.parametrize("access", [{}, {"allow_anonymous": True}], ids=["on this machine", "for everyone"])
async def test_a_page_whose_name_now_leads_here_reads_and_moves_nothing(
    managed: Managed, browser: Browser, access: dict[str, bool]
) -> None:
    managed.deliver(access=access)
    weights = managed.weights()
    page = await browser.new_page()
    try:
        await page.goto(f"http://rebound.example:{urlsplit(managed.url).port}/health")
        assert set(await page.evaluate(REBOUND)) == {403}
    finally:
        await page.close()
    assert managed.weights() == weights
    assert managed.control.replaced == 0
    assert managed.blue.requests == managed.green.requests == []
