# SPDX-License-Identifier: Apache-2.0
"""The step: adapter values from the seed, loss on targets, accumulation, non-finite numbers."""

import hashlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_fixtures import make_model
from torch.nn import functional

from yeto.errors import YetoError
from yeto.learner.base import open_base
from yeto.learner.batches import Share, collate, plan_steps
from yeto.learner.dataset import build_dataset
from yeto.learner.exchange import Alone, leased_steps
from yeto.learner.lora_init import initial_values
from yeto.learner.loss import Batch, TargetLoss
from yeto.learner.model import Adapted, load_adapted
from yeto.learner.optimize import NonFiniteGuard, Optimizer, StepResult
from yeto.learner.options import Options, parse
from yeto.text.encode import Encoded
from yeto.text.order import Permutation


def make_options(model: Path, data: Path, *flags: str) -> Options:
    return parse(
        [
            "--model",
            str(model),
            "--data",
            str(data),
            "--out-dir",
            "unused",
            "--lora-r",
            "4",
            "--device",
            "cpu",
            *flags,
        ]
    )


def load(options: Options) -> tuple[Adapted, TargetLoss, list[Encoded]]:
    base = open_base(options.model, fetch_weights=True)
    adapted = load_adapted(options, base)
    return adapted, TargetLoss(adapted.model), build_dataset(options, base).rows


def random_adapter(adapted: Adapted) -> None:
    """B is zero at first, which would hide half of the gradients."""
    torch.manual_seed(5)
    with torch.no_grad():
        for tensor in adapted.tensors:
            tensor.add_(0.05 * torch.randn_like(tensor))


def test_first_values_golden() -> None:
    values = initial_values(0, "base_model.model.x.lora_A.weight", (4, 16))
    assert values.dtype == np.float32 and values.shape == (4, 16)
    assert float(np.abs(values).max()) <= 0.25 and len(np.unique(values)) == 64
    assert hashlib.sha256(values.tobytes()).hexdigest() == (
        "5b8b52d7506be014e82ff877564c39d675bff618155603c08e7d15e7ddb82ff0"
    )
    assert not initial_values(0, "base_model.model.x.lora_B.weight", (16, 4)).any()


def test_first_values_are_uniform_and_apart() -> None:
    one = initial_values(0, "a.lora_A.weight", (64, 64)) * 8
    assert abs(float(one.mean())) < 0.03 and abs(float(one.var()) - 1 / 3) < 0.02
    for other in (
        initial_values(1, "a.lora_A.weight", (64, 64)),
        initial_values(0, "b.lora_A.weight", (64, 64)),
    ):
        assert abs(float(np.corrcoef(one.ravel(), other.ravel())[0, 1])) < 0.06


def test_two_processes_and_seats_start_from_equal_bits(llama_folder: Path, rows_file: Path) -> None:
    code = (
        "import sys, hashlib; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path; from test_training import make_options, load\n"
        "flags = ['--seats', '2', '--seat', sys.argv[5], '--seed', '7']\n"
        "adapted, _, _ = load(make_options(Path(sys.argv[3]), Path(sys.argv[4]), *flags))\n"
        "digest = hashlib.sha256()\n"
        "for name, tensor in zip(adapted.names, adapted.tensors):\n"
        "    digest.update(name.encode() + tensor.detach().numpy().tobytes())\n"
        "print(digest.hexdigest(), len(adapted.names), adapted.names[0])\n"
    )
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parent), str(llama_folder), str(rows_file)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, *paths, seat], stdout=subprocess.PIPE, text=True
        )
        for seat in ("0", "1")
    ]
    outs = [process.communicate()[0] for process in running]
    assert outs[0] == outs[1]
    assert outs[0].split()[1:] == [
        "28",
        "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight",
    ]


def test_all_linear_layers_of_the_blocks_are_adapted(llama_folder: Path, rows_file: Path) -> None:
    adapted, _, _ = load(make_options(llama_folder, rows_file))
    assert adapted.targets == [
        "down_proj",
        "gate_proj",
        "k_proj",
        "o_proj",
        "q_proj",
        "up_proj",
        "v_proj",
    ]
    assert adapted.names == sorted(adapted.names)
    trainable = [p for p in adapted.model.parameters() if p.requires_grad]
    assert len(trainable) == len(adapted.tensors)
    assert all(t.dtype == torch.float32 for t in adapted.tensors)
    attention, _, _ = load(make_options(llama_folder, rows_file, "--lora-targets", "attention"))
    assert attention.targets == ["k_proj", "o_proj", "q_proj", "v_proj"]


@pytest.mark.parametrize(
    "shape, changes",
    [
        ("llama3", {}),
        ("llama3", {"tie_word_embeddings": False}),
        ("qwen3", {}),
        ("strict", {"final_logit_softcapping": 0.05, "attn_logit_softcapping": None}),
    ],
)
def test_loss_at_targets_equals_full_logits(
    tmp_path: Path, rows_file: Path, shape: str, changes: dict[str, Any]
) -> None:
    model = make_model(tmp_path / "m", shape, **changes)
    adapted, loss, rows = load(make_options(model, rows_file, "--max-dropped", "50"))
    random_adapter(adapted)
    batch = collate(rows[:4])
    assert loss.agrees(batch)
    ours = loss(batch)
    ours.backward()
    grads = [t.grad.clone() for t in adapted.tensors if t.grad is not None]
    adapted.model.zero_grad()
    logits = adapted.model(input_ids=batch.ids, use_cache=False).logits.flatten(0, 1)
    plain = functional.cross_entropy(logits[batch.positions], batch.labels, reduction="sum")
    plain.backward()
    assert float(ours.detach()) == pytest.approx(float(plain.detach()), rel=1e-6)
    for got, tensor in zip(grads, adapted.tensors, strict=True):
        assert tensor.grad is not None
        torch.testing.assert_close(got, tensor.grad, rtol=1e-4, atol=1e-5)


def test_small_chunks_change_nothing(
    llama_folder: Path, rows_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted, loss, rows = load(make_options(llama_folder, rows_file))
    random_adapter(adapted)
    batch = collate(rows[:3])
    results = []
    for chunk_bytes in (64 << 20, 1, 5 * 320 * 4):
        monkeypatch.setitem(sys.modules["yeto.learner.loss"]._CHUNK_BYTES, "cpu", chunk_bytes)
        adapted.model.zero_grad()
        value = loss(batch)
        value.backward()
        results.append(
            (float(value.detach()), [t.grad.clone() for t in adapted.tensors if t.grad is not None])
        )
    for total, grads in results[1:]:
        assert total == pytest.approx(results[0][0], rel=1e-6)
        for got, want in zip(grads, results[0][1], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_a_head_that_does_more_goes_the_plain_way(
    llama_folder: Path, rows_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted, loss, rows = load(make_options(llama_folder, rows_file))
    assert loss.agrees(collate(rows[:1]))
    base = adapted.model.get_base_model()
    forward = base.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        out.logits = out.logits * 0.5
        return out

    monkeypatch.setattr(base, "forward", scaled)
    assert not loss.agrees(collate(rows[:1])) and not loss.selective
    batch = collate(rows[:2])
    logits = base(input_ids=batch.ids).logits.flatten(0, 1)[batch.positions]
    want = functional.cross_entropy(logits, batch.labels, reduction="sum")
    assert float(loss(batch).detach()) == pytest.approx(float(want.detach()), rel=1e-6)


def test_padding_does_not_touch_real_tokens(llama_folder: Path, rows_file: Path) -> None:
    adapted, loss, rows = load(make_options(llama_folder, rows_file))
    random_adapter(adapted)
    some = sorted(rows, key=lambda row: row.tokens)
    some = [some[0], some[-1], some[3]]
    with torch.no_grad():
        apart = sum(float(loss(collate([row]))) for row in some)
        together = float(loss(collate(some)))
    assert together == pytest.approx(apart, rel=1e-6)


def test_batches_hold_each_target_once(llama_folder: Path, rows_file: Path) -> None:
    _, _, rows = load(make_options(llama_folder, rows_file))
    batch = collate(rows[:5])
    flat = batch.ids.flatten()
    assert torch.equal(flat[batch.positions + 1], batch.labels)
    assert len(batch.labels) == sum(row.target_count for row in rows[:5])
    assert batch.tokens == sum(row.tokens for row in rows[:5])
    assert batch.ids.shape == (5, max(row.tokens for row in rows[:5]))


@pytest.mark.parametrize("split", [[5], [1] * 5, [2, 3], [4, 1]])
def test_accumulation_equals_one_big_batch(
    llama_folder: Path, rows_file: Path, split: list[int]
) -> None:
    options = make_options(llama_folder, rows_file, "--inner-lr", "0.01", "--warmup", "0")
    updates = []
    for parts in ([5], split):
        adapted, loss, rows = load(options)
        random_adapter(adapted)
        before = [t.detach().clone() for t in adapted.tensors]
        chosen, batches = rows[:5], []
        for size in parts:
            batches.append(collate(chosen[:size]))
            chosen = chosen[size:]
        optimizer = Optimizer(adapted, loss, options)
        result = optimizer.step(batches)
        moments = [optimizer.adamw.state[t]["exp_avg"].clone() for t in adapted.tensors]
        updates.append((result, moments, before, [t.detach().clone() for t in adapted.tensors]))
    (one, one_moments, _, one_values), (two, two_moments, _, two_values) = updates
    assert two.targets == one.targets and two.tokens == one.tokens
    assert two.loss == pytest.approx(one.loss, rel=1e-6)
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-6)
    # AdamW's first moment is a tenth of the gradient, so its error is the gradient's.
    whole = math.sqrt(sum(float(m.square().sum()) for m in one_moments))
    apart = math.sqrt(
        sum(float((a - b).square().sum()) for a, b in zip(one_moments, two_moments, strict=True))
    )
    assert apart <= 1e-6 * whole
    for a, b in zip(one_values, two_values, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


def test_a_micro_batch_without_targets_adds_nothing(llama_folder: Path, rows_file: Path) -> None:
    options = make_options(llama_folder, rows_file)
    results = []
    for with_empty in (False, True):
        adapted, loss, rows = load(options)
        bare = Encoded("f:1", b"", rows[1].ids, np.zeros(rows[1].tokens, dtype=bool))
        batches = [collate(rows[:1])] + ([collate([bare])] if with_empty else [])
        results.append(Optimizer(adapted, loss, options).step(batches))
    assert results[0].loss == results[1].loss and results[0].grad_norm == results[1].grad_norm


def test_clipping_bounds_the_gradient(llama_folder: Path, rows_file: Path) -> None:
    options = make_options(llama_folder, rows_file, "--clip", "0.001", "--warmup", "0")
    adapted, loss, rows = load(options)
    optimizer = Optimizer(adapted, loss, options)
    result = optimizer.step([collate(rows[:2])])
    assert result.clipped and result.grad_norm > 0.001
    norm = (
        math.sqrt(
            sum(float(optimizer.adamw.state[t]["exp_avg"].square().sum()) for t in adapted.tensors)
        )
        * 10
    )
    assert norm == pytest.approx(0.001, rel=1e-4)


def test_the_rate_warms_up_and_stays(llama_folder: Path, rows_file: Path) -> None:
    options = make_options(llama_folder, rows_file, "--inner-lr", "0.4", "--warmup", "4")
    adapted, loss, rows = load(options)
    optimizer = Optimizer(adapted, loss, options)
    rates = [optimizer.step([collate(rows[:1])]).lr for _ in range(6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


class PoisonedLoss(TargetLoss):
    """Multiplies loss and gradients by `factor` in the calls whose number is in `when`."""

    factor = float("nan")
    when: frozenset[int] = frozenset()
    calls = 0

    def __call__(self, batch: Batch) -> torch.Tensor:
        self.calls += 1
        value = super().__call__(batch)
        return value * self.factor if self.calls in self.when else value


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e38])
def test_a_non_finite_step_changes_nothing(
    llama_folder: Path, rows_file: Path, factor: float
) -> None:
    options = make_options(llama_folder, rows_file, "--grad-accum", "2")
    adapted, _, rows = load(options)
    loss = PoisonedLoss(adapted.model)
    loss.factor, loss.when = factor, frozenset({4})
    optimizer = Optimizer(adapted, loss, options)
    assert optimizer.step([collate(rows[:1]), collate(rows[1:2])]).applied
    values = [t.detach().clone() for t in adapted.tensors]
    state = {
        name: [optimizer.adamw.state[t][name].clone() for t in adapted.tensors]
        for name in ("exp_avg", "exp_avg_sq", "step")
    }
    rate = optimizer.rate()
    result = optimizer.step([collate(rows[2:3]), collate(rows[3:4])])
    assert not result.applied and result.tokens == 0 and result.targets == 0
    assert optimizer.steps == 1 and optimizer.rate() == rate
    for before, tensor in zip(values, adapted.tensors, strict=True):
        assert torch.equal(before, tensor) and tensor.grad is None
    for name, tensors in state.items():
        for before, tensor in zip(tensors, adapted.tensors, strict=True):
            assert torch.equal(before, optimizer.adamw.state[tensor][name])
    assert optimizer.step([collate(rows[2:3]), collate(rows[3:4])]).applied


def bad_step(loss: float = float("nan")) -> StepResult:
    return StepResult(False, loss, float("nan"), False, 0.1, 0, 0)


def test_three_in_a_row_stop_with_the_rows() -> None:
    guard = NonFiniteGuard("skip")
    assert "rows f:1" in guard.bad(bad_step(), ("f:1",))
    assert "gradient norm" in guard.bad(bad_step(1.0), ("f:2",))
    guard.good()
    guard.bad(bad_step(), ("f:3",))
    guard.bad(bad_step(), ("f:4",))
    with pytest.raises(YetoError) as caught:
        guard.bad(bad_step(), ("f:5", "f:6"))
    assert caught.value.exit_code == 80
    assert caught.value.where == "rows f:3, f:4, f:5, f:6"
    assert guard.skipped == 5


def test_ten_in_a_thousand_stop() -> None:
    guard = NonFiniteGuard("skip")
    for _ in range(9):
        guard.bad(bad_step(), ("f:1",))
        for _ in range(100):
            guard.good()
    with pytest.raises(YetoError):
        guard.bad(bad_step(), ("f:1",))
    calm = NonFiniteGuard("skip")
    for _ in range(30):
        calm.bad(bad_step(), ("f:1",))
        for _ in range(150):
            calm.good()
    assert calm.skipped == 30


def test_policy_stop_ends_at_once() -> None:
    with pytest.raises(YetoError) as caught:
        NonFiniteGuard("stop").bad(bad_step(), ("f:9",))
    assert caught.value.exit_code == 80 and "f:9" in caught.value.where


def test_steps_cover_each_epoch_once_and_cross_its_end() -> None:
    share = Share(count=13, seed=3, seat=0, seats=2, micro_batch=2, grad_accum=2)
    steps = list(plan_steps(share, 3))
    assert share.size == 7 and share.step_rows == 4 and len(steps) == share.total_steps(3) == 6
    sizes = [sum(map(len, step.micro_batches)) for step in steps]
    assert sizes == [4, 4, 4, 4, 4, 1]
    flat = [row for step in steps for rows in step.micro_batches for row in rows]
    other = Share(13, 3, 1, 2, 2, 2)
    rest = [row for step in plan_steps(other, 3) for rows in step.micro_batches for row in rows]
    assert sorted(flat + rest) == sorted(list(range(13)) * 3)
    assert [step.epoch for step in steps] == [0, 1, 1, 2, 2, 2]


def test_fewer_rows_than_a_step_train_with_what_there_is() -> None:
    share = Share(count=2, seed=0, seat=0, seats=1, micro_batch=8, grad_accum=4)
    steps = list(plan_steps(share, 2))
    assert [sorted(step.micro_batches[0]) for step in steps] == [[0, 1], [0, 1]]


class Leases(Alone):
    """Hands out two epochs of `rows` positions, at most three at a time."""

    def __init__(self, rows: int) -> None:
        super().__init__(seat=0)
        self.left = [(epoch, first) for epoch in range(2) for first in range(rows)]
        self.asked: set[int] = set()

    def request_rows(self, rows: int, count: int) -> tuple[int, int, int, int]:
        self.asked.add(rows)
        given = [at for at in self.left[: min(count, 3)] if at[0] == self.left[0][0]]
        self.left = self.left[len(given) :]
        return (*given[0], len(given), 1) if given else (0, 0, 0, 1)


def test_leased_positions_become_full_steps_of_the_same_rows() -> None:
    share = Share(10, 7, 0, 2, micro_batch=2, grad_accum=2)
    leases = Leases(10)
    steps = list(leased_steps(leases, share))
    assert leases.asked == {10}
    assert [sum(map(len, step.micro_batches)) for step in steps] == [4, 4, 4, 4, 4]
    assert all(len(batch) <= 2 for step in steps for batch in step.micro_batches)
    assert [step.epoch for step in steps] == [0, 0, 1, 1, 1]
    rows = [row for step in steps for batch in step.micro_batches for row in batch]
    expected = [Permutation(10, 7, epoch)[at] for epoch in range(2) for at in range(10)]
    assert rows == expected
