# SPDX-License-Identifier: Apache-2.0
"""JSON-RPC 2.0 with one object per line. Calls are answered in the order they came."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from yeto.errors import YetoError

Method = Callable[..., dict[str, Any]]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
APPLICATION_ERROR = -32000


class RpcError(Exception):
    """An error of the protocol itself."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_reply(request_id: Any, code: int, error: YetoError) -> dict[str, Any]:
    data = {"error": error.code, "where": error.where, "hint": error.hint}
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "error": {"code": code, "message": error.what, "data": data},
    }


def call(methods: Mapping[str, Method], request: Any) -> dict[str, Any]:
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0" or "id" not in request:
        raise RpcError(INVALID_REQUEST, "not a JSON-RPC 2.0 request with an id")
    method = methods.get(request.get("method", ""))
    if method is None:
        raise RpcError(METHOD_NOT_FOUND, f"there is no method {request.get('method')!r}")
    params = request.get("params", {})
    names = method.__code__.co_varnames[: method.__code__.co_argcount]
    if not isinstance(params, dict) or set(params) != set(names):
        raise RpcError(INVALID_PARAMS, f"{request['method']} takes exactly: {', '.join(names)}")
    return method(**params)


def answer(methods: Callable[[], Mapping[str, Method]], line: bytes) -> dict[str, Any]:
    request_id = None
    try:
        try:
            request = json.loads(line)
        except ValueError as error:
            raise RpcError(PARSE_ERROR, "the line is not JSON") from error
        request_id = request.get("id") if isinstance(request, dict) else None
        return {"jsonrpc": "2.0", "id": request_id, "result": call(methods(), request)}
    except RpcError as error:
        return error_reply(request_id, error.code, YetoError("E_PROTOCOL", str(error)))
    except YetoError as error:
        return error_reply(request_id, APPLICATION_ERROR, error)
    except Exception as error:  # the parent must get an answer, whatever an SDK does
        traceback.print_exc(file=sys.stderr)
        text = f"{type(error).__name__}: {error}"
        return error_reply(request_id, APPLICATION_ERROR, YetoError("E_INTERNAL", text))


def take_stdout() -> BinaryIO:
    """The pipe to the parent. What an SDK prints goes to stderr from now on, not into it."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


def serve(methods: Callable[[], Mapping[str, Method]]) -> None:
    """Until stdin ends. `methods` is asked at each call, so an SDK that cannot be imported is an
    error of that call."""
    replies = take_stdout()
    for line in sys.stdin.buffer:
        replies.write(json.dumps(answer(methods, line)).encode() + b"\n")
        replies.flush()
