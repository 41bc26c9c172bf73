"""How a job without a checkpoint starts: at a given time, or after the results that its output topic already has.

- `start_options`: the user's choice;
- `job_start`: checks this choice against the checkpoint and the output topic;
- `find_start_point`: asks Kafka where to start; `start_point`: the answer, which the checkpoint stores;
- `prepare_checkpoint`: moves a new checkpoint to the start point.
"""
