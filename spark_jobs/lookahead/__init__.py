"""Look ahead: a batch may run with a watermark that rests on marks which this batch is going to read.  Pure.

- `rules`: for which queries a job may look ahead, how far, and which watermarks matter to it;
- `marks_ahead`: the watermark that the marks ahead give;
- `batch.lookahead`, not pure: reads these marks from Kafka, and withdraws a watermark from Spark's log.
"""
