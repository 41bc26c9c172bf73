"""A consumer without Spark: the total of each minute, when it is complete, from ``revenue_job`` into SQLite.

One transaction stores rows and position, so each minute is stored exactly once, also after a crash:

    python -m floodmark.producers.examples.totals_consumer --bootstrap-servers localhost:9092 --database totals.sqlite
"""

import argparse
import json
import sqlite3
from datetime import UTC, datetime, timedelta

from floodmark.producers import Data, Position, WatermarkedConsumer


def event_time(record: Data) -> int:
    """Return the event time of a record, epoch milliseconds: its minute's end, so its total comes a minute later."""
    minute = datetime.fromisoformat(json.loads(record.value or b"")["minute"])
    return round(minute.timestamp() * 1000)


def main() -> None:
    """Store the total of each minute until all sources have ended."""
    parser = argparse.ArgumentParser(description="Store the total of each minute.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", default="revenue")
    parser.add_argument("--database", required=True)
    options = parser.parse_args()

    config = {"bootstrap.servers": options.bootstrap_servers}
    database = sqlite3.connect(options.database)
    database.execute("CREATE TABLE IF NOT EXISTS totals (minute TEXT PRIMARY KEY, shops INT, revenue INT)")
    database.execute("CREATE TABLE IF NOT EXISTS position (only_one INT PRIMARY KEY, text TEXT)")
    stored = database.execute("SELECT text FROM position").fetchone()
    position = Position(stored[0]) if stored else None  # None: from the beginning
    with WatermarkedConsumer(config, [options.topic], event_time, position=position) as consumer:
        while not consumer.ended:
            for window in consumer.windows(timedelta(minutes=1)):
                rows = [json.loads(record.value or b"") for record in window.rows]
                minute = datetime.fromtimestamp(window.start / 1000, UTC).isoformat()
                total = (minute, len(rows), sum(row["revenue"] for row in rows))
                with database:  # one transaction: the total and the next position
                    database.execute("INSERT INTO totals VALUES (?, ?, ?)", total)
                    database.execute("REPLACE INTO position VALUES (1, ?)", [window.position.text])
                print(*total)


if __name__ == "__main__":
    main()
