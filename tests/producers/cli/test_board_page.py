"""The board in a real browser: it names a source that is paused, lets it go, and asks nobody else for anything."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from floodmark.producers.board.fold import KEPT, Fold, Timeline
from floodmark.producers.cli.board_page import BoardPage, page_view
from floodmark.producers.testing import mark
from floodmark.schemas.classify import Mark
from floodmark.schemas.errors import UsageError
from floodmark.schemas.topic_state import TopicState
from support.harness import until
from support.marked_chain import marked_chain

COMMAND = [sys.executable, "-m", "floodmark.producers.cli.main"]
REQUIRED = os.environ.get("FLOODMARK_REQUIRE_BROWSER") == "1"
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(not (DRIVER or REQUIRED), reason="needs chromedriver and chromium")
PHONE, DESK = (390, 844), (1280, 1000)


def fold(topic="clicks", sources=1, until_=3):
    found = Fold([topic])
    for source in range(sources):
        for number in range(until_):
            found.take(Mark(topic, 0, number, number * 1_000, mark(f"s{source}", number, sequence=number)))
    return found


def state_at(watermark):
    state = TopicState()
    state.apply(mark("web", watermark), 0, 0, Counter())
    return state


def test_a_timeline_forgets_and_stays_small():
    timeline, state = Timeline(), state_at(7)
    end = 2 * KEPT // timedelta(milliseconds=1)
    for log_time in range(0, end, 500):
        timeline.note("clicks", log_time, state)
    points = timeline.points(end)["clicks"]
    assert 890 <= len(points) <= 901
    assert points[0].at >= end - KEPT // timedelta(milliseconds=1)
    assert [point.number for point in points] == list(range(points[0].number, points[-1].number + 1))


def test_a_mark_with_a_log_time_far_ahead_does_not_end_a_timeline():
    timeline, state = Timeline(), state_at(7)
    for log_time in (1_000, 10**15, 2_000, 3_000):
        timeline.note("clicks", log_time, state)
    assert [point.at for point in timeline.points(now=4_000)["clicks"]] == [1_000, 2_000, 3_000]


def test_the_past_is_drawn_from_the_marks():
    found = fold(until_=40)
    assert [(point.at, point.watermark) for point in found.timeline.points(now=2_000)["clicks"][:3]] == [
        (0, 0),
        (1_000, 1),
        (2_000, 2),
    ]


def test_a_source_with_several_partitions_is_one_line():
    found = Fold(["clicks"])
    for number in range(40):
        for partition in range(3):
            made = mark("web", number + partition, sequence=number, partitions=3)
            found.take(Mark("clicks", partition, number, number * 1_000, made))
    sources = page_view(found.board(now=3_600_000))["sources"]
    assert [source["place"] for source in sources] == ["clicks/0,1,2/web"]


def test_a_page_of_a_thousand_sources_names_the_worst_and_stays_small():
    shown = page_view(fold(sources=1_000).board(now=3_600_000))
    assert len(shown["sources"]) + shown["more"] == 1_000
    assert len(json.dumps(shown)) < 20_000


def board_and_points():
    found = fold()
    return found.board(now=3_000), found.timeline.points(now=3_000)


@pytest.fixture
def page():
    with BoardPage(0, interval=1) as served:
        served.show(*board_and_points())
        yield served


def port_of(page):
    return int(page.url.rstrip("/").rpartition(":")[2])


def ask(page, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port_of(page), timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


@pytest.mark.parametrize("path", ["/", "/board.css", "/board.js"])
def test_the_page_asks_nothing_of_anybody_else(page, path):
    answer, body = ask(page, path)
    assert answer.status == 200
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    addresses = set(re.findall(rb"https?://[^\"' ]+", body)) - {b"http://www.w3.org/2000/svg"}
    assert not addresses


def test_the_board_is_json_with_what_is_new(page):
    view = json.loads(ask(page, "/board.json")[1])
    assert [topic["topic"] for topic in view["topics"]] == ["clicks"]
    assert view["lines"] == {"clicks": [[0, 0], [1_000, 1], [2_000, 2]]}
    assert json.loads(ask(page, f"/board.json?after={view['last'] - 1}")[1])["lines"] == {"clicks": [[2_000, 2]]}
    for after in ("3000", "x", "-1", "\u0663"):
        answer, body = ask(page, f"/board.json?after={after.encode().hex() if not after.isascii() else after}")
        assert answer.status == 200
        assert json.loads(body)["now"] == 3_000


@pytest.mark.parametrize("host", ["elsewhere.example", "elsewhere.example:8417", "127.0.0.1.example", ""])
def test_a_page_from_elsewhere_cannot_read_it(page, host):
    answer, text = ask(page, "/board.json", Host=host)
    assert (answer.status, b"The Host header must be 127.0.0.1 or localhost" in text) == (403, True)


@pytest.mark.parametrize("path", ["/../board.py", "/board.py", "/x", "/board.json/"])
def test_it_serves_its_own_files_and_no_other(page, path):
    assert ask(page, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(page, method):
    assert ask(page, "/board.json", method)[0].status == 501


def test_a_port_that_is_taken_is_an_error(page):
    with pytest.raises(UsageError, match="choose another"):
        BoardPage(port_of(page), interval=1)


@pytest.mark.parametrize(
    ("options", "told"), [(["--serve", "--once"], "use one of them"), (["--port", "8460"], "pass --serve, too")]
)
def test_it_is_either_printed_or_served(options, told):
    line = [*COMMAND, "board", "x", *options, "--bootstrap-servers", "127.0.0.1:1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert told in done.stderr


@contextmanager
def browser(size):
    from selenium import webdriver  # noqa: PLC0415  # of the tests that need a browser
    from selenium.webdriver.chrome.service import Service  # noqa: PLC0415  # the same

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size={},{}".format(*size))
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@needs_browser
def test_the_page_says_for_how_long_as_the_terminal_does():
    board, points = board_and_points()
    (stage,) = board.stages
    (clicks,) = stage.topics

    def held(since, *, exact):
        topic = replace(clicks, since=since, since_exact=exact)
        return replace(board, now=board.now + 1, stages=(replace(stage, topics=(topic,)),))

    with BoardPage(0, interval=1) as page, browser(DESK) as driver:
        script = "return document.querySelector('[data-name=for]')?.textContent"
        for since, exact, text in ((1_001, True, "2.0 s"), (1_001, False, "over 2.0 s"), (9_000, True, "0.0 s")):
            page.show(held(since, exact=exact), points)
            driver.get(page.url)
            until(lambda text=text: driver.execute_script(script) == text, text)


@needs_browser
def test_the_page_says_that_what_it_shows_is_old():
    board, points = board_and_points()
    with browser(DESK) as driver:

        def says(text):
            script = "return [document.getElementById('status').textContent, document.title]"

            def shown():
                status, title = driver.execute_script(script)
                return re.match(text, status) and title == f"Floodmark: {status}"

            return shown

        last = "this is what was seen last"
        with BoardPage(0, interval=5) as page:
            driver.get(page.url)
            until(says("reading"), "the first reading")
        until(says("the board has ended$"), "the end of the first reading")
        with BoardPage(port_of(page), interval=5) as page:
            page.show(board, points)
            until(says("all is well"), "the board")
            later = "const now = performance.now.bind(performance); performance.now = () => now() + arguments[0]"
            driver.execute_script(later, 60_000)
            until(says(f"not updated for 1 min.*: {last}"), "that it is old")
            page.show(replace(board, now=board.now + 1), points)
            until(says("all is well"), "a new board")
        until(says(f"the board has ended: {last}"), "the end")
        with socket.create_server(("127.0.0.1", port_of(page))):
            until(says(f"the board does not answer: {last}"), "that it does not answer")


@needs_browser
def test_the_page_draws_all_points_of_a_command_that_was_started_again():
    with browser(DESK) as driver:

        def points():
            return driver.execute_script("return lines.get('clicks')")

        with BoardPage(0, interval=1) as page:
            page.show(*board_and_points())
            driver.get(page.url)
            until(lambda: points() == [[0, 0], [1_000, 1], [2_000, 2]], "the points")
        with BoardPage(port_of(page), interval=1) as page:
            found = fold(until_=5)
            page.show(found.board(now=5_000), {"clicks": found.timeline.points(now=5_000)["clicks"][1:]})
            until(lambda: points() == [[at * 1_000, at] for at in range(1, 5)], "all points, and no other")


@needs_browser
def test_a_click_and_the_focus_outlast_an_update():
    from selenium.webdriver.common.action_chains import ActionChains  # noqa: PLC0415  # as in `browser`

    found = Fold(["clicks", "views"])
    for topic in found.topics:
        found.take(Mark(topic, 0, 0, 0, mark("web", 0)))
    with BoardPage(0, interval=1) as page, browser(DESK) as driver:

        def update(now):
            page.show(found.board(now), found.timeline.points(now))
            until(lambda: driver.execute_script("return view?.now") == now, "the update")

        driver.get(page.url)
        update(3_000)
        chosen = driver.execute_script("return chosen")
        (other,) = found.topics - {chosen}
        row = driver.execute_script("return document.querySelector('tr[aria-selected=false]')")
        ActionChains(driver).click_and_hold(row).perform()
        update(4_000)
        ActionChains(driver).release().perform()
        assert driver.execute_script("return chosen") == other
        for focused in ("th button", "tbody tr"):
            driver.execute_script("document.querySelector(arguments[0]).focus()", focused)
            update(driver.execute_script("return view.now") + 1)
            assert driver.execute_script("return document.activeElement.matches(arguments[0])", focused)


@contextmanager
def served(kafka, topic):
    line = [*COMMAND, "board", topic, "--serve", "--port", "0", "--interval", "0.2"]
    line += ["--bootstrap-servers", kafka.bootstrap_servers]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as running:
        try:
            said = ""
            while "http" not in said:
                said = running.stderr.readline()
                assert said or running.poll() is None, "it has ended"
            yield re.search(r"http://\S+/", said)[0]
        finally:
            running.terminate()
            errors = running.stderr.read()
    assert (running.returncode, errors) == (0, "")


@pytest.mark.kafka
@pytest.mark.timeout(240)
@needs_browser
def test_the_page_names_a_paused_source_and_forgets_it_when_it_goes_on(kafka, topic, tmp_path):
    first, second, third = topic(2), topic(1), topic(1)
    with (
        marked_chain(kafka.config, first, second, third) as chain,
        served(kafka, third) as url,
        browser(DESK) as driver,
    ):
        driver.get(url)

        def text(name):
            return driver.execute_script("return document.getElementById(arguments[0]).textContent", name)

        def is_well():
            return text("status") == "all is well"

        until(is_well, "a page on which all is well", 60)
        assert text("chosen") == third
        until(lambda: text("cause") == "", "no cause")
        lines = driver.execute_script("return document.querySelectorAll('#watermarks path:not(.clock)').length")
        assert lines == 3
        chain.paused.add("web-2")
        until(lambda: text("status") == "stuck or failing" and "/web-2:" in text("cause"), "the stall", 60)
        assert f"{first}/" in text("cause")
        assert text("advice")
        driver.save_screenshot(str(tmp_path / "stuck.png"))
        button = driver.execute_script("return document.querySelectorAll('th button')[3]")
        for order in ("ascending", "descending"):
            driver.execute_script("arguments[0].click()", button)
            script = "return document.querySelectorAll('th')[3].getAttribute('aria-sort')"
            assert driver.execute_script(script) == order
            button = driver.execute_script("return document.querySelectorAll('th button')[3]")
        chain.paused.clear()
        until(is_well, "that it is forgotten", 60)
        driver.set_window_size(*PHONE)
        width = driver.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1], "nothing is cut off on a phone"
        driver.save_screenshot(str(tmp_path / "phone.png"))
        errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert errors == []
