"""The page in a real browser: what it draws, and what pointer and keyboard do."""

import pathlib
import re
import shutil

import numpy as np
import pytest

from keras_transformer.explorer.page import make_page, page_content
from keras_transformer.explorer.views import FoundTranslation, Node, SearchTree, View

_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_SOURCE = ["▁A", "▁man", "▁rid", "es", ".", "</s>"]
_WRITTEN = ["▁Ein", "▁Mann", "▁reitet", ".", "</s>"]
_TREE = SearchTree(
    nodes=[
        Node(-1, "", 0.0, "kept"),
        Node(0, "▁Ein", -0.1, "kept"),
        Node(0, "▁Der", -2.5, "kept"),
        Node(0, "▁Zwei", -5.0, "dropped"),
        Node(1, "</s>", -1.0, "finished"),
        Node(1, "▁Mann", -0.5, "kept"),
        Node(2, "</s>", -0.2, "finished"),
        Node(2, "▁Hund", -3.0, "dropped"),
    ],
    translations=[FoundTranslation("Ein", -0.9, 4), FoundTranslation("Der", -2.2, 6)],
)


def make_view(model="runs/mine", sentence="A man rides.", seed=1):
    random = np.random.default_rng(seed)

    def weights(rows, columns):
        # Whole 255ths, which come to the page as they are.
        return np.rint(255 * random.dirichlet(np.full(columns, 0.3), (2, 3, rows))) / 255

    shapes = {"encoder": (6, 6), "decoder": (5, 5), "cross": (5, 6)}
    attentions = {kind: weights(*shape) for kind, shape in shapes.items()}
    read = ["<s>", *_WRITTEN[:-1]]
    return View(model, sentence, "Ein Mann", _SOURCE, read, _WRITTEN, attentions, _TREE)


def joined(weights):
    """The weights [H, 6, 6] of the encoder between words: "rid" and "es" are one."""
    columns = np.concatenate(
        [weights[..., :2], weights[..., 2:4].sum(-1, keepdims=True), weights[..., 4:]], axis=-1
    )
    mean = columns[:, 2:4].mean(axis=1, keepdims=True)
    return np.concatenate([columns[:, :2], mean, columns[:, 4:]], axis=1)


def count_arcs(weights, least=0.15):
    return int((weights >= least).sum())


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    with sync_api.sync_playwright() as playwright:
        if path is None and not pathlib.Path(playwright.chromium.executable_path).exists():
            pytest.skip("needs Chromium: apt-get install chromium-headless-shell")
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of some views from disk; gives the page, which must run without errors."""
    errors, requests, contexts = [], [], []

    def show(*views, kind="Encoder", **options):
        path = tmp_path / "page.html"
        path.write_text(make_page(page_content(views)), encoding="utf-8")
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector(".model")
        page.get_by_role("radio", name=kind).check()
        return page

    yield show
    assert errors == []
    assert {url.partition(":")[0] for url in requests} <= {"file", "data"}
    for context in contexts:
        context.close()


def arcs(page):
    return page.locator(".arc").count()


def test_arcs_show_weights_from_the_threshold(show):
    view = make_view()
    page = show(view)
    words = joined(view.attentions["encoder"][0])
    assert arcs(page) == count_arcs(words)
    page.get_by_label("Hide weights below").fill("62")  # percent
    assert arcs(page) == count_arcs(words, 0.62) < count_arcs(words)
    page.get_by_label("joined into words").uncheck()
    assert arcs(page) == count_arcs(view.attentions["encoder"][0], 0.62)


def test_search_tree_shows_beam_and_candidates(show):
    page = show(make_view())
    assert page.locator(".tree .node").count() == 6  # all but the two that were dropped
    path = page.locator(".tree .node.on").evaluate_all("nodes => nodes.map((n) => n.textContent)")
    assert path == ["start", "Ein90%", "</s>37%"]
    rows = page.locator(".candidates tbody tr")
    assert [re.sub(r"\s+", " ", row) for row in rows.all_inner_texts()] == [
        "Ein 90% in the beam -0.10", "Der 8.2% in the beam -2.50", "Zwei 0.7% dropped -5.00",
    ]  # fmt: skip
    page.locator(".tree .node").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "After “Der”" in page.locator(".candidates").inner_text()
    page.get_by_label("-2.20Der").check()
    path = page.locator(".tree .node.on").evaluate_all("nodes => nodes.map((n) => n.textContent)")
    assert path == ["start", "Der8.2%", "</s>82%"]


def test_sentences_and_models_side_by_side(show):
    views = [make_view(model, text, seed) for seed, (model, text) in enumerate(
        [("runs/a", "One."), ("runs/b", "One."), ("runs/a", "Two."), ("runs/b", "Two.")]
    )]  # fmt: skip
    for place in (1, 3):  # a model with less attention, as an export has it
        cross = {"cross": views[place].attentions["cross"]}
        views[place] = views[place]._replace(attentions=cross, tree=None)
    page = show(*views, viewport={"width": 1400, "height": 900})
    first, second = (page.get_by_role("region", name=name) for name in ("runs/a", "runs/b"))
    assert first.bounding_box()["y"] == second.bounding_box()["y"]
    assert arcs(first) == count_arcs(joined(views[0].attentions["encoder"][0]))
    page.get_by_role("radio", name="Two.").check()
    assert arcs(first) == count_arcs(joined(views[2].attentions["encoder"][0]))
    assert "no such attention" in second.inner_text()
