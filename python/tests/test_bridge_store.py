# SPDX-License-Identifier: Apache-2.0
"""The store part of the bridge against a real S3 server on loopback (moto) and other schemes.

Goal: objects appear whole or not at all, create never replaces, and what is wrong with a place or
its credentials is said in words. Method: the bridge as a child process, as the native program
starts it; moto with its check of signatures switched on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3, clean_environment, s3

from yeto.bridge import rpc
from yeto.errors import YetoError

__all__ = ["s3"]  # a fixture

SOURCES = Path(__file__).resolve().parent.parent


class Bridge:
    """A child process as the native program starts it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "yeto.bridge", "store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=SOURCES,
        )
        self.number = 0

    def raw(self, line: bytes) -> dict[str, Any]:
        assert self.child.stdin and self.child.stdout
        self.child.stdin.write(line + b"\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        request = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        reply = self.raw(json.dumps(request).encode())
        assert reply["id"] == self.number
        if "error" in reply:
            data = reply["error"]["data"]
            raise YetoError(data["error"], reply["error"]["message"], data["where"], data["hint"])
        return reply["result"]

    def close(self) -> None:
        assert self.child.stdin and self.child.stdout
        self.child.stdin.close()
        assert self.child.wait(timeout=30) == 0
        self.child.stdout.close()


@pytest.fixture(params=["s3", "file", "memory"])
def place(request: pytest.FixtureRequest, s3: S3, tmp_path: Path) -> Iterator[tuple[Bridge, str]]:
    urls = {
        "s3": f"s3://runs/{tmp_path.name}/checkpoint",
        "file": f"file://{tmp_path}/store",
        "memory": "memory:///",
    }
    bridge = Bridge(s3.environment())
    yield bridge, urls[request.param]
    bridge.close()


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_objects_come_back_and_create_never_replaces(
    place: tuple[Bridge, str], tmp_path: Path
) -> None:
    bridge, url = place
    assert bridge.call("list", url=url) == {"keys": []}
    large = os.urandom(6 << 20)
    first = write(tmp_path / "a", large)
    second = write(tmp_path / "b", b"second")
    assert bridge.call("put", url=url, key="one.bin", path=first, create=True) == {"created": True}
    again = bridge.call("put", url=url, key="one.bin", path=second, create=True)
    assert again == {"created": False}
    assert bridge.call("head", url=url, key="one.bin") == {"bytes": len(large)}
    back = tmp_path / "back"
    got = bridge.call("get", url=url, key="one.bin", path=str(back), max_bytes=len(large))
    assert got == {"bytes": len(large)}
    assert back.read_bytes() == large
    bridge.call("put", url=url, key="one.bin", path=second, create=False)
    bridge.call("get", url=url, key="one.bin", path=str(back), max_bytes=100)
    assert back.read_bytes() == b"second"
    bridge.call("put", url=url, key="a=+ b.bin", path=second, create=True)
    assert bridge.call("list", url=url) == {"keys": ["a=+ b.bin", "one.bin"]}
    bridge.call("delete", url=url, key="a=+ b.bin")
    bridge.call("delete", url=url, key="a=+ b.bin")
    assert bridge.call("list", url=url) == {"keys": ["one.bin"]}


def test_what_is_missing_or_too_large_is_said(place: tuple[Bridge, str], tmp_path: Path) -> None:
    bridge, url = place
    target = tmp_path / "back"
    for method, params in (
        ("get", {"path": str(target), "max_bytes": 10}),
        ("head", {}),
    ):
        with pytest.raises(YetoError) as missing:
            bridge.call(method, url=url, key="nothing", **params)
        assert missing.value.code == "E_NOT_FOUND"
        assert missing.value.where == f"{url}/nothing"
    bridge.call("put", url=url, key="ten", path=write(tmp_path / "a", b"0123456789"), create=True)
    with pytest.raises(YetoError) as large:
        bridge.call("get", url=url, key="ten", path=str(target), max_bytes=9)
    assert large.value.code == "E_DATA"
    assert not target.exists()


def test_two_creators_of_one_key_have_one_winner(s3: S3, tmp_path: Path) -> None:
    bridges = [Bridge(s3.environment()) for _ in range(4)]
    url = "s3://runs/claims"
    won = 0
    for i, bridge in enumerate(bridges):
        path = write(tmp_path / str(i), str(i).encode())
        request = {"jsonrpc": "2.0", "id": 1, "method": "put"}
        request["params"] = {"url": url, "key": "term-1", "path": path, "create": True}
        assert bridge.child.stdin
        bridge.child.stdin.write(json.dumps(request).encode() + b"\n")
        bridge.child.stdin.flush()
    for bridge in bridges:
        assert bridge.child.stdout
        won += json.loads(bridge.child.stdout.readline())["result"]["created"]
        bridge.close()
    assert won == 1


@pytest.mark.parametrize(
    "changes",
    [{"AWS_ACCESS_KEY_ID": "AKIAWRONG"}, {"AWS_SECRET_ACCESS_KEY": "wrong"}],
    ids=["key", "secret"],
)
def test_wrong_credentials_are_said_and_not_shown(
    s3: S3, tmp_path: Path, changes: dict[str, str]
) -> None:
    bridge = Bridge(s3.environment(**changes))
    for method, params in (
        ("list", {}),
        ("put", {"key": "k", "path": write(tmp_path / "a", b"x"), "create": True}),
    ):
        with pytest.raises(YetoError) as refused:
            bridge.call(method, url="s3://runs/x", **params)
        assert refused.value.code == "E_CREDENTIALS", refused.value.text()
        assert s3.secret not in refused.value.text()
        assert refused.value.hint
    bridge.close()


def test_credentials_of_a_profile_are_found(s3: S3, tmp_path: Path) -> None:
    profile = f"[team]\naws_access_key_id = {s3.key_id}\naws_secret_access_key = {s3.secret}\n"
    path = write(tmp_path / "credentials", profile.encode())
    environment = s3.environment(AWS_SHARED_CREDENTIALS_FILE=path, AWS_PROFILE="team")
    del environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]
    bridge = Bridge(environment)
    assert bridge.call("list", url="s3://runs/profile") == {"keys": []}
    bridge.close()


def test_a_bucket_that_does_not_exist_is_named(s3: S3, tmp_path: Path) -> None:
    bridge = Bridge(s3.environment())
    url = "s3://no-such-bucket/x"
    path = write(tmp_path / "a", b"x")
    for method, params in (("list", {}), ("put", {"key": "k", "path": path, "create": True})):
        with pytest.raises(YetoError) as missing:
            bridge.call(method, url=url, **params)
        assert missing.value.code == "E_CONFIG", missing.value.text()
        assert "bucket" in missing.value.what
    bridge.close()


def test_a_store_that_does_not_answer_is_said(s3: S3) -> None:
    bridge = Bridge(s3.environment(AWS_ENDPOINT_URL="http://127.0.0.1:9"))
    with pytest.raises(YetoError) as silent:
        bridge.call("list", url="s3://runs/x")
    assert silent.value.code == "E_UNREACHABLE", silent.value.text()
    bridge.close()


def test_urls_that_name_no_store_are_refused(s3: S3) -> None:
    bridge = Bridge(s3.environment())
    for url in ("ftp://host/x", "s3://", "nothing"):
        with pytest.raises(YetoError) as refused:
            bridge.call("check", url=url)
        assert refused.value.code == "E_CONFIG", url
    bridge.close()


def test_every_line_gets_one_answer_whatever_it_holds(s3: S3) -> None:
    bridge = Bridge(s3.environment())
    for line, code in (
        (b"x", rpc.PARSE_ERROR),
        (b"[]", rpc.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":"list"}', rpc.INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"nothing"}', rpc.METHOD_NOT_FOUND),
        (b'{"jsonrpc":"2.0","id":1,"method":"list","params":{}}', rpc.INVALID_PARAMS),
        (b'{"jsonrpc":"2.0","id":1,"method":"list","params":{"url":7}}', rpc.APPLICATION_ERROR),
    ):
        assert bridge.raw(line)["error"]["code"] == code, line
    assert bridge.call("list", url="memory:///") == {"keys": []}
    bridge.close()


def test_prints_of_an_sdk_do_not_come_between_answers() -> None:
    program = (
        "from yeto.bridge.rpc import serve\n"
        "import os\n"
        "def noisy():\n"
        "    print('hello'); os.system('echo hello')\n"
        "    return {'ok': True}\n"
        "serve(lambda: {'noisy': noisy})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=b'{"jsonrpc":"2.0","id":1,"method":"noisy","params":{}}\n',
        capture_output=True,
        cwd=SOURCES,
        check=True,
    )
    assert json.loads(done.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {"ok": True}}
    assert done.stderr.count(b"hello") == 2


def test_a_missing_package_is_an_error_of_the_call_that_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "obstore.py").write_text("raise ImportError('no such package')\n")
    environment = clean_environment() | {"PYTHONPATH": str(tmp_path)}
    bridge = Bridge(environment)
    with pytest.raises(YetoError) as missing:
        bridge.call("check", url="memory:///")
    assert missing.value.code == "E_SETUP"
    assert "yeto[object-store]" in missing.value.hint
    bridge.close()


def test_an_unknown_part_is_refused_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "yeto.bridge", "nothing"], capture_output=True, cwd=SOURCES
    )
    assert done.returncode == 64
    assert b"store" in done.stderr
