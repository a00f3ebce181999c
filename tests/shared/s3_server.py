# SPDX-License-Identifier: Apache-2.0
"""An S3 server on loopback (moto) that checks signatures, for tests; bucket `runs`, one user.

A test file takes the fixture by importing `s3` from here.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

ALLOW_ALL = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}


def clean_environment() -> dict[str, str]:
    """This process's, without what names accounts of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
    return kept | {"AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1"}


class S3:
    """The server and one user that it knows."""

    def __init__(self) -> None:
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self._post("reset", b"")  # one process of tests has one state for all servers
        self._check_signatures(False)
        iam = self._client("iam", "setup", "setup")
        iam.create_user(UserName="syncer")
        policy = json.dumps(ALLOW_ALL)
        iam.put_user_policy(UserName="syncer", PolicyName="all", PolicyDocument=policy)
        key = iam.create_access_key(UserName="syncer")["AccessKey"]
        self._client("s3", "setup", "setup").create_bucket(Bucket="runs")
        self.key_id, self.secret = key["AccessKeyId"], key["SecretAccessKey"]
        self._check_signatures(True)

    def _client(self, service: str, key_id: str, secret: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
        )

    def _check_signatures(self, on: bool) -> None:
        self._post("reset-auth", b"0" if on else b"1000000")

    def _post(self, action: str, body: bytes) -> None:
        request = urllib.request.Request(
            f"{self.url}/moto-api/{action}", data=body, headers={"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(request).read()

    def environment(self, **changes: str) -> dict[str, str]:
        return clean_environment() | {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            **changes,
        }

    def keys(self, prefix: str) -> list[str]:
        """Of the objects below the prefix, without it."""
        client = self._client("s3", self.key_id, self.secret)
        found = client.list_objects_v2(Bucket="runs", Prefix=prefix + "/")
        return [one["Key"].removeprefix(prefix + "/") for one in found.get("Contents", [])]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    started = S3()
    yield started
    started.server.stop()
