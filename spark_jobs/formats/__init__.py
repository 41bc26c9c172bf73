"""Formats of the values in a topic: how they become columns, and how columns become values."""

from floodmark.spark_jobs.formats.confluent import confluent_avro, confluent_json, confluent_protobuf
from floodmark.spark_jobs.formats.format import Format
from floodmark.spark_jobs.formats.plain_values import avro, json

__all__ = ["Format", "avro", "confluent_avro", "confluent_json", "confluent_protobuf", "json"]
