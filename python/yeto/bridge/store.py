# SPDX-License-Identifier: Apache-2.0
"""Object stores of all clouds by obstore: s3://, gs://, az://, file:// and memory://.

Keys are plain names below the URL. Credentials and endpoints come from the environment and the
usual files, as with each cloud's own tools; they never appear in a message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from yeto.errors import YetoError

try:
    import obstore
    from obstore import exceptions
    from obstore.store import from_url
except ImportError as error:
    raise YetoError(
        "E_SETUP",
        "object stores need the package obstore",
        "python -m yeto.bridge store",
        "pip install 'yeto[object-store]'",
    ) from error

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "https", "file", "memory")
# Short enough that a caller hears of a dead network soon; it tries again by itself.
RETRY = {"max_retries": 4, "retry_timeout": timedelta(seconds=60)}
CLIENT = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=300)}

_stores: dict[str, Any] = {}


def _aws_credentials() -> Any:
    """Profiles, SSO and the like, which obstore leaves to boto3; none if boto3 is not there."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    session = boto3.Session()
    return Boto3CredentialProvider(session) if session.get_credentials() else None


def _options(url: str) -> dict[str, Any]:
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return {"mkdir": True}
    if scheme == "memory":
        return {}
    client: dict[str, Any] = dict(CLIENT)
    options: dict[str, Any] = {"retry_config": RETRY, "client_options": client}
    if scheme in ("s3", "s3a"):
        # An endpoint that somebody names as plain http (a store on this machine, say) is meant so.
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        if endpoint:
            options["endpoint"] = endpoint
        client["allow_http"] = endpoint.startswith("http://")
        credentials = _aws_credentials()
        if credentials is not None:
            options["credential_provider"] = credentials
    return options


def _store(url: str) -> Any:
    if url not in _stores:
        scheme = urlsplit(url).scheme
        if scheme not in SCHEMES:
            names = ", ".join(f"{name}://" for name in SCHEMES)
            raise YetoError("E_CONFIG", f"no object store has the scheme {scheme}", url, names)
        try:
            _stores[url] = from_url(url, **_options(url))
        except (exceptions.BaseError, ValueError, TypeError) as error:
            text = f"the URL names no object store: {_first_line(error)}"
            raise YetoError("E_CONFIG", text, url) from error
    return _stores[url]


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    code = re.search(r"<Code>(\w+)</Code>", text)  # the store's own word for it
    line = text.partition("\n")[0][:300]
    return f"{code[1]} ({line})" if code else line


def _translated(error: Exception, where: str) -> YetoError:
    text = str(error)
    line = _first_line(error)
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return YetoError(
            "E_CONFIG", "there is no such bucket", where, "make it, or correct the URL"
        )
    if isinstance(error, exceptions.NotFoundError | FileNotFoundError):
        return YetoError("E_NOT_FOUND", "there is no such object", where)
    denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if denied or "credential" in text.lower() or "403 Forbidden" in text or "401 " in text:
        return YetoError(
            "E_CREDENTIALS",
            f"the store refuses these credentials: {line}",
            where,
            "give the cloud's credentials by its usual variables or files",
        )
    if any(part in text for part in ("error sending request", "connect", "dns", "timed out")):
        return YetoError("E_UNREACHABLE", f"the store does not answer: {line}", where)
    return YetoError("E_IO", f"the store reports: {line}", where)


def _guarded(where: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise _translated(error, where) from error


def check(url: str) -> dict[str, Any]:
    """The URL can be understood. Nothing is asked over the network."""
    _store(url)
    return {}


def put(url: str, key: str, path: str, create: bool) -> dict[str, Any]:
    """The file becomes the object, whole or not at all. create: only if there is none."""

    def work() -> dict[str, Any]:
        try:
            # One request for `create`: a condition holds for single uploads only.
            obstore.put(_store(url), key, Path(path), mode="create" if create else "overwrite")
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            if not create:
                raise
            return {"created": False}
        return {"created": True}

    return _guarded(f"{url}/{key}", work)


def get(url: str, key: str, path: str, max_bytes: int) -> dict[str, Any]:
    """The object becomes the file. Refused before anything is written if it is larger."""

    def work() -> dict[str, Any]:
        found = obstore.get(_store(url), key)
        size = found.meta["size"]
        if size > max_bytes:
            raise YetoError(
                "E_DATA", f"it has {size} bytes, at most {max_bytes} are expected", f"{url}/{key}"
            )
        with open(path, "wb") as file:
            for chunk in found.stream(min_chunk_size=4 << 20):
                file.write(chunk)
        return {"bytes": size}

    return _guarded(f"{url}/{key}", work)


def head(url: str, key: str) -> dict[str, Any]:
    return _guarded(f"{url}/{key}", lambda: {"bytes": obstore.head(_store(url), key)["size"]})


def list_keys(url: str) -> dict[str, Any]:
    """Names directly below the URL, ascending."""

    def work() -> dict[str, Any]:
        found = obstore.list_with_delimiter(_store(url))["objects"]
        return {"keys": sorted(one["path"] for one in found)}

    return _guarded(url, work)


def delete(url: str, key: str) -> dict[str, Any]:
    """No error if there is none."""

    def work() -> dict[str, Any]:
        try:
            obstore.delete(_store(url), key)
        except (exceptions.NotFoundError, FileNotFoundError):
            pass
        return {}

    return _guarded(f"{url}/{key}", work)


METHODS = {
    "check": check,
    "put": put,
    "get": get,
    "head": head,
    "list": list_keys,
    "delete": delete,
}
