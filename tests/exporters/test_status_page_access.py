"""The status page for everybody: with a keyboard, without full colour vision, on a phone, with names that are code."""

import itertools
import struct

import browser
import pytest
from status_page import LIVE, keep, rows, sample_state

# What a colour in linear RGB becomes for eyes that lack one kind of cone (Machado, Oliveira and Fernandes 2009, table
# of severity 1).
EYES = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
# Two colours side by side are just told apart at a distance of 2.3 in CIELAB (Mahy and others 1994); small patches and
# lines that lie apart want several times as much.
TOLD_APART = 5 * 2.3

Colour = tuple[float, float, float]


def linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def seen(colour: Colour, eyes: str) -> Colour:
    """Of sRGB from 0 to 255, as linear RGB."""
    rgb = [linear(channel / 255) for channel in colour]
    return tuple(min(max(sum(m * c for m, c in zip(row, rgb, strict=True)), 0), 1) for row in EYES[eyes])


def luminance(rgb: Colour) -> float:
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def contrast(one: Colour, other: Colour) -> float:
    low, high = sorted(luminance(seen(each, "all cones")) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: Colour) -> Colour:
    r, g, b = rgb
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (t ** (1 / 3) if t > 216 / 24389 else (841 / 108) * t + 4 / 29 for t in (x, luminance(rgb), z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def distance(one: Colour, other: Colour, eyes: str) -> float:
    pairs = zip(lab(seen(one, eyes)), lab(seen(other, eyes)), strict=True)
    return sum((a - b) ** 2 for a, b in pairs) ** 0.5


def colour(text: str) -> Colour:
    if text.startswith("#"):
        return tuple(int(text[at : at + 2], 16) for at in (1, 3, 5))
    return tuple(float(part) for part in text.removeprefix("rgb(").rstrip(")").split(","))


def named(tab: browser.Browser, *names: str) -> list[Colour]:
    return [colour(tab.value(f"colour('{name}')")) for name in names]


# -- colours --


@pytest.mark.parametrize("eyes", EYES)
def test_the_scale_of_the_map_grows_brighter_for_all_eyes(page, eyes):
    tab = page(1, 2)
    scale = [colour(text) for text in tab.value("[...Array(65).keys()].map((n) => shade(n / 64))")]
    brightness = [luminance(seen(each, eyes)) for each in scale]
    assert all(low < high for low, high in itertools.pairwise(brightness)), "of two cells the larger is the brighter"
    assert (brightness[-1] + 0.05) / (brightness[0] + 0.05) > 7
    beyond = colour(tab.value("BEYOND"))
    assert min(distance(beyond, each, eyes) for each in scale) > TOLD_APART, "beyond the limit is not on the scale"


# Pairs of the eight that lie close for one kind of eyes are told apart by the names at the buttons and in what is said.
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("eyes", ["all cones", "protanopia", "deuteranopia"])
def test_the_first_ranks_are_told_apart(page, dark, eyes):
    colours = named(page(1, 2, dark=dark), *(f"rank-{n}" for n in range(4)))
    closest = min(distance(one, other, eyes) for one, other in itertools.combinations(colours, 2))
    assert closest > TOLD_APART


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read(page, dark):
    tab = page(dark=dark)
    found = tab.value("""(() => {
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = new Map();
        while (texts.nextNode()) {
            const of = texts.currentNode.parentElement, box = of.getBoundingClientRect();
            if (!texts.currentNode.textContent.trim() || box.width === 0 || of.closest('noscript, option')) continue;
            const isClear = (e) => getComputedStyle(e).backgroundColor === 'rgba(0, 0, 0, 0)';
            let behind = of;
            while (behind !== document.body && isClear(behind)) behind = behind.parentElement;
            const back = getComputedStyle(behind).backgroundColor;
            found.set(getComputedStyle(of).color + '|' + back, texts.currentNode.textContent.trim());
        }
        return [...found];
    })()""")
    assert len(found) >= 5, found
    for pair, text in found:
        ink, back = (colour(each) for each in pair.split("|"))
        assert contrast(ink, back) >= 4.5, (text, pair)  # WCAG 2.1, 1.4.3
    card, *inks = named(tab, "card", "quiet", "orange", "ink")  # what is written into pictures
    assert min(contrast(card, ink) for ink in inks) >= 4.5
    lines = named(tab, *(f"rank-{n}" for n in range(8)))
    assert min(contrast(card, line) for line in lines) >= 3  # WCAG 2.1, 1.4.11


# How many colours a rectangle of a canvas has; read from a copy, since reading makes the original one slow.
COLOURS = """((canvas, [x, y, wide, high]) => {
    const copy = new OffscreenCanvas(wide, high).getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, -x, -y);
    return new Set(new Uint32Array(copy.getImageData(0, 0, wide, high).data.buffer)).size;
})"""


@pytest.mark.parametrize("dark", [False, True])
def test_a_value_of_zero_is_not_a_missing_one(page, dark):
    """A cell of zero is of one colour, one that was not sampled is hatched."""
    tab = page(1, 4, dark=dark)
    tab.value("""(() => {
        for (const table of ui.history.tables.filter((t) => t.layer === '001'))
            table.columns.deviation_ratio_forward.forEach((_, i, values) => (values[i] = i % 2 ? 0 : null));
        for (const table of ui.history.tables.filter((t) => t.layer === '000'))
            table.columns.deviation_ratio_forward.fill(0.5);
        show();
    })()""")
    inside = f"""((column) => {{
        const {{ heat }} = ui, {{ width, height }} = heat.cellSize;
        const box = [heat.left + column * width + 2, height + 2, width - 4, height - 4];
        return {COLOURS}(heat.canvas, box.map(Math.floor));
    }})"""
    assert tab.value(f"{inside}(1)") == 1
    assert tab.value(f"{inside}(2)") > 2
    card, hatch = named(tab, "card", "hatch")
    assert contrast(card, hatch) > 1.5
    tab.value("byId('heat-map').focus()")
    said = []
    for key in ("ArrowDown", "ArrowDown", "Home", "ArrowRight"):
        tab.press(key)
        said.append(tab.value("byId('heat-cell').textContent"))
    assert said[2].endswith(": not sampled")
    assert said[3].endswith(": 0.00, rank 0")


def test_beyond_the_alarm_is_more_than_a_colour(page):
    tab = page()
    tab.value("document.querySelector('#legend button[data-rank=\"1\"]').click()")
    cell = f"""((row) => {{
        const {{ heat }} = ui, {{ width, height }} = heat.cellSize, left = heat.left + (heat.map.columns - 2) * width;
        return {COLOURS}(heat.canvas, [left + 2, row * height + 2, width - 4, height - 4].map(Math.floor));
    }})"""
    assert tab.value(f"{cell}(2)") > 2, "striped"
    assert tab.value(f"{cell}(20)") == 1
    tab.value("byId('heat-map').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        tab.press(key)
    assert tab.value("byId('heat-cell').textContent").endswith(": 2.40, beyond the limit, rank 1")


# -- keyboard --

# Where the focus is, and how it is shown.
FOCUS = """(() => {
    const on = document.activeElement, style = getComputedStyle(on);
    if (on === document.body) return null;
    const outline = [style.outlineStyle, parseFloat(style.outlineWidth)];
    return [[...document.querySelectorAll('*')].indexOf(on), ...outline, on.id || on.textContent.slice(0, 20)];
})()"""
# What is in a closed <details> has a place, but is not visible.
CAN_HAVE_IT = """[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]
    .filter((e) => e.checkVisibility()).map((e) => [...document.querySelectorAll('*')].indexOf(e))"""


def test_tab_leads_through_everything_and_out_again(page):
    tab = page(2, 4)
    wanted = tab.value(CAN_HAVE_IT)
    reached = []
    while len(reached) <= len(wanted):
        tab.press("Tab")
        focus = tab.value(FOCUS)
        if focus is None:
            break
        assert focus[1] == "solid", focus
        assert focus[2] >= 2, focus
        reached.append(focus)
    assert [place for place, *_ in reached] == wanted, "all of it, in the order of the page, and no trap"
    names = {name for *_, name in reached}
    assert names >= {"overview", "all ranks", "rank 1", "logarithmic", "heat-signal", "heat-map", "metrics"}
    assert any(name.startswith("Detectors") for name in names)
    tab.press("Tab", shift=True)
    assert tab.value(FOCUS)[0] == wanted[-1], "and back"


@pytest.mark.parametrize(
    "selector", ["#grafana a", "#legend button", "#detectors .scroll", "#loss canvas", "#heat-map"]
)
def test_the_focus_stays_when_the_page_renews_itself(page, selector):
    tab = page(2, 4)
    tab.value(f"document.querySelector({selector!r}).focus()")
    tab.value("byId('fresh').textContent = 'before'")
    tab.wait_for("byId('fresh').textContent === 'live'")
    assert tab.value(f"document.activeElement === document.querySelector({selector!r})")


def test_the_loss_is_read_with_the_arrow_keys(page):
    tab = page(1, 4, sample_state(2, 4) | {"ranks": [sample_state(2, 4)["ranks"][1] | {"rank": 0}]})
    tab.value("document.querySelector('#loss canvas').focus()")

    def after(*keys: str) -> str:
        for key in keys:
            tab.press(key)
        return tab.value("byId('step-values').textContent")

    assert after("ArrowLeft").startswith("steps 1,510 to 1,511: loss ")
    assert after("ArrowLeft").startswith("steps 1,508 to 1,509: loss ")
    assert after("Home").startswith("steps 1,000 to 1,001: loss ")
    assert after("ArrowLeft").startswith("steps 1,000 to 1,001: "), "there is nothing before"
    assert after("ArrowDown").startswith("steps 1,100 to 1,101: loss event: slow rise; loss ")
    assert after("ArrowDown").startswith("steps 1,414 to 1,415: gradient_growth warns; loss ")
    event = after("ArrowDown")
    assert event.startswith("steps 1,420 to 1,421: loss event: spike; max_logit warns in <s>004</s>; loss ")
    assert "gradient norm before clipping" in event
    assert tab.value("ui.charts.slice(0, 2).map((c) => c.chart.options.plugins.guides.cursor)") == [1421, 1421]
    assert after("ArrowUp").startswith("steps 1,414 to 1,415: ")
    assert after("Escape") == ""
    assert tab.value("ui.charts[0].chart.options.plugins.guides.cursor") is None
    tab.press("Tab")
    assert tab.value("document.activeElement.tagName") != "CANVAS", "the arrow keys are taken, Tab is not"


def test_the_map_is_read_from_end_to_end(page):
    tab = page()
    tab.value("byId('heat-map').focus()")

    def after(*keys: str) -> str:
        for key in keys:
            tab.press(key)
        return tab.value("byId('heat-cell').textContent")

    assert after("ArrowDown", "Home").startswith("layer 000 (blocks.0.attention.qkv.weight), steps 1,024 to 1,031: ")
    assert after("PageDown", "End").startswith("layer 010 (blocks.10.attention.qkv.weight), steps 1,528 to 1,535: ")
    assert after(*["PageDown"] * 9).startswith("layer 095 ")
    label = tab.value("byId('heat-map').getAttribute('aria-label')")
    assert label == "error ratio, forward, largest of 96 layers by step; arrow keys read a cell"
    described = tab.value("byId(byId('heat-map').getAttribute('aria-describedby')).textContent")
    assert "arrow keys" in described
    assert tab.value("byId('heat-cell').getAttribute('role')") == "status"


def test_every_control_has_a_name(page):
    tab = page()
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    of_interest = {"button", "link", "combobox", "checkbox", "application", "table"}
    found = [(node["role"]["value"], node.get("name", {}).get("value")) for node in nodes if not node["ignored"]]
    controls = [(role, name) for role, name in found if role in of_interest - {"table"}]
    assert {role for role, _ in controls} == of_interest - {"table"}
    assert [role for role, name in controls if not name] == []


# -- the rest --


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_scrolls_sideways(page, dark, width):
    state = sample_state(3, 40)
    state["ranks"][0]["weights"]["moved_most"] = "blocks." + 60 * "x"
    tab = page(3, 40, state, dark=dark, width=width)
    assert browser.layout_problems(tab) == []
    shot = keep(tab, f"sample-{width}-{'dark' if dark else 'light'}")
    assert shot.startswith(b"\x89PNG")
    wide, high = struct.unpack(">II", shot[16:24])
    assert wide <= width
    assert high > 2000, "the whole page"


def test_nothing_moves_where_less_motion_is_asked_for(page):
    tab = page(2, 4, calm=True)
    assert tab.value("matchMedia('(prefers-reduced-motion: reduce)').matches")
    moving = """[...document.querySelectorAll('*')].filter((e) => {
        const { transitionDuration, animationName, scrollBehavior } = getComputedStyle(e);
        return parseFloat(transitionDuration) > 0 || animationName !== 'none' || scrollBehavior === 'smooth';
    }).length"""
    assert tab.value(moving) == 0
    assert tab.value("document.getAnimations().length") == 0
    assert tab.value("ui.charts[0].chart.options.animation") is False


CODE = "<script>window.broken = 1</script>"


def test_names_that_are_code_stay_names(serve, tab):
    state = sample_state(1, 3)
    (rank,) = state["ranks"]
    state["findings"] = [{"headline": "ATTENTION FAULT", "text": CODE, "action": CODE}]
    state |= {"run": CODE, "runs": [{"run": CODE, "ranks": 1}, {"run": "other\n" + CODE, "ranks": 1}]}
    rank["worst_layer"] = rank["layers"][0]["layer"] = rank["layers"][0]["name"] = CODE
    rank["alarms"] = [{"layer": CODE, "pass": "forward", "of": "bias", "value": 1}]
    rank["precursors"] = sample_state(2, 3)["ranks"][1]["precursors"]
    rank["precursors"]["detectors"][0] |= {"detector": CODE, "level": "warn", "layer": CODE}
    rank["precursors"]["loss_events"][1]["preceded_by"][0] |= {"detector": CODE, "layer": CODE}
    at = {"first_step": 1400, "last_step": 1400, "count": 1, "value": 1}
    rank["events"] = [{"event": "warn_" + CODE, "layer": CODE} | at]
    rank["gradient"]["nonfinite_layers"] = [CODE]
    rank["logged"] = {CODE: {"value": 1, "step": 1}}
    tab.open(serve(state, 1, 3) + "/")
    tab.wait_for(LIVE)
    assert tab.value("window.broken") is None
    assert tab.value("[...document.scripts].map((s) => s.getAttribute('src'))") == ["/chart.js", "/page.js"]
    assert tab.texts("#runs option")[0] == CODE
    assert CODE in tab.value("byId('verdict-text').textContent")
    assert CODE in [row[0] for row in rows(tab, "Layers")]
    assert CODE in [row[5] for row in rows(tab, "Loss events, and what came before")]
    assert tab.value("ui.charts[0].chart.options.plugins.laneMarks.lanes.map((l) => l.name)") == [CODE]
    assert tab.value("document.querySelector('#grafana a').href").count("<") == 0
    assert tab.value("document.title") == "\u25b2 " + CODE + " – foreshock"
    assert tab.console == []
    tab.leave()
