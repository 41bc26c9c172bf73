"""An object store that speaks S3 over HTTP (moto's server, in this process); and Spark's settings for it.

``FLOODMARK_S3`` names another one, as ``http://us:secret@localhost:9000``: its user and password come first.
"""

import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pyspark
from botocore.config import Config
from floodmark.producers.clients.consumers import Closing
from floodmark.producers.embedded.jars import fetch
from moto.server import ThreadedMotoServer
from typing_extensions import override

_SDK = "2.25.53"  # Hadoop 3.4.1 asks for the whole SDK, 2.24.6; these are the modules that it uses, of a later version


def jars() -> list[str]:
    """Return Hadoop's client for S3 and Spark's file manager for it; the first call fetches 14 MB."""
    shipped = list(Path(pyspark.__file__).parent.glob("jars/*.jar"))
    hadoop = next(jar.stem for jar in shipped if jar.name.startswith("hadoop-client-api-")).rpartition("-")[2]
    found = [
        *fetch("org.apache.hadoop", "hadoop-aws", hadoop, alone=True),
        *fetch("org.apache.spark", "spark-hadoop-cloud_2.13", pyspark.__version__, alone=True),
        *fetch("software.amazon.awssdk", "s3-transfer-manager", _SDK),
    ]
    names = {_name(jar) for jar in shipped}
    return [str(jar) for jar in found if _name(jar) not in names]


def _name(jar: Path) -> str:
    return re.split(r"-\d", jar.name)[0]


class ObjectStore(Closing):
    """A store with an empty bucket."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        usual = "http://us:secret@{}:{}".format(*self._server.get_host_and_port())
        parts = urlsplit(os.environ.get("FLOODMARK_S3", usual))
        endpoint, user, password = f"http://{parts.hostname}:{parts.port}", parts.username, parts.password
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=user,
            aws_secret_access_key=password,
            region_name="us-east-1",
            # Checksums of Amazon's own are unknown to some stores.
            config=Config(request_checksum_calculation="when_required", response_checksum_validation="when_required"),
        )
        self._bucket = f"states-{uuid.uuid4().hex[:12]}"
        self._client.create_bucket(Bucket=self._bucket)
        self.settings = {
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.access.key": user,
            "spark.hadoop.fs.s3a.secret.key": password,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
            ),
        }
        """What Spark needs to reach it, apart from `jars`."""

    def place(self, name: str) -> str:
        return f"s3a://{self._bucket}/{name}"

    def read(self, name: str) -> str | None:
        """Return an object's text; ``None``: it is not there."""
        with suppress(self._client.exceptions.NoSuchKey):
            return str(self._client.get_object(Bucket=self._bucket, Key=name)["Body"].read().decode())
        return None

    def names(self, prefix: str) -> list[str]:
        """Return the names of the objects that begin with this."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return [str(found["Key"]) for page in pages for found in page.get("Contents", [])]

    @override
    def close(self) -> None:
        self._client.close()
        self._server.stop()
