"""Tables as the output of a job: rows, watermark and the position of the job are one commit.

- `table`: what Iceberg and Delta share; `iceberg`, `delta`: their commits;
- `staging`: batches in the checkpoint that await the next commit;
- `table_sink`: stages each batch, and commits them together.
"""
