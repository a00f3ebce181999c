# SPDX-License-Identifier: Apache-2.0
"""A whole island on a tiny model: loop against a scripted boundary, evaluation, artifact, ends."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_fixtures import FakeBoundary, talk, write_rows
from safetensors.numpy import load_file

from yeto.errors import YetoError
from yeto.learner import island
from yeto.learner.artifact import Provenance, publish
from yeto.learner.base import open_base
from yeto.learner.batches import collate
from yeto.learner.cli import main
from yeto.learner.dataset import build_dataset
from yeto.learner.evaluate import heldout_loss, sample_answer
from yeto.learner.exchange import METRIC_BYTES_MAX, Mirrors, contract, host_views
from yeto.learner.loss import TargetLoss
from yeto.learner.metrics import Metrics, Progress, read_metrics
from yeto.learner.model import load_adapted
from yeto.learner.optimize import Optimizer
from yeto.learner.options import Options, parse

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Puts back the signal handlers that an island installs."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])


def flags(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    return [
        "--model",
        str(model),
        "--data",
        str(data),
        "--out-dir",
        str(out),
        "--device",
        "cpu",
        "--lora-r",
        "4",
        "--grad-accum",
        "1",
        "--micro-batch-size",
        "2",
        "--inner-lr",
        "0.01",
        "--warmup",
        "2",
        *more,
    ]


def metrics_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def scripted(monkeypatch: pytest.MonkeyPatch, **script: Any) -> list[FakeBoundary]:
    """Puts a FakeBoundary in the place of the native one; the list receives it."""
    made: list[FakeBoundary] = []

    def connect(options: Options, adapted: Any, facts: dict[str, str]) -> FakeBoundary:
        views, _ = host_views(adapted)
        made.append(FakeBoundary(views, **script))
        return made[-1]

    monkeypatch.setattr(island, "connect", connect)
    return made


def test_an_island_alone_trains_scores_and_publishes(
    llama_folder: Path,
    rows_file: Path,
    heldout_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base_bytes = (llama_folder / "model.safetensors").read_bytes()
    code = main(
        flags(
            llama_folder,
            rows_file,
            tmp_path,
            "--val-data",
            str(heldout_file),
            "--epochs",
            "4",
            "--sample-prompt",
            "say 3",
        )
    )
    out, err = capsys.readouterr()
    assert code == 0, err
    rows = metrics_of(tmp_path)
    steps = [row for row in rows if "event" not in row]
    assert [row["step"] for row in steps] == list(range(1, 27))
    assert steps[-1]["epoch"] == 3 and steps[-1]["loss"] < steps[0]["loss"]
    evals = {row["when"]: row for row in rows if row.get("event") == "eval"}
    assert evals["after"]["loss"] < evals["before"]["loss"]
    assert evals["after"]["targets"] == evals["before"]["targets"] > 0
    samples = {row["when"]: row for row in rows if row.get("event") == "sample"}
    assert set(samples) == {"before", "after"} and samples["after"]["prompt"] == "say 3"
    assert "step 26/26 100%" in out and "adapter saved in" in out
    assert (llama_folder / "model.safetensors").read_bytes() == base_bytes

    manifest = json.loads((tmp_path / "adapter" / "yeto_manifest.json").read_text())
    assert manifest["score"] == {
        "eval_loss": evals["after"]["loss"],
        "eval_targets": evals["after"]["targets"],
    }
    assert manifest["run"]["tokens"] == steps[-1]["tokens"]


def test_metrics_have_the_agreed_names(
    llama_folder: Path, rows_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, drain_after=3)
    assert main(flags(llama_folder, rows_file, tmp_path, "--syncer", "127.0.0.1:1")) == 0
    names = {
        "ts",
        "step",
        "global_step",
        "tokens",
        "targets",
        "tokens_global",
        "loss",
        "lr",
        "grad_norm",
        "clip_share",
        "tok_s",
        "target_tok_s",
        "step_s",
        "data_wait_s",
        "boundary_ms",
        "mem_bytes",
        "fill",
        "epoch",
        "nan_steps",
        "micro_batch",
        "versions",
        "staleness_max",
        "pushes",
        "push_bytes",
        "pulls_waiting",
        "blocked_ms",
    }
    for row in metrics_of(tmp_path):
        assert set(row) == names
        assert row["pushes"] == 1 and row["push_bytes"] == 100 and 0 < row["fill"] <= 1


def test_log_every_joins_steps_into_one_line(
    llama_folder: Path, rows_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, drain_after=5)
    assert (
        main(flags(llama_folder, rows_file, tmp_path, "--syncer", "h:1", "--log-every", "2")) == 0
    )
    rows = metrics_of(tmp_path)
    assert [row["step"] for row in rows] == [2, 4, 5]
    assert [row["pushes"] for row in rows] == [2, 2, 1]


def test_the_boundary_is_called_in_order_and_gets_raw_tokens(
    llama_folder: Path,
    rows_file: Path,
    heldout_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boundaries = scripted(monkeypatch, drain_after=4)
    assert (
        main(
            flags(
                llama_folder,
                rows_file,
                tmp_path,
                "--syncer",
                "h:1",
                "--val-data",
                str(heldout_file),
            )
        )
        == 0
    )
    (boundary,) = boundaries
    kinds = [call[0] for call in boundary.calls]
    assert kinds == ["wait_ready", "phase", "step", "step", "step", "step", "finalize", "close"]
    assert ("finalize", "drain") in boundary.calls
    rows = metrics_of(tmp_path)
    tokens = [row["tokens"] for row in rows if "event" not in row]
    steps = [call[1] for call in boundary.calls if call[0] == "step"]
    assert np.cumsum(steps).tolist() == tokens
    # The tape gets the objects of the file, those from before the join included.
    assert boundary.metrics == rows
    assert rows[0]["event"] == "eval" and rows[0]["when"] == "before"


def test_a_run_without_own_limit_goes_over_epochs_until_drained(
    llama_folder: Path, rows_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, drain_after=15)
    assert main(flags(llama_folder, rows_file, tmp_path, "--syncer", "h:1")) == 0
    assert metrics_of(tmp_path)[-1]["epoch"] == 2


@pytest.mark.parametrize(
    "limit, steps",
    [
        (["--local-steps", "3"], 3),
        (["--epochs", "1"], 7),
        (["--tokens", "100"], None),
    ],
)
def test_an_own_limit_is_told_to_the_syncer(
    llama_folder: Path,
    rows_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: list[str],
    steps: int | None,
) -> None:
    boundaries = scripted(monkeypatch)
    assert main(flags(llama_folder, rows_file, tmp_path, "--syncer", "h:1", *limit)) == 0
    (boundary,) = boundaries
    assert ("finalize", "limit") in boundary.calls
    if steps is None:  # the run's tokens decide, and the script counts each of ours twice
        taken = [call[1] for call in boundary.calls if call[0] == "step"]
        assert 2 * sum(taken) >= 100 > 2 * sum(taken[:-1])
    else:
        assert boundary.steps == steps


def test_two_seats_read_different_rows(
    llama_folder: Path, rows_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = []
    for seat in (0, 1):
        scripted(monkeypatch, seat=seat)
        assert (
            main(
                flags(
                    llama_folder,
                    rows_file,
                    tmp_path / str(seat),
                    "--syncer",
                    "h:1",
                    "--seats",
                    "2",
                    "--seat",
                    str(seat),
                    "--epochs",
                    "1",
                )
            )
            == 0
        )
        tokens.append(metrics_of(tmp_path / str(seat))[-1]["tokens"])
    base = open_base(str(llama_folder), fetch_weights=True)
    options = parse(flags(llama_folder, rows_file, tmp_path))
    assert sum(tokens) == build_dataset(options, base).tokens


def test_final_values_of_the_syncer_are_what_is_saved(
    llama_folder: Path,
    rows_file: Path,
    heldout_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boundaries = scripted(
        monkeypatch,
        drain_after=2,
        final=lambda index, tensor: np.full(tensor.shape, 0.001 * (index + 1), np.float32),
    )
    assert (
        main(
            flags(
                llama_folder,
                rows_file,
                tmp_path,
                "--syncer",
                "h:1",
                "--val-data",
                str(heldout_file),
            )
        )
        == 0
    )
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(saved) == len(boundaries[0].tensors)
    for index, name in enumerate(sorted(saved)):
        assert (saved[name] == np.float32(0.001 * (index + 1))).all()
    manifest = json.loads((tmp_path / "adapter" / "yeto_manifest.json").read_text())
    assert manifest["run"]["global_step"] == 7
    after = [row for row in metrics_of(tmp_path) if row.get("when") == "after"]
    assert manifest["score"]["eval_loss"] == after[0]["loss"]


def test_only_seat_zero_scores_before_and_only_the_lowest_after(
    llama_folder: Path,
    rows_file: Path,
    heldout_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted(monkeypatch, drain_after=2, seat=1, lowest=False)
    more = ["--syncer", "h:1", "--seats", "2", "--seat", "1", "--val-data", str(heldout_file)]
    assert main(flags(llama_folder, rows_file, tmp_path, *more)) == 0
    assert not any("event" in row for row in metrics_of(tmp_path))
    manifest = json.loads((tmp_path / "adapter" / "yeto_manifest.json").read_text())
    assert manifest["score"] == {"eval_loss": None, "eval_targets": None}


def test_a_second_attempt_appends_and_scores_before_only_once(
    llama_folder: Path,
    rows_file: Path,
    heldout_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = ["--syncer", "h:1", "--val-data", str(heldout_file)]
    for attempt in (1, 2):
        scripted(monkeypatch, drain_after=2)
        assert main(flags(llama_folder, rows_file, tmp_path, *more)) == 0
        if attempt == 1:  # a process that is killed while writing leaves half a line
            with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as handle:
                handle.write('{"ts": 1, "st')
    rows = metrics_of(tmp_path)
    assert [row.get("when") for row in rows if "event" in row] == ["before", "after", "after"]
    assert sum("event" not in row for row in rows) == 4


def poison(monkeypatch: pytest.MonkeyPatch, when: set[int]) -> None:
    calls = {"n": 0}
    honest = TargetLoss.__call__

    def poisoned(self: TargetLoss, batch: Any) -> torch.Tensor:
        value = honest(self, batch)
        if not torch.is_grad_enabled():
            return value
        calls["n"] += 1
        return value * float("nan") if calls["n"] in when else value

    monkeypatch.setattr(TargetLoss, "__call__", poisoned)


def test_a_skipped_step_is_counted_and_not_told_as_a_step(
    llama_folder: Path,
    rows_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    boundaries = scripted(monkeypatch, drain_after=4)
    poison(monkeypatch, {2, 3})
    assert main(flags(llama_folder, rows_file, tmp_path, "--syncer", "h:1")) == 0
    assert boundaries[0].steps == 4
    assert [call[0] for call in boundaries[0].calls][1:7] == [
        "phase",
        "step",
        "phase",
        "phase",
        "step",
        "step",
    ]
    rows = metrics_of(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["nan_steps"] for row in rows] == [0, 2, 2, 2]
    out = capsys.readouterr().out
    assert out.count("step left out: the loss is not finite; rows ") == 2
    assert f"{rows_file}:" in out


def test_three_bad_steps_end_the_island_with_80(
    llama_folder: Path,
    rows_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    boundaries = scripted(monkeypatch)
    poison(monkeypatch, {2, 3, 4})
    assert main(flags(llama_folder, rows_file, tmp_path, "--syncer", "h:1")) == 80
    err = capsys.readouterr().err
    assert err.startswith("error[E_NON_FINITE]: ") and err.count(f"{rows_file}:") == 6
    assert ("leave", "error") in boundaries[0].calls
    assert boundaries[0].calls[-1] == ("close",)
    assert not (tmp_path / "adapter").exists()


def test_an_error_of_the_boundary_keeps_its_exit_code(
    llama_folder: Path,
    rows_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Refused(RuntimeError):
        code = "E_REFUSED"
        exit_code = 65

    def wait_ready(self: FakeBoundary, timeout_s: float = 0.0) -> dict[str, Any]:
        raise Refused("recipe differs: r 4 here, 8 in the run")

    scripted(monkeypatch)
    monkeypatch.setattr(FakeBoundary, "wait_ready", wait_ready)
    assert main(flags(llama_folder, rows_file, tmp_path, "--syncer", "h:1")) == 65
    assert "error[E_REFUSED]: recipe differs" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["wait_ready", "step", "finalize"])
def test_a_signal_ends_a_wait_in_the_boundary(
    llama_folder: Path,
    rows_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    class Closed(RuntimeError):
        code = "E_CLOSED"
        exit_code = 69

    def wait(self: FakeBoundary, *args: Any) -> dict[str, Any]:
        self.calls.append((method,))
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 30
        while not any(call[0] == "leave" for call in self.calls):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        raise Closed("leave ended the wait")

    boundaries = scripted(monkeypatch, drain_after=1)
    monkeypatch.setattr(FakeBoundary, method, wait)
    assert main(flags(llama_folder, rows_file, tmp_path, "--syncer", "h:1")) == 81
    assert ("leave", "preempted") in boundaries[0].calls
    assert not (tmp_path / "adapter").exists()


def test_a_signal_finishes_the_step_and_leaves(
    llama_folder: Path,
    rows_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boundaries = scripted(monkeypatch)
    honest = FakeBoundary.step

    def step(self: FakeBoundary, tokens: int) -> dict[str, Any]:
        report = honest(self, tokens)
        if self.steps == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return report

    monkeypatch.setattr(FakeBoundary, "step", step)
    assert main(flags(llama_folder, rows_file, tmp_path, "--syncer", "h:1")) == 81
    assert boundaries[0].steps == 3
    assert boundaries[0].calls[-2:] == [("leave", "preempted"), ("close",)]
    assert [row["step"] for row in metrics_of(tmp_path)] == [1, 2, 3]


def test_a_process_ends_by_term_with_81(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "yeto.learner",
        *flags(llama_folder, rows_file, tmp_path, "--epochs", "1000000", "--threads", "1"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 3/"):
                break
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(timeout=300) == 81
    finally:
        process.kill()
        process.wait()


def test_the_base_is_untouched_by_training(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    options = parse(flags(llama_folder, rows_file, tmp_path))
    base = open_base(options.model, fetch_weights=True)
    adapted = load_adapted(options, base)
    frozen = {n: p for n, p in adapted.model.named_parameters() if not p.requires_grad}

    def digest() -> str:
        out = hashlib.sha256()
        for name in sorted(frozen):
            out.update(frozen[name].detach().numpy().tobytes())
        return out.hexdigest()

    before = digest()
    built = build_dataset(options, base)
    rows = built.rows
    optimizer = Optimizer(adapted, TargetLoss(adapted.model), options)
    for index in range(5):
        assert optimizer.step([collate(rows[index : index + 2])]).applied
    for _ in range(3):
        publish(tmp_path, adapted, options, provenance(base, built))
    assert digest() == before


def provenance(base: Any, built: Any, trained: bool = True) -> Provenance:
    digests = ("b" * 64, "t" * 64, "d" * 64)
    return Provenance(
        base, built.tokenizer, *digests, len(built.rows), None, 100, 50, None, trained
    )


def trained_adapter(model: Path, data: Path, out: Path, steps: int = 3) -> tuple[Any, ...]:
    options = parse(flags(model, data, out, "--warmup", "0"))
    base = open_base(options.model, fetch_weights=True)
    adapted = load_adapted(options, base)
    built = build_dataset(options, base)
    optimizer = Optimizer(adapted, TargetLoss(adapted.model), options)
    for index in range(steps):
        optimizer.step([collate(built.rows[index : index + 2])])
    return options, base, adapted, built


@pytest.mark.parametrize("family", ["llama", "qwen"])
def test_the_adapter_loads_in_peft_with_equal_logits(
    request: pytest.FixtureRequest, rows_file: Path, tmp_path: Path, family: str
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Path = request.getfixturevalue(f"{family}_folder")
    options, base, adapted, built = trained_adapter(model, rows_file, tmp_path)
    folder = publish(tmp_path, adapted, options, provenance(base, built))
    assert folder == tmp_path / "adapter"
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = collate(built.rows[:2]).ids
    with torch.no_grad():
        bare = plain(ids).logits
        loaded = PeftModel.from_pretrained(plain, folder).eval()
        adapted.model.eval()
        ours, theirs = adapted.model(ids).logits, loaded(ids).logits
    assert torch.equal(ours, theirs)
    assert not torch.allclose(ours, bare)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == built.tokenizer.chat_template
    assert tokenizer("hello")["input_ids"] == built.tokenizer("hello")["input_ids"]


def test_the_manifest_has_all_keys_and_true_digests(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    options, base, adapted, built = trained_adapter(llama_folder, rows_file, tmp_path)
    folder = publish(tmp_path, adapted, options, provenance(base, built))
    manifest = json.loads((folder / "yeto_manifest.json").read_text())
    assert list(manifest) == [
        "schema",
        "kind",
        "created_utc",
        "run",
        "base",
        "adapter",
        "data",
        "cache_sha256",
        "recipe",
        "parent",
        "score",
        "code",
        "files",
        "tree_sha256",
    ]
    assert manifest["schema"] == "yeto.manifest/1" and manifest["kind"] == "adapter"
    assert set(manifest["run"]) == {"id", "name", "global_step", "tokens", "targets", "islands"}
    assert set(manifest["base"]) == {
        "source",
        "id",
        "revision",
        "tree_sha256",
        "tokenizer_sha256",
        "template_sha256",
        "tied_head",
    }
    assert manifest["adapter"] == {
        "type": "lora",
        "r": 4,
        "alpha": 32.0,
        "dropout": 0.0,
        "rslora": False,
        "dora": False,
        "targets": adapted.targets,
        "full_copies": [],
        "base_quant": {"kind": "none"},
        "tensors": 28,
        "values": adapted.trainable,
    }
    assert set(manifest["code"]) == {"yeto", "source_sha256", "torch", "transformers", "tokenizers"}
    assert manifest["base"]["tied_head"] is True and manifest["parent"] is None
    on_disk = {p.name for p in folder.iterdir()} - {"yeto_manifest.json"}
    assert (
        set(manifest["files"])
        == on_disk
        >= {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"}
    )
    lines = ""
    for name in sorted(on_disk):
        data = (folder / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        assert manifest["files"][name] == {"bytes": len(data), "sha256": digest}
        lines += f"{digest} {len(data)} {name}\n"
    assert manifest["tree_sha256"] == hashlib.sha256(lines.encode()).hexdigest()
    assert str(tmp_path) not in (folder / "yeto_manifest.json").read_text()
    assert len({(folder / name).stat().st_mode for name in on_disk}) == 1, "all as readable"


def test_publishing_again_replaces_the_folder(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    options, base, adapted, built = trained_adapter(llama_folder, rows_file, tmp_path)
    (tmp_path / "adapter.tmp-1").mkdir()
    first = publish(tmp_path, adapted, options, provenance(base, built))
    (first / "stray").write_text("x")
    second = publish(tmp_path, adapted, options, provenance(base, built))
    assert not (second / "stray").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter"]


def test_an_adapter_that_does_nothing_is_not_published(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    options, base, adapted, built = trained_adapter(llama_folder, rows_file, tmp_path, steps=0)
    with pytest.raises(YetoError, match="every B matrix is zero") as caught:
        publish(tmp_path, adapted, options, provenance(base, built))
    assert caught.value.exit_code == 82 and list(tmp_path.iterdir()) == []
    publish(tmp_path, adapted, options, provenance(base, built, trained=False))


def test_values_that_are_not_finite_are_not_published(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    options, base, adapted, built = trained_adapter(llama_folder, rows_file, tmp_path)
    with torch.no_grad():
        adapted.tensors[3][0, 0] = float("inf")
    with pytest.raises(YetoError, match=f"{adapted.names[3]} holds values that are not finite"):
        publish(tmp_path, adapted, options, provenance(base, built))
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_written(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    options, base, adapted, built = trained_adapter(llama_folder, rows_file, tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(YetoError, match="cannot be written") as caught:
        publish(blocked, adapted, options, provenance(base, built))
    assert caught.value.exit_code == 1


def test_an_output_folder_that_cannot_be_made(
    llama_folder: Path, rows_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    assert main(flags(llama_folder, rows_file, tmp_path / "file" / "out")) == 1
    assert "error[E_IO]: the output folder cannot be written" in capsys.readouterr().err


def test_heldout_loss_is_the_mean_over_targets(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    _, _, adapted, built = trained_adapter(llama_folder, rows_file, tmp_path)
    loss = TargetLoss(adapted.model)
    whole, targets = heldout_loss(adapted, loss, built.rows, 4)
    apart = [heldout_loss(adapted, loss, [row], 1) for row in built.rows]
    assert targets == sum(count for _, count in apart) == built.targets
    assert whole == pytest.approx(sum(v * n for v, n in apart) / targets, rel=1e-6)
    assert adapted.model.training


def test_a_sample_is_repeatable_and_bounded(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    _, _, adapted, built = trained_adapter(llama_folder, rows_file, tmp_path)
    texts = {sample_answer(adapted, built.tokenizer, built.template, "hello") for _ in range(2)}
    assert len(texts) == 1
    assert len(built.tokenizer(texts.pop())["input_ids"]) <= 65 + 1


def test_the_contract_names_what_must_agree(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    facts = {
        "base": "b",
        "tokenizer": "t",
        "template": "c",
        "targets": "q_proj",
        "mask": "prefix",
        "data": "d",
    }
    one = contract(parse(flags(llama_folder, rows_file, tmp_path)), facts)
    assert set(one) == {"base-model", "tokenizer", "template", "recipe", "data", "seq-len", "loss"}
    two = contract(parse(flags(llama_folder, rows_file, tmp_path, "--lora-alpha", "8")), facts)
    assert {name for name in one if one[name] != two[name]} == {"recipe"}
    other_rate = parse(flags(llama_folder, rows_file, tmp_path, "--micro-batch-size", "1"))
    assert contract(other_rate, facts) == one


def test_host_views_share_memory_with_the_parameters(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    _, _, adapted, _ = trained_adapter(llama_folder, rows_file, tmp_path)
    views, mirrors = host_views(adapted)
    assert mirrors is None
    views[0][...] = 3.0
    assert bool((adapted.tensors[0] == 3.0).all())
    assert all(v.dtype == np.float32 and v.flags.c_contiguous and v.flags.writeable for v in views)


def test_mirrors_copy_the_named_tensors_both_ways(
    llama_folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    _, _, adapted, _ = trained_adapter(llama_folder, rows_file, tmp_path)
    host = [torch.zeros_like(tensor.detach()) for tensor in adapted.tensors]
    waits: list[int] = []
    mirrors = Mirrors(adapted.tensors, host, lambda: waits.append(1))
    mirrors.refresh([0, 5])
    assert torch.equal(host[5], adapted.tensors[5]) and torch.equal(host[0], adapted.tensors[0])
    assert not host[1].any() and len(waits) == 1
    host[5].fill_(2.0)
    host[1].fill_(2.0)
    mirrors.push([5])
    assert bool((adapted.tensors[5] == 2.0).all()) and not bool((adapted.tensors[1] == 2.0).all())
    assert len(waits) == 2 and adapted.tensors[5].requires_grad


def test_metrics_never_stop_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Gone(FakeBoundary):
        def metric(self, text: str) -> None:
            raise RuntimeError("the session is over")

    metrics = Metrics(tmp_path)
    metrics.attach(Gone([]))
    metrics.emit({"step": 1, "loss": float("nan"), "none": None})
    metrics.emit({"text": "x" * (METRIC_BYTES_MAX + 1)})
    metrics.close()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert set(rows[0]) == {"ts", "step"} and len(rows) == 2
    assert "did not reach the tape" in capsys.readouterr().err


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    progress = Progress(10, screen)
    line = {"step": 4, "loss": 1.5, "lr": 0.1, "target_tok_s": 12.0, "tokens": 99, "global_step": 2}
    progress.say("seat 0 begins")
    progress.step(line, 2, [1, 0])
    progress.close()
    shown = screen.getvalue()
    assert "4/10" in shown and "loss 1.5000" in shown and "islands 2" in shown
    assert "seat 0 begins" in shown


def test_unfit_devices_are_refused(
    llama_folder: Path,
    rows_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code = main(flags(llama_folder, rows_file, tmp_path, "--device", "cuda"))
    assert code == 64 and "shows no CUDA device" in capsys.readouterr().err


def test_a_missing_weight_is_refused(
    llama_folder: Path, rows_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    from safetensors.numpy import save_file

    model = Path(shutil.copytree(llama_folder, tmp_path / "model"))
    tensors = load_file(model / "model.safetensors")
    gone = sorted(tensors)[3]
    del tensors[gone]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert main(flags(model, rows_file, tmp_path / "out")) == 65
    assert f"1 weights are missing, first {gone}" in capsys.readouterr().err


def test_data_without_targets_leaves_no_adapter(llama_folder: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "d.jsonl", [talk("only a question")] * 3)
    assert main(flags(llama_folder, data, tmp_path / "out")) == 65
    assert not (tmp_path / "out" / "adapter").exists()
