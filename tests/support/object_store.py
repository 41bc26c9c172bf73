"""An object store that speaks S3 over HTTP (moto's server), a process of its own; and Spark's settings for it.

``FLOODMARK_S3`` names another one, as ``http://us:secret@localhost:9000``: its user and password come first.
"""

import os
import re
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pyspark
from botocore.config import Config
from floodmark.producers.clients.consumers import Closing
from floodmark.producers.embedded.jars import fetch
from support.harness import until
from support.processes import Process
from typing_extensions import override

_SDK = "2.25.53"  # Hadoop 3.4.1 asks for the whole SDK, 2.24.6; these are the modules that it uses, of a later version
_MANAGER = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


def jars() -> list[str]:
    """Return Hadoop's client for S3 and Spark's file manager for it; the first call fetches 14 MB."""
    hadoop = next(Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")).stem.rpartition("-")[2]
    found = [
        *fetch("org.apache.hadoop", "hadoop-aws", hadoop, alone=True),
        *fetch("org.apache.spark", "spark-hadoop-cloud_2.13", pyspark.__version__, alone=True),
        *fetch("software.amazon.awssdk", "s3-transfer-manager", _SDK),
    ]
    shipped = {_name(jar) for jar in Path(pyspark.__file__).parent.glob("jars/*.jar")}
    return [str(jar) for jar in found if _name(jar) not in shipped]


def _name(jar: Path) -> str:
    return re.split(r"-\d", jar.name)[0]


class ObjectStore(Closing):
    """A store with an empty bucket."""

    def __init__(self, folder: Path) -> None:
        self._server: Process | None = None
        address = os.environ.get("FLOODMARK_S3")
        if address is None:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
            server = self._server = Process("object-store", command, folder, os.environ)
            until(lambda: "Running on http" in server.log(), "an object store", 60)
            address = re.findall(r"Running on (http://\S+)", server.log())[0]
        parts = urlsplit(address)
        self._endpoint = f"http://{parts.hostname}:{parts.port}"
        self._user, self._password = parts.username or "us", parts.password or "secret"
        self._client = boto3.client(
            "s3",
            endpoint_url=self._endpoint,
            aws_access_key_id=self._user,
            aws_secret_access_key=self._password,
            region_name="us-east-1",
            # Checksums of Amazon's own are unknown to some stores.
            config=Config(request_checksum_calculation="when_required", response_checksum_validation="when_required"),
        )
        self._bucket = f"states-{uuid.uuid4().hex[:12]}"
        self._client.create_bucket(Bucket=self._bucket)

    @property
    def settings(self) -> dict[str, str]:
        """What Spark needs to reach it, apart from `jars`."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self._endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.access.key": self._user,
            "spark.hadoop.fs.s3a.secret.key": self._password,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.sql.streaming.checkpointFileManagerClass": _MANAGER,
        }

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
        if self._server is not None:
            self._server.kill()
