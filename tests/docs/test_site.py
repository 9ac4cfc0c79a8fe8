"""The site as it is built: on a phone, in the dark, and what its search finds."""

from __future__ import annotations

import functools
import json
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import chromium
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.find() is None, reason=chromium.MISSING),
]
SYNONYMS = {
    "hotwords": "Phrases", "boosting": "Phrases", "biasing": "Phrases", "contextual": "Phrases", "keywords": "Phrases",
    "grid search": "Evaluate", "real time": "Streaming", "rest api": "Serving", "wfst": "Decode in a graph",
}  # fmt: skip


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as found:
        yield found


def test_no_page_is_wider_than_a_phone(browser, address, site):
    browser.size(360, 800, mobile=True)
    pages = [page.relative_to(site).as_posix() for page in site.rglob("index.html")]
    assert len(pages) > 30
    wide = {}
    for page in pages:
        browser.open(f"{address}/{page}")
        browser.wait("document.querySelectorAll('.md-content table:not([class]):not(.md-typeset__table *)').length == 0")
        width = browser.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            wide[page] = width
    assert not wide
    browser.open(f"{address}/")
    widths = browser.evaluate("[...document.querySelectorAll('.language-python code')].map(each => each.scrollWidth)")
    assert widths and max(widths) <= 360


def test_the_search_knows_other_words(browser, address):
    browser.size(1280, 800)
    found = {}
    for words in SYNONYMS:
        browser.open(f"{address}/?q={words.replace(' ', '+')}")
        found[words] = browser.wait("document.querySelector('.md-search-result__article h1')?.innerText")
    wrong = {words: title for words, title in found.items() if not title.startswith(SYNONYMS[words])}
    assert not wrong


def test_it_is_dark_where_the_system_is(browser, address):
    schemes = []
    for theme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        browser.open(f"{address}/install/?{theme}")
        schemes.append(browser.wait("document.body.getAttribute('data-md-color-scheme')"))
        for picture in ("link[rel=icon]", ".md-header__button.md-logo img"):
            kind = "href" if "link" in picture else "src"
            logo = f"fetch(document.querySelector({json.dumps(picture)}).{kind}).then(got => got.headers.get('content-type'))"
            assert browser.evaluate(logo) == "image/svg+xml"
    assert schemes == ["default", "slate"]
    assert browser.evaluate("document.querySelectorAll('form[data-md-component=palette] label').length") == 3
