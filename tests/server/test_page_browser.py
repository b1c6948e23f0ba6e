"""The page in headless Chromium: what each view states, that it works by keyboard, and that it asks nobody else.

Where no browser is, these tests are skipped. The screenshots of the README are taken in any case; with
SLIPSTREAM_SCREENSHOTS=1 they replace those in docs/images/.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_helpers import TEMPLATE
from page_model import UnsureDrafter, timed
from page_server import serve_embedded
from scripted_chat import ScriptedReplies
from server_helpers import NAME, RunningServer, Starter

from slipstream.config import ResolvedSetting
from slipstream.server.options import ServerOptions

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HAS_PLAYWRIGHT = importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not HAS_PLAYWRIGHT, reason="no playwright; pip install 'slipstream[browser]'"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; apt-get install chromium"),
]

K = 4
KEY = "sk-page-0123456789"
PATIENCE_MS = 60_000
REPLY = (
    "Queues form wherever work comes in bursts; a short one is no harm, and a long one tells that a seat is missing."
)
REPORT = (
    ResolvedSetting("served_model_name", NAME, "derived"),
    ResolvedSetting("device", "cpu", "derived", "the device at hand"),
    ResolvedSetting("max_num_seqs", 8, "user"),
    ResolvedSetting("speculation", "on", "derived", "oracle, at most 4 drafts per request and step"),
    ResolvedSetting("block_size", 16, "default"),
)


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(
        ScriptedReplies({"": REPLY}),
        num_speculative_tokens=K,
        wrap=timed(UnsureDrafter),
        max_model_len=1024,
        template=TEMPLATE,
        report=REPORT,
    )


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any, server: RunningServer) -> Iterator[Any]:
    """A fresh page; fails its test when it asked another server for anything, or complained."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    found = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    found.on("request", lambda request: asked.append(request.url))
    found.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    found.on("pageerror", lambda error: complaints.append(str(error)))
    yield found
    context.close()
    assert [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:"))] == []
    assert [text for text in complaints if "401" not in text] == []


def ask(server: RunningServer, **fields: Any) -> dict[str, Any]:
    body = {"model": NAME, "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 60, "seed": 3, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def fact(page: Any, name: str) -> str:
    """A main fact of the view in sight, as a person reads it."""
    text: str = page.locator(f"[data-fact={name}]:visible").first.inner_text()
    return " ".join(text.split())


def wait_for(page: Any, name: str, pattern: str) -> str:
    page.locator(f"[data-fact={name}]:visible").filter(has_text=re.compile(pattern)).first.wait_for()
    return fact(page, name)


def send(page: Any, text: str, seed: int = 5) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Seed").fill(str(seed))
    page.get_by_label("Message").press("Enter")
    page.locator("[data-state=done]").first.wait_for()


def test_live_states_speed_load_and_drafts(server: RunningServer, page: Any) -> None:
    ask(server)
    page.goto(server.url)
    speed = wait_for(page, "speed", r"first token after")
    assert re.search(r"[\d.]+ tokens/s first token after [\d.,]+ m?s, then [\d.]+ ms per token", speed)
    load = fact(page, "load")
    assert re.search(r"0 running, 0 waiting 0 % of the KV cache \(4,096 tokens\) in use; at most 8 run at once", load)
    statistics = server.engine.scheduler.statistics
    verified, accepted = statistics.num_verified_tokens, statistics.num_accepted_tokens
    drafts = fact(page, "drafts")
    assert f"{100 * accepted / verified:.0f} % accepted {accepted:,} of {verified:,} verified drafts" in drafts
    assert re.search(r"gave its drafts a chance of \d+ % on average; \d+ % of \d+ came true", fact(page, "calibration"))
    first = page.get_by_role("row").filter(has_text="1st draft").inner_text()
    assert f"{statistics.accepted_per_position()[0]:,} of {statistics.verified_per_position()[0]:,}" in first


def test_the_strip_has_a_column_per_step_and_tells_each_in_words(server: RunningServer, page: Any) -> None:
    ask(server)
    page.goto(server.url)
    strip = page.locator("svg.strip")
    strip.wait_for()
    rows = httpx.get(f"{server.url}/v1/live").json()["steps"]["rows"]
    shown = [int(number) for number in page.locator("svg.strip g").evaluate_all("all => all.map(g => g.dataset.step)")]
    assert shown == [row[0] for row in rows][-len(shown) :] and len(shown) > 10

    def words(row: list[Any]) -> str:
        counts = [f"{n} {kind} row{'' if n == 1 else 's'}" for n, kind in zip(row[3:6], ROW_KINDS, strict=True)]
        return f"step {row[0]}: {', '.join(counts)}, {KIND_WORDS[row[1]]}, eager, "

    assert f"Newest: {words(rows[-1])}" in fact(page, "step") and re.search(r"[\d.]+ ms$", fact(page, "step"))
    strip.focus()
    page.keyboard.press("ArrowLeft")
    assert fact(page, "step").startswith(words(rows[-2]))
    page.keyboard.press("Home")
    assert fact(page, "step").startswith(words(rows[-len(shown)]))
    page.locator(f"svg.strip g[data-step='{rows[-3][0]}'] rect.fill-decode").hover()
    assert fact(page, "step").startswith(words(rows[-3]))


ROW_KINDS = ("decode", "verify", "prompt")
KIND_WORDS = {"decode": "decoding only", "prefill": "prompts only", "mixed": "mixed"}


def test_new_steps_appear_while_one_looks_on_unless_held(server: RunningServer, page: Any) -> None:
    ask(server)
    page.goto(server.url)
    before = wait_for(page, "step", "Newest")
    page.get_by_role("button", name="Hold still").click()
    ask(server, seed=4)
    page.wait_for_timeout(1500)
    assert fact(page, "step") == before
    page.get_by_role("button", name="Go on").click()
    newest = httpx.get(f"{server.url}/v1/live").json()["steps"]["rows"][-1][0]
    wait_for(page, "step", rf"Newest: step {newest}:")


def test_the_playground_shows_where_each_token_came_from(server: RunningServer, page: Any) -> None:
    page.goto(f"{server.url}/#playground")
    send(page, "Why do queues form?")
    answer = ask(
        server, messages=[{"role": "user", "content": "Why do queues form?"}], temperature=0.7, seed=5, max_tokens=128
    )
    tokens = page.locator(".answer .token")
    assert "".join(tokens.all_text_contents()) == answer["choices"][0]["message"]["content"]
    report = answer["metrics"]["speculative_decoding"]
    assert 0 < page.locator(".answer .token.draft").count() < tokens.count()
    found = wait_for(page, "sources", r"from accepted drafts")
    num_drafts = page.locator(".answer .token.draft").count()
    assert f"{num_drafts} of {tokens.count()} tokens" in found and report["num_accepted_draft_tokens"] > 0
    assert re.search(r"[\d.]+ tokens/s with speculation$", wait_for(page, "speed", r"with speculation"))
    assert "not compared yet" in fact(page, "equality")
    page.locator(".answer .token.refused").first.hover()
    assert re.search(r"Token \d+ “.”: the model’s own; refused here: “.+”", fact(page, "token"))
    page.locator(".answer .tokens").focus()
    page.keyboard.press("Home")
    assert fact(page, "token").startswith(f"Token 1 “{answer['choices'][0]['message']['content'][0]}”")


def test_the_switch_answers_again_with_the_same_seed_and_compares(server: RunningServer, page: Any) -> None:
    page.goto(f"{server.url}/#playground")
    switch = page.get_by_role("switch", name="Speculation")
    send(page, "Why do queues form?")
    assert switch.get_attribute("aria-checked") == "true"
    switch.focus()
    page.keyboard.press("Space")
    equality = wait_for(page, "equality", r"The texts")
    texts = ["".join(page.locator(f"[data-speculates={on}] .token").all_text_contents()) for on in ("true", "false")]
    assert texts[0] == texts[1] and len(texts[0]) > 50
    count = page.locator("[data-speculates=false] .token").count()
    assert f"The texts are equal {count} tokens and {len(texts[0])} characters compared" in equality
    assert page.locator("[data-speculates=false] .token.draft").count() == 0
    assert re.search(r"[\d.]+ times as fast with drafts", fact(page, "speed"))
    assert switch.get_attribute("aria-checked") == "false"


def test_texts_that_differ_are_said_to_differ(server: RunningServer, page: Any) -> None:
    """The comparison is real: the second answer is asked for with another seed behind the page's back."""

    def other_seed(route: Any) -> None:
        body = json.loads(route.request.post_data)
        if not body["speculative"]["enabled"]:
            body |= {"seed": body["seed"] + 1, "temperature": 2.0}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", other_seed)
    page.goto(f"{server.url}/#playground")
    send(page, "Why do queues form?")
    page.get_by_role("switch", name="Speculation").click()
    found = wait_for(page, "equality", r"The texts")
    texts = [page.locator(f"[data-speculates={on}] .token").all_text_contents() for on in ("true", "false")]
    first = next(place for place, (one, other) in enumerate(zip(*texts, strict=False), start=1) if one != other)
    assert f"The texts differ from token {first} on" in found


def test_settings_state_model_speculation_and_sources(server: RunningServer, page: Any) -> None:
    page.goto(f"{server.url}/#settings")
    assert f"{NAME} on cpu" in wait_for(page, "model", NAME)
    assert fact(page, "speculation") == "Speculation on oracle, at most 4 drafts per request and step"
    assert "1 of 5 given by you 3 worked out for this machine and model, 1 default" in fact(page, "sources")
    page.get_by_label("Find").fill("device")
    assert page.locator("tbody tr").all_inner_texts() == ["device\tcpu\tderived\tthe device at hand"]


def test_views_are_tabs_by_keyboard(server: RunningServer, page: Any) -> None:
    page.goto(server.url)
    page.get_by_role("tab", name="Live").focus()
    for key, name in (
        ("ArrowRight", "Playground"),
        ("ArrowRight", "Settings"),
        ("ArrowRight", "Live"),
        ("End", "Settings"),
    ):
        page.keyboard.press(key)
        tab = page.get_by_role("tab", name=name)
        assert tab.get_attribute("aria-selected") == "true"
        assert tab.evaluate("tab => tab === document.activeElement")
    assert page.url.endswith("#settings")
    width = page.get_by_role("tab", name="Settings").evaluate("tab => getComputedStyle(tab).outlineWidth")
    assert width == "2px", "what has the focus is seen to have it"


def test_a_key_is_asked_for_where_one_is_needed(start_server: Starter, page: Any) -> None:
    closed = start_server(report=REPORT, options=ServerOptions(api_keys=(KEY,)))
    page.goto(f"{closed.url}/#settings")
    field = page.get_by_label("API key")
    field.fill("sk-wrong")
    field.press("Enter")
    page.get_by_text("this API key is not known here").wait_for()
    field.fill(KEY)
    field.press("Enter")
    assert NAME in wait_for(page, "model", NAME)
    page.reload()
    assert NAME in wait_for(page, "model", NAME), "kept while the tab is open"


def test_a_server_without_drafts_has_nothing_to_switch(start_server: Starter, page: Any) -> None:
    page.goto(start_server().url)
    assert "Speculation is off" in wait_for(page, "drafts", "off")
    page.get_by_role("tab", name="Playground").click()
    page.get_by_text("This server makes no drafts").wait_for()
    assert page.get_by_role("switch").is_disabled()


@pytest.mark.parametrize("view", ["live", "playground", "settings"])
def test_nothing_is_wider_than_a_phone(server: RunningServer, page: Any, view: str) -> None:
    ask(server)
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{server.url}/#{view}")
    if view == "playground":
        send(page, "Why do queues form?")
        page.get_by_role("switch").click()
        wait_for(page, "equality", "The texts")
    page.locator("[data-fact]:visible").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(server: RunningServer, page: Any, scheme: str) -> None:
    """WCAG AA: 4.5 to 1 for text on the card, and for tokens on their tints."""
    page.emulate_media(color_scheme=scheme)
    page.goto(server.url)
    colours = page.evaluate(
        """names => names.map(name => {
          document.body.style.color = `var(${name})`
          return getComputedStyle(document.body).color
        })""",
        ["--ink", "--soft", "--problem", "--card", "--page", "--draft-tint", "--target-tint"],
    )
    ink, soft, problem, card, behind, draft, target = map(luminance, colours)
    pairs = [(ink, card), (soft, card), (problem, behind), (soft, behind), (ink, draft), (ink, target)]
    for one, other in pairs:
        assert (max(one, other) + 0.05) / (min(one, other) + 0.05) >= 4.5


def luminance(colour: str) -> float:
    """WCAG's relative luminance of rgb(r, g, b)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


IMAGES = Path(__file__).parents[2] / "docs" / "images"
QUESTIONS = (
    "Write a short story about a queue.",
    "Count from one to forty.",
    "What is a cache? Explain with an example.",
    "List the days of the week, then the months.",
)


@pytest.mark.model
def test_screenshots_of_the_readme(chromium: Any, tmp_path: Path) -> None:
    """The embedded model with the drafter that ships, answering several at once."""
    images = IMAGES if os.environ.get("SLIPSTREAM_SCREENSHOTS") else tmp_path
    images.mkdir(parents=True, exist_ok=True)
    with serve_embedded() as url:
        body = {"max_tokens": 100, "temperature": 0}
        threads = [
            threading.Thread(
                target=lambda text=text: httpx.post(
                    f"{url}/v1/chat/completions",
                    json={**body, "messages": [{"role": "user", "content": text}]},
                    timeout=600,
                )
            )
            for text in QUESTIONS
        ]
        for thread in threads:
            thread.start()
        page = chromium.new_page(viewport={"width": 1120, "height": 800})
        page.set_default_timeout(10 * PATIENCE_MS)
        for thread in threads:
            thread.join()
        page.goto(f"{url}/#live")
        wait_for(page, "speed", "per token")
        page.screenshot(path=images / "page-live.png", full_page=True)
        page.goto(f"{url}/#playground")
        page.get_by_role("tab", name="Playground").click()
        page.get_by_label("Tokens at most").fill("60")
        send(page, "What is the capital of France? Answer, then say why.")
        page.get_by_role("switch", name="Speculation").click()
        wait_for(page, "equality", "The texts")
        page.screenshot(path=images / "page-playground.png", full_page=True)
        page.emulate_media(color_scheme="dark")
        page.get_by_role("tab", name="Settings").click()
        wait_for(page, "model", ".")
        page.screenshot(path=images / "page-settings.png", clip={"x": 0, "y": 0, "width": 1120, "height": 800})
        page.set_viewport_size({"width": 390, "height": 844})
        page.get_by_role("tab", name="Live").click()
        wait_for(page, "speed", "per token")
        page.screenshot(path=images / "page-phone.png")
    for name in ("live", "playground", "settings", "phone"):
        assert (images / f"page-{name}.png").stat().st_size > 10_000
