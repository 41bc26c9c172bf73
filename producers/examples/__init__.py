"""Small complete programs to copy: a service that writes orders, and a consumer of their totals without Spark.

Between the two runs the job of ``floodmark.spark_jobs.examples``.  Each is run by ``python -m`` and its module's name.
"""
