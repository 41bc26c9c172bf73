"""Small complete programs to copy: a service that writes orders, and a consumer of their totals without Spark.

The job of ``floodmark.spark_jobs.examples`` runs between them.  Run each with ``python -m`` and its module name.
"""
