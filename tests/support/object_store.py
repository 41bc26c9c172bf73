"""An object store that speaks S3 over HTTP (moto's server, in this process); and Spark's settings for it."""

import re
import uuid
from contextlib import suppress
from pathlib import Path

import boto3
import pyspark
from floodmark.producers.clients.consumers import Closing
from floodmark.producers.embedded.jars import fetch
from moto.server import ThreadedMotoServer
from typing_extensions import override

_SDK = "2.25.53"  # Hadoop 3.4.1 asks for the whole SDK, 2.24.6; these are the modules that it uses, of a later version

_FILE_MANAGER = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


def jars() -> list[str]:
    """Return Hadoop's client for S3 and Spark's file manager for it; the first call fetches 14 MB."""
    shipped = list(Path(pyspark.__file__).parent.glob("jars/*.jar"))
    hadoop = next(jar.stem for jar in shipped if jar.name.startswith("hadoop-client-api-")).rpartition("-")[2]
    found = [
        *fetch("org.apache.hadoop", "hadoop-aws", hadoop, alone=True),
        *fetch("org.apache.spark", "spark-hadoop-cloud_2.13", pyspark.__version__, alone=True),
        *fetch("software.amazon.awssdk", "s3-transfer-manager", _SDK),
    ]
    names = {re.split(r"-\d", jar.name)[0] for jar in shipped}
    return [str(jar) for jar in found if re.split(r"-\d", jar.name)[0] not in names]


class ObjectStore(Closing):
    """A store with an empty bucket; ``settings`` is what Spark needs to reach it, apart from `jars`."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        endpoint = "http://{}:{}".format(*self._server.get_host_and_port())
        keys = {"aws_access_key_id": "us", "aws_secret_access_key": "secret"}
        self._client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        self._bucket = f"states-{uuid.uuid4()}"
        self._client.create_bucket(Bucket=self._bucket)
        place = {"endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
        login = {"access.key": "us", "secret.key": "secret"}
        self.settings = {f"spark.hadoop.fs.s3a.{name}": value for name, value in {**place, **login}.items()}
        self.settings["spark.sql.streaming.checkpointFileManagerClass"] = _FILE_MANAGER

    def place(self, name: str) -> str:
        return f"s3a://{self._bucket}/{name}"

    def read(self, name: str) -> str | None:
        """Return an object's text; ``None``: it is not there."""
        with suppress(self._client.exceptions.NoSuchKey):
            return self._client.get_object(Bucket=self._bucket, Key=name)["Body"].read().decode()
        return None

    def names(self, prefix: str) -> list[str]:
        """Return the names of the first 1,000 objects that begin with this."""
        found = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix)
        return [each["Key"] for each in found.get("Contents", [])]

    @override
    def close(self) -> None:
        self._client.close()
        self._server.stop()
