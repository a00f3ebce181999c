# SPDX-License-Identifier: Apache-2.0
"""yeto._core: what it takes and refuses, and that a wait can be ended by a signal.

The protocol itself is tested in C++ (sync/boundary) and with real processes (tests/e2e).
"""

import gc
import json
import os
import pkgutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yeto

# The package comes from the source tree here, the native module from where the wheel put it.
yeto.__path__ = pkgutil.extend_path(yeto.__path__, "yeto")
from yeto import _core  # noqa: E402


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "seat-0.key"
    path.touch(mode=0o600)
    path.write_text("ab" * 32 + "\n")
    return str(path)


@pytest.fixture
def make(tmp_path: Path, key: str) -> Any:
    """Makes a Boundary whose syncer never appears."""

    def make(**changes: Any) -> _core.Boundary:
        arguments: dict[str, Any] = {
            "syncer": f"@{tmp_path}/endpoint.json",
            "run_id": "run-1",
            "seat": 0,
            "token_file": key,
            "names": ["a", "b"],
            "tensors": [np.zeros((2, 3), np.float32), np.zeros(4, np.float32)],
            "fragments": 2,
            "contract": {"seq-len": "256"},
        }
        arguments.update(changes)
        return _core.Boundary(**arguments)

    return make


def refusal(make: Any, **changes: Any) -> _core.BoundaryError:
    with pytest.raises(_core.BoundaryError) as caught:
        make(**changes)
    return caught.value


def test_version_is_the_packages() -> None:
    assert _core.version().count(".") == 2


@pytest.mark.parametrize(
    ("array", "part"),
    [
        (np.zeros(4, np.float64), "float32"),
        (np.zeros(4, np.int32), "float32"),
        (np.zeros(4, np.float16), "float32"),
        (np.zeros((4, 4), np.float32).T[:2], "contiguous"),
        (np.zeros(8, np.float32)[::2], "contiguous"),
        ([1.0, 2.0], "not an array"),
    ],
)
def test_tensors_that_cannot_be_used_are_named(make: Any, array: Any, part: str) -> None:
    error = refusal(make, tensors=[np.zeros(3, np.float32), array], names=["good", "bad"])
    assert "tensor bad" in str(error)
    assert part in str(error)
    assert error.code == "E_MODEL"
    assert error.exit_code == 65


def test_read_only_memory_is_refused(make: Any) -> None:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    error = refusal(make, tensors=[array], names=["fixed"])
    assert "tensor fixed: read-only" in str(error)


def test_torch_tensors_are_taken(make: Any) -> None:
    torch = pytest.importorskip("torch")
    make(tensors=[torch.zeros(3, 2), torch.zeros(1)]).close()
    error = refusal(make, tensors=[torch.zeros(3, 2).t(), torch.zeros(1)])
    assert "tensor a: not C-contiguous" in str(error)


def test_views_with_axes_of_one_element_are_contiguous(make: Any) -> None:
    make(tensors=[np.zeros((3, 1), np.float32).T, np.zeros((2, 1, 1), np.float32)]).close()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"names": ["a"]}, "E_USAGE"),
        ({"names": ["a", "a"]}, "E_MODEL"),
        ({"names": ["a", ""]}, "E_MODEL"),
        ({"pattern": "random"}, "E_USAGE"),
        ({"matrix_merge": "mean"}, "E_USAGE"),
        ({"streams": 65}, "E_RANGE"),
        ({"streams": 65536}, "E_RANGE"),
        ({"max_alone_s": -1.0}, "E_RANGE"),
        ({"max_alone_s": float("nan")}, "E_RANGE"),
        ({"token_file": None}, "E_USAGE"),
        ({"token_file": "/nowhere/seat.key"}, "E_NOT_FOUND"),
        ({"syncer": "somewhere"}, "E_USAGE"),
        ({"syncer": "192.0.2.1:4000"}, "E_CREDENTIALS"),
        ({"run_id": ""}, "E_RANGE"),
    ],
)
def test_options_out_of_range_are_refused(make: Any, changes: dict[str, Any], code: str) -> None:
    error = refusal(make, **changes)
    assert error.code == code
    assert str(error).startswith(f"error[{code}]: ")


def test_a_key_that_others_can_read_is_refused(make: Any, key: str) -> None:
    os.chmod(key, 0o644)
    assert refusal(make).code == "E_CREDENTIALS"


def test_unknown_words_are_refused(make: Any) -> None:
    boundary = make()
    for call in (
        lambda: boundary.set_phase("resting"),
        lambda: boundary.leave("bored"),
        lambda: boundary.finalize("whim"),
    ):
        with pytest.raises(_core.BoundaryError) as caught:
            call()
        assert caught.value.code == "E_USAGE"
    with pytest.raises(_core.BoundaryError) as caught:
        boundary.metric("no JSON")
    assert caught.value.code == "E_DATA"
    boundary.metric(json.dumps({"loss": 1.0}))
    boundary.close()


def test_waiting_without_a_syncer_ends(make: Any) -> None:
    boundary = make(max_alone_s=0.05)
    with pytest.raises(_core.BoundaryError) as caught:
        boundary.wait_ready()
    assert (caught.value.code, caught.value.exit_code) == ("E_UNREACHABLE", 69)
    boundary = make()
    with pytest.raises(_core.BoundaryError) as caught:
        boundary.wait_ready(timeout_s=0.05)
    assert caught.value.code == "E_TIMEOUT"


def test_steps_without_a_syncer_do_not_wait(make: Any) -> None:
    boundary = make()
    report = boundary.step(7)
    assert report["connected"] is False
    assert report["draining"] is False
    assert report["applied"] == []
    assert report["pushed"] == []
    assert report["versions"] == [0, 0]
    boundary.close()
    with pytest.raises(_core.BoundaryError) as caught:
        boundary.step(7)
    assert caught.value.code == "E_CLOSED"
    boundary.close()


def test_other_threads_run_while_a_call_waits(make: Any) -> None:
    boundary = make()
    closer = threading.Timer(0.05, boundary.close)
    closer.start()
    with pytest.raises(_core.BoundaryError) as caught:
        boundary.wait_ready()
    closer.join()
    assert caught.value.code == "E_CLOSED"


def signal_soon() -> threading.Timer:
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    return timer


def test_a_signal_handler_may_leave_and_so_end_the_wait(make: Any) -> None:
    boundary = make()
    before = signal.signal(signal.SIGUSR1, lambda *_: boundary.leave("preempted"))
    try:
        timer = signal_soon()
        with pytest.raises(_core.BoundaryError) as caught:
            boundary.wait_ready()
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught.value.code == "E_CLOSED"
    boundary.close()


def test_an_exception_of_a_signal_handler_ends_the_wait(make: Any) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    boundary = make()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        timer = signal_soon()
        with pytest.raises(KeyboardInterrupt):
            boundary.wait_ready()
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    boundary.close()


def test_tensors_stay_alive_and_threads_end_with_the_object(make: Any) -> None:
    boundary = make(tensors=[np.ones((2, 3), np.float32), np.ones(4, np.float32)])
    gc.collect()
    boundary.step(1)
    begun = time.monotonic()
    del boundary
    gc.collect()
    assert time.monotonic() - begun < 5.0


def test_a_static_split_gives_every_position_once() -> None:
    seen: list[int] = []
    for seat in range(3):
        split = _core.StaticSplit(10, seat, 3, epochs=1)
        while (found := split.next(2))[2]:
            epoch, first, count, stride = found
            assert (epoch, stride) == (0, 3)
            seen += range(first, first + count * stride, stride)
    assert sorted(seen) == list(range(10))
    assert _core.StaticSplit(10, 1, 3, done=4).next(9) == (1, 4, 2, 3)


@pytest.mark.parametrize("arguments", [(0, 0, 1), (5, 3, 3)])
def test_a_split_that_cannot_be_is_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(_core.BoundaryError) as caught:
        _core.StaticSplit(*arguments)
    assert caught.value.code == "E_RANGE"


def test_rows_are_not_leased_before_there_is_a_run(make: Any) -> None:
    boundary = make()
    for call in (
        lambda: boundary.request_rows(10, 2),
        lambda: _core.LeasedRows(boundary, 10).next(2),
    ):
        with pytest.raises(_core.BoundaryError) as caught:
            call()
        assert caught.value.code == "E_USAGE"
    with pytest.raises(_core.BoundaryError) as caught:
        boundary.request_rows(10, 0)
    assert caught.value.code == "E_RANGE"
    boundary.close()
