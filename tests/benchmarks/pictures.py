"""Draw the pictures of the pages: the board in a browser and in a terminal, of a chain whose source `web-2` stops.

It needs chromium and chromedriver, and takes about two minutes: `PYTHONPATH=tests python tests/benchmarks/pictures.py`.
"""

import argparse
import io
import re
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from floodmark.producers import EmbeddedKafka, create_topics
from floodmark.producers.cli.board_page import BoardPage
from floodmark.producers.cli.board_text import board_table
from floodmark.producers.readers.chain import ChainReader
from rich.console import Console
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from support.marked_chain import marked_chain

PRODUCERS = Path(__file__).parents[2] / "producers"
TOPICS = {"clicks": 2, "counts": 1, "means": 1}


def browser(scheme, width, height):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={width},{height}"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    return driver


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=90, help="how long all sources send, before web-2 stops")
    parser.add_argument("--to", type=Path, default=PRODUCERS, help="folder of the pictures")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(1200, 860), help="width and height of the browser's window"
    )
    given = parser.parse_args()
    with TemporaryDirectory() as folder, EmbeddedKafka(Path(folder)) as kafka:
        create_topics(kafka.config, TOPICS)
        with marked_chain(kafka.config, *TOPICS) as chain:
            time.sleep(given.seconds)
            chain.paused.add("web-2")
            time.sleep(given.seconds / 3)
            with (
                ChainReader(kafka.config, ["means"]) as reader,
                BoardPage(0, interval=1) as page,
            ):
                board = reader.board()
                page.show(board, reader.points())
                console = Console(file=io.StringIO(), record=True, width=128, force_terminal=True)
                console.print("$ floodmark board means --once", highlight=False)
                console.print(board_table(board, console.width))
                drawn = console.export_svg(title="floodmark board")
                no_fonts = re.sub(r"@font-face {.*?}", "", drawn, flags=re.DOTALL)  # the reader's monospace will do
                (given.to / "board-terminal.svg").write_text(no_fonts)
                for scheme in ("light", "dark"):
                    driver = browser(scheme, *given.size)
                    driver.get(page.url)
                    time.sleep(3)
                    driver.save_screenshot(str(given.to / f"board-{scheme}.png"))
                    driver.quit()


if __name__ == "__main__":
    main()
