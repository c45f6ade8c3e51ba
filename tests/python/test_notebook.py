"""What results look like in a notebook, and that the example runs in one."""

import dataclasses
import html.parser
import os
import re
import warnings

import numpy as np
import pytest
import service
from test_client import MODEL, TEXT

MARKUP = '<script>alert(1)</script> & "quotes" <b title=\'x\'>bold</b>\nnext\ta\x07b'


class Page(html.parser.HTMLParser):
    """Reads markup as a browser does: the elements, their attributes, and the text between."""

    def __init__(self, markup):
        super().__init__()
        self.elements, self.open, self.text = [], [], []
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def of(self, kind):
        return [attributes for tag, attributes in self.elements if kind in attributes.get("class", "").split()]


@pytest.fixture(scope="module")
def shown(gh, client):
    """The HTML of every kind of result, whose names are markup and whose every token is."""
    def hostile(result, **changes):
        return dataclasses.replace(result, model=MARKUP, routing=dataclasses.replace(result.routing, notes=(MARKUP,)),
                                   **changes)

    def tokens(trace):
        return dataclasses.replace(trace, raw=(MARKUP.encode(),) * len(trace))

    generated = client.generate(MODEL, "It was", max_tokens=6, seed=1, gating=gh.Gated(0.2), record_prompt=True,
                                record=["routing", "nonlinearity"]).result()
    generated = hostile(generated, text=MARKUP, trace=tokens(generated.trace))
    analyses = [hostile(result, texts=tuple(tokens(trace) for trace in result.texts), calibration=MARKUP)
                for result in (client.nonlinearity(MODEL, "It was"), client.consensus(MODEL, ["It was", "cold"]))]
    score = client.score(MODEL, "It was cold.", record="routing")
    score = hostile(score, raw=(MARKUP.encode(),) * score.token_count, trace=tokens(score.trace))
    columns = {MARKUP: np.array([MARKUP, "x"], object), "n": np.array([1, np.nan])}
    table = gh.report.Table(MARKUP, MARKUP, MARKUP, columns, {MARKUP: MARKUP})
    report = gh.Report(MARKUP, MARKUP, MARKUP, MARKUP, "", "", "", (), {}, (MARKUP,), {MARKUP: table}, ())
    return {"nonlinearity": analyses[0]._repr_html_(), "consensus": analyses[1]._repr_html_(),
            "generation": generated._repr_html_(), "routes": gh.notebook.routes(generated.trace).html,
            "score": score._repr_html_(), "report": report._repr_html_()}


KINDS = ["nonlinearity", "consensus", "generation", "routes", "score", "report"]


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_never_taken_for_markup(shown, kind):
    page = Page(shown[kind])
    assert page.open == []
    allowed = {"div", "style", "p", "span", "svg", "text", "rect", "title", "circle", "table", "tr", "th", "td"}
    assert {tag for tag, _ in page.elements} <= allowed
    assert {name for _, attributes in page.elements for name in attributes} <= {
        "class", "title", "width", "height", "viewbox", "role", "aria-label", "transform", "x", "y", "text-anchor",
        "cx", "cy", "r"}
    assert "alert(1)" in "".join(page.text)
    if kind != "routes":  # which shows tokens in one line, and cut
        assert MARKUP.replace("\x07", "\ufffd") in page.text


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_loaded_and_both_themes_have_colours(shown, kind):
    assert not re.search(r"https?:|url\(|@import|src=|href=|<script|//", shown[kind])
    style = shown[kind].split("<style>")[1].split("</style>")[0]
    assert style.count("{") == style.count("}") and "DARK" not in style and "LIGHT" not in style
    blocks = re.findall(r"\{([^{}]*--paper:[^{}]*)\}", style)
    colours = [dict(re.findall(r"(--[\w-]+): ([^;]+);", block)) for block in blocks]
    light, dark = colours[0], colours[1]
    assert light.keys() == dark.keys() and light == colours[2] and dark == colours[3]
    assert all(light[name] != dark[name] for name in light)
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= light.keys()


def test_a_heat_map_has_a_cell_for_every_token_and_layer(client, gh):
    result = client.nonlinearity(MODEL, TEXT)
    page = Page(result.heatmap(layer=2).html)
    cells = [attributes["class"] for tag, attributes in page.elements if tag == "rect"]
    ranks = result.ranks()
    starts = (0.25, 0.5, 0.6, 0.7, 0.8, 0.88, 0.95, 0.975, 0.99)
    shades = [sum(rank >= start for start in starts) for rank in ranks.T.ravel()]
    assert cells == [f"q{shade}" for shade in shades]
    spans = [attributes for tag, attributes in page.elements if tag == "span" and "title" in attributes]
    assert [span["title"] for span in spans] == [f"{score:.3g}" for score in result.scores[:, 2]]
    assert "The text is coloured by layer 2." in page.text
    gated = client.nonlinearity(MODEL, TEXT, gating=gh.Linear())
    cells = [attributes["class"] for tag, attributes in Page(gated._repr_html_()).elements if tag == "rect"]
    assert cells.count("none") == np.isnan(gated.scores).sum() > 0


def test_routes_are_drawn_as_they_were(client, gh):
    result = client.generate(MODEL, TEXT, max_tokens=4, gating=gh.Gated(0.2), record="routing",
                             record_prompt=True).result()
    page = Page(gh.notebook.routes(result.trace).html)
    cells = [attributes["class"] for tag, attributes in page.elements if tag == "rect"]
    assert cells == result.trace.paths.T.ravel().tolist() and "linear" in cells
    with pytest.raises(ValueError, match="routing"):
        gh.notebook.routes(dataclasses.replace(result.trace, paths=None))


def test_a_consensus_strip_marks_exceptions(client):
    result = client.consensus(MODEL, TEXT)
    page = Page(result._repr_html_())
    fired = sum(bool(neurons) for token in result.trace.exceptions_fired for neurons in token)
    assert sum(tag == "circle" for tag, _ in page.elements) == fired > 0


def test_long_texts_are_cut_and_it_is_said(client, gh):
    tokens = gh.notebook.MOST_TOKENS
    score = client.score(MODEL, "It was. " * tokens)
    page = Page(score._repr_html_())
    assert f"The first {tokens} of {score.token_count} tokens are shown." in page.text
    assert sum("title" in attributes for tag, attributes in page.elements if tag == "span") == tokens


def test_a_page_of_its_own_can_be_saved(client, tmp_path):
    client.nonlinearity(MODEL, TEXT).heatmap().save(tmp_path / "map.html")
    assert Page((tmp_path / "map.html").read_text(encoding="utf-8")).elements[0] == ("meta", {"charset": "utf-8"})


def test_the_example_goes_from_an_import_to_a_heat_map_in_ten_lines(package, server):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: tools/requirements-test.txt")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: tools/requirements-test.txt")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: tools/requirements-test.txt")
    notebook = nbformat.read(service.SOURCE / "client/python/examples/heatmap.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code[0].source.splitlines()) <= 10
    environment = {**os.environ, "GATEHOUSE_SERVER": server.address, "GATEHOUSE_MODEL": MODEL,
                   "PYTHONPATH": str(package)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(env=environment)
    pages = [output.data["text/html"] for cell in code for output in cell.outputs if "data" in output]
    assert len(pages) == len(code)
    assert Page(pages[0]).of("gh") and sum(tag == "rect" for tag, _ in Page(pages[0]).elements) > 50
    assert "perplexity" in pages[-1]
