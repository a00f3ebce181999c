# SPDX-License-Identifier: Apache-2.0
"""`--check`: its JSON, and a clear refusal for everything a run could not use."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from chat_fixtures import CHATML, make_tokenizer, talk, write_rows

from yeto.learner.cli import main


def check(
    capsys: pytest.CaptureFixture[str], model: Path, data: Path, *flags: str
) -> tuple[int, dict[str, Any], str]:
    code = main(["--check", "--model", str(model), "--data", str(data), *flags])
    out, err = capsys.readouterr()
    return code, json.loads(out) if code == 0 else {"out": out}, err


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


def test_the_findings(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, rows_file: Path, heldout_file: Path
) -> None:
    code, found, err = check(
        capsys, llama_folder, rows_file, "--val-data", str(heldout_file), "--seats", "2"
    )
    assert code == 0 and err == ""
    assert (found["rows"], found["trainable_rows"], found["rows_without_target"]) == (13, 13, 0)
    assert found["rows_per_seat"] == [7, 6]
    assert 0 < found["targets"] < found["tokens"]
    assert found["mask_method"] == "prefix" and found["model_type"] == "llama"
    assert (found["vocabulary"], found["max_length"]) == (320, 512)
    assert found["heldout_rows"] == 5 and found["heldout_targets"] > 0
    assert found["model_parameters"] == 320 * 32 + 32 + 2 * (
        2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48 + 2 * 32
    )


def test_rows_without_target_are_counted_and_listed(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path
) -> None:
    data = write_rows(
        tmp_path / "d.jsonl", [talk("a", "b"), talk("a"), talk("a", ""), *[talk("only")] * 25]
    )
    code, found, _ = check(capsys, llama_folder, data)
    assert code == 0
    assert (found["rows"], found["trainable_rows"], found["rows_without_target"]) == (28, 1, 27)
    assert found["rows_without_target_listed"][0] == f"{data}:2"
    assert len(found["rows_without_target_listed"]) == 20


def test_rows_held_out_by_number_leave_the_training_rows(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, rows_file: Path
) -> None:
    _, found, _ = check(capsys, llama_folder, rows_file, "--val-rows", "3")
    assert (found["trainable_rows"], found["heldout_rows"]) == (10, 3)


def test_a_row_that_is_held_out_is_not_trained(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "d.jsonl", [talk("a", "b"), talk("c", "d")])
    held = write_rows(tmp_path / "h.jsonl", [talk("c", "d")])
    _, found, _ = check(capsys, llama_folder, data, "--val-data", str(held))
    assert found["trainable_rows"] == 1 and found["dropped"] == {"held-out": 1}


@pytest.mark.parametrize(
    "policy, kept, dropped",
    [
        ("drop", 1, {"too-long": 2}),
        ("right", 2, {"no-target": 1}),
    ],
)
def test_overlong_rows(
    capsys: pytest.CaptureFixture[str],
    llama_folder: Path,
    tmp_path: Path,
    policy: str,
    kept: int,
    dropped: dict[str, int],
) -> None:
    data = write_rows(
        tmp_path / "d.jsonl", [talk("a", "b"), talk("x" * 200, "yes"), talk("a", "long " * 60)]
    )
    code, found, _ = check(capsys, llama_folder, data, "--seq-len", "64", "--overlong", policy)
    assert code == 0
    assert found["trainable_rows"] == kept and found["dropped"] == dropped
    assert found["longest_row"] > 64


def test_overlong_error_names_the_row(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "d.jsonl", [talk("a", "b"), talk("x" * 200, "yes")])
    code, _, err = check(capsys, llama_folder, data, "--seq-len", "64", "--overlong", "error")
    assert code == 65 and err.startswith(f"error[E_DATA]: {data}:2: ") and "--seq-len 64" in err


def test_data_without_any_target_is_refused_with_causes(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "d.jsonl", [talk("a"), talk("b", "")])
    code, found, err = check(capsys, llama_folder, data)
    assert code == 65 and found["out"] == ""
    assert "holds no token to train on (2 rows read)" in err
    assert f"{data}:1: " in err and f"{data}:2: " in err
    for flag in ("--train-on", "--seq-len", "--assistant-mask-mode"):
        assert flag in err


def test_all_rows_cut_before_their_targets(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "d.jsonl", [talk("x" * 200, "yes")] * 8)
    code, _, err = check(capsys, llama_folder, data, "--seq-len", "64", "--overlong", "right")
    assert code == 65 and "what is kept holds no target" in err


@pytest.mark.parametrize(
    "text, what",
    [
        ("", "holds no rows"),
        ("\n \n", "holds no rows"),
        ("{", ":1: not one complete JSON object"),
        ('{"text": "x"}', ":1: no `messages` list; keys seen: text"),
    ],
)
def test_damaged_data_is_refused(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path, text: str, what: str
) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text(text)
    code, _, err = check(capsys, llama_folder, data)
    assert code == 65 and err.startswith("error[E_DATA]: ") and what in err


def test_few_damaged_rows_pass_and_many_do_not(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path
) -> None:
    good = [json.dumps({"messages": talk(f"q{i}", "a")}) for i in range(39)]
    data = tmp_path / "d.jsonl"
    data.write_text("\n".join([*good, '{"x": 1}']))
    code, found, _ = check(capsys, llama_folder, data)
    assert code == 0 and found["dropped"] == {"schema": 1}
    assert found["listed"]["schema"][0].startswith(f"{data}:40: ")
    code, _, err = check(capsys, llama_folder, data, "--max-dropped", "1%")
    assert code == 65 and f"{data}:40: " in err and "--max-dropped" in err


def test_missing_data_is_refused(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path
) -> None:
    code, _, err = check(capsys, llama_folder, tmp_path / "none.jsonl")
    assert code == 65 and "error[E_DATA]: the data cannot be read" in err and "none.jsonl" in err


def test_more_islands_than_rows_is_refused(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "d.jsonl", [talk("a", "b")])
    code, _, err = check(capsys, llama_folder, data, "--seats", "2")
    assert code == 65 and "1 trainable rows for 2 islands" in err


def refused(
    capsys: pytest.CaptureFixture[str], folder: Path, data: Path, what: str, *flags: str
) -> None:
    code, _, err = check(capsys, folder, data, *flags)
    assert code == 65 and err.startswith("error[E_MODEL]: ") and what in err, err


def test_missing_models(
    capsys: pytest.CaptureFixture[str], rows_file: Path, tmp_path: Path
) -> None:
    refused(capsys, tmp_path / "none", rows_file, "does not exist")
    refused(capsys, Path("some-org/no-such-model"), rows_file, "HF_HUB_OFFLINE")
    (tmp_path / "empty").mkdir()
    refused(capsys, tmp_path / "empty", rows_file, "no config.json")


def test_damaged_weights(capsys: pytest.CaptureFixture[str], folder: Path, rows_file: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    refused(capsys, folder, rows_file, "the weight file is damaged")
    weights.write_bytes(struct.pack("<Q", 1 << 60) + whole[8:])
    refused(capsys, folder, rows_file, "the header is longer than the file")
    weights.write_bytes(b"")
    refused(capsys, folder, rows_file, "the weight file is damaged")
    weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    refused(capsys, folder, rows_file, "no safetensors weights; there are .bin files")


def test_shards_need_their_index(
    capsys: pytest.CaptureFixture[str], folder: Path, rows_file: Path
) -> None:
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    refused(capsys, folder, rows_file, "2 weight files and no model.safetensors.index.json")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "gone.safetensors"}})
    )
    refused(capsys, folder, rows_file, "gone.safetensors is missing")


def test_unfit_configurations(
    capsys: pytest.CaptureFixture[str], folder: Path, rows_file: Path
) -> None:
    config = json.loads((folder / "config.json").read_text())
    for change, what in (
        ({"model_type": "t5"}, "no causal language model"),
        ({"model_type": "no-such-type"}, "is not understood"),
        ({"vocab_size": 100}, "the embedding 100 rows"),
        ({"quantization_config": {}}, "stored quantised"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        refused(capsys, folder, rows_file, what)
    (folder / "config.json").write_text("{")
    refused(capsys, folder, rows_file, "config.json cannot be read")


def test_a_tokenizer_without_template(
    capsys: pytest.CaptureFixture[str], folder: Path, rows_file: Path, tmp_path: Path
) -> None:
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = None
    (folder / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(folder)
    refused(capsys, folder, rows_file, "no chat template")
    template = tmp_path / "t.jinja"
    template.write_text(CHATML)
    code, found, _ = check(capsys, folder, rows_file, "--chat-template", str(template))
    assert code == 0 and found["mask_method"] == "prefix"


def test_unknown_adapter_targets(
    capsys: pytest.CaptureFixture[str], llama_folder: Path, rows_file: Path
) -> None:
    refused(capsys, llama_folder, rows_file, "q_proj (2)", "--lora-targets", "q_proj,zz")
    code, _, _ = check(capsys, llama_folder, rows_file, "--lora-targets", "q_proj,down_proj")
    assert code == 0
