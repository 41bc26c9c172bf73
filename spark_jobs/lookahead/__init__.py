"""Look ahead: a batch may run with a watermark of marks that this batch is going to read.  Pure.

- `rules`: which queries may look ahead, how far, and which watermarks matter to them;
- `marks_ahead`: the watermark that the marks ahead give;
- `batch.lookahead`, not pure: reads these marks from Kafka, and withdraws a watermark from Spark's log.
"""
