"""What a topic's bytes mean, and how rows become bytes again."""

from floodmark.spark_jobs.formats.confluent import confluent_avro, confluent_json, confluent_protobuf
from floodmark.spark_jobs.formats.format import Format
from floodmark.spark_jobs.formats.plain_values import avro, json

__all__ = ["Format", "avro", "confluent_avro", "confluent_json", "confluent_protobuf", "json"]
