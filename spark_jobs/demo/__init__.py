"""The main job: real flights through three stages, two of them Spark jobs, compared with a batch computation."""
