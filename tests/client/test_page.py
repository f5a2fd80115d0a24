"""The page at / in a real browser: keyboard only, phone width, policy, markup from the model."""
import pytest
from browser import PROGRAM, Browser
from serving import serve

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium is installed")

D = "｜DSML｜"
SCRIPT = [
    {"when": "[call]", "reply": f'Sky first.\n</think>\n\nI look.\n\n<{D} calls>\n'
     f'<{D} invoke name="weather">\n<{D} parameter name="city" string="true">Rome</{D} parameter>\n'
     f'</{D} invoke>\n</{D} calls>', "step_us": 300},
    {"when": "[long]", "reply": "word ", "repeat": 100000, "step_us": 5000},
    {"when": "[code]", "reply": "T.\n</think>\n\nThis is **bold** and `<u>x</u>`, 2 * 3 ** 4:\n\n"
     "```python\na = '<i>' ** 2\n  # **b**\n```\n\n```\nan open fence", "step_us": 300},
    {"when": "[error]", "reply": "x", "finish": "error"},
    {"reply": 'Two numbers.\n</think>\n\n<b id="evil">5</b> <img src=x onerror=alert(1)>',
     "step_us": 300},
]
TOOLS = '[{"type":"function","function":{"name":"weather","parameters":{"type":"object",' \
        '"properties":{"city":{"type":"string"}}}}}]'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(script=SCRIPT, tmp_path=tmp_path_factory.mktemp("s")) as s:
        yield s


@pytest.fixture()
def page(server):
    browser = Browser()
    browser.open(server.url + "/")
    browser.wait("document.getElementById('model').textContent === 'tiny'")
    yield browser
    problems = [p for p in browser.problems() if "500 (Internal" not in str(p)]
    browser.close()
    assert not problems, problems


def ask(page, text):
    page.type(text)
    page.key("Enter")


def test_files_and_policy(server):
    for path, kind in [("/", "text/html"), ("/app.js", "text/javascript"),
                       ("/text.js", "text/javascript"), ("/style.css", "text/css"),
                       ("/favicon.svg", "image/svg+xml")]:
        status, headers, body = server.request("GET", path)
        assert status == 200 and headers["content-type"].startswith(kind) and body
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert b"http://" not in body.replace(b"http://www.w3.org", b"") and b"https://" not in body


def test_a_conversation_with_the_keyboard_alone(page):
    assert page.run("document.activeElement.id") == "input"
    page.type("first line")
    page.key("Enter", shift=True)
    page.type("second line")
    page.key("Enter")
    page.wait("document.querySelector('.foot') !== null")
    assert page.run("document.querySelector('.user .text').textContent") == "first line\nsecond line"
    # the reasoning is folded, and Tab and Enter open it
    assert page.run("document.querySelector('.thinking').open") is False
    for _ in range(40):
        page.key("Tab")
        if page.run("document.activeElement.tagName === 'SUMMARY' && "
                    "document.activeElement.parentElement.className === 'thinking'"):
            break
    page.key("Enter")
    page.wait("document.querySelector('.thinking').open")
    assert page.run("document.querySelector('.thinking .text').textContent") == "Two numbers."


def test_what_the_model_writes_is_never_markup(page):
    ask(page, "hi")
    page.wait("document.querySelector('.foot') !== null")
    assert page.run("document.getElementById('evil')") is None
    assert page.run("document.querySelector('.assistant img')") is None
    assert page.run("document.querySelector('.assistant > .text').textContent").startswith("<b id=")


def test_code_of_the_model_is_set_apart_and_still_text(page):
    ask(page, "[code] please")
    page.wait("document.querySelector('.foot') !== null")
    assert page.run("document.querySelector('.code pre').textContent") == "a = '<i>' ** 2\n  # **b**"
    assert page.run("document.querySelector('.code .bar span').textContent") == "python"
    assert page.run("document.querySelector('.assistant > .text > code').textContent") == "<u>x</u>"
    assert page.run("document.querySelector('.assistant > .text > strong').textContent") == "bold"
    assert page.run("document.querySelector('.assistant i, .assistant u')") is None
    text = page.run("document.querySelector('.assistant > .text').textContent")
    assert "2 * 3 ** 4" in text and text.endswith("an open fence")


def test_a_suggestion_is_sent_with_the_keyboard(page):
    assert page.run("document.querySelectorAll('.suggestions button').length") == 3
    page.run("document.querySelector('.suggestions button').focus()")
    page.key("Enter")
    page.wait("document.querySelector('.foot') !== null")
    assert page.run("document.querySelector('.empty')") is None
    page.run("document.getElementById('new').click()")
    assert page.run("document.querySelectorAll('.suggestions button').length") == 3


def test_escape_stops_the_answer_and_the_request(server, page):
    ask(page, "[long] go")
    page.wait("(document.querySelector('.thinking .text') || {textContent: ''}).textContent.length > 20")
    assert page.run("document.getElementById('stop').hidden") is False
    page.key("Escape")
    page.wait("document.getElementById('stop').hidden")
    assert "stopped" in page.run("document.querySelector('.foot').textContent")
    server.wait_metric("deepinfer_requests_running", 0)


def test_tool_calls_are_shown_and_answered(page):
    page.run(f"document.getElementById('p-tools').value = {TOOLS!r}")
    ask(page, "[call] weather?")
    page.wait("document.querySelector('.call textarea') !== null")
    assert page.run("document.querySelector('.call pre').textContent") == '{"city": "Rome"}'
    page.type("sunny")
    page.key("Tab")
    page.run("document.getElementById('p-tools').value = ''")
    assert page.run("document.activeElement.textContent") == "Send result"
    page.key("Enter")
    page.wait("document.querySelectorAll('.assistant').length === 2")


def test_an_error_is_shown(page):
    page.run("document.getElementById('p-temperature').value = '9'")
    ask(page, "hi")
    page.wait("document.querySelector('.failed') !== null")
    assert "temperature" in page.run("document.querySelector('.failed').textContent")
    page.events.clear()  # the browser notes the status 400 as an error of the network


def test_the_engine_is_seen_at_work(page):
    ask(page, "[long] go")
    page.wait("[...document.querySelectorAll('#numbers dd')][0].textContent === '1'")
    page.wait("Number([...document.querySelectorAll('#numbers dd')][2].textContent) > 20")
    page.key("Escape")


@pytest.mark.parametrize("width", [320, 390, 760])
def test_narrow_screens_have_no_sideways_scrolling(page, width):
    page.size(width, 700)
    ask(page, "hi " + "x" * 200)
    page.wait("document.querySelector('.foot') !== null")
    assert page.run("document.documentElement.scrollWidth") <= width
    page.run("document.getElementById('show-engine').click()")
    assert page.run("getComputedStyle(document.getElementById('engine')).display") == "block"
    assert page.run("document.documentElement.scrollWidth") <= width


def test_dark_mode_follows_the_system(server):
    colours = []
    for dark in [False, True]:
        browser = Browser(dark=dark)
        browser.open(server.url + "/")
        colours.append(browser.run("getComputedStyle(document.body).backgroundColor"))
        browser.close()
    assert colours[0] != colours[1]
