"""What a topic's bytes mean, and how rows become bytes again."""

from floodmark.spark_jobs.formats.confluent import confluent_avro, confluent_json, confluent_protobuf
from floodmark.spark_jobs.formats.json_values import json
from floodmark.spark_jobs.formats.values import Format, avro

__all__ = ["Format", "avro", "confluent_avro", "confluent_json", "confluent_protobuf", "json"]
