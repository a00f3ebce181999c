# SPDX-License-Identifier: Apache-2.0
"""Flags: ranges, types, conflicts; every refusal names the flag and the value."""

import subprocess
import sys
from pathlib import Path

import pytest

from yeto.errors import YetoError
from yeto.learner.cli import main
from yeto.learner.options import Options, parse

NEEDED = ["--model", "m", "--data", "d", "--out-dir", "o"]


def options(*flags: str) -> Options:
    return parse([*NEEDED, *flags])


@pytest.mark.parametrize(
    "flag, value",
    [
        ("--seq-len", "7"),
        ("--micro-batch-size", "0"),
        ("--grad-accum", "-1"),
        ("--lora-r", "0"),
        ("--lora-alpha", "0"),
        ("--lora-dropout", "1"),
        ("--inner-lr", "-0.1"),
        ("--inner-lr", "nan"),
        ("--inner-lr", "inf"),
        ("--weight-decay", "-1"),
        ("--betas", "0.9,1"),
        ("--betas", "1,0.9"),
        ("--clip", "0"),
        ("--warmup", "-1"),
        ("--epochs", "0"),
        ("--tokens", "0"),
        ("--tokens", "0k"),
        ("--tokens", "0.0005k"),
        ("--tokens", "1001T"),
        ("--local-steps", "0"),
        ("--seed", "-1"),
        ("--threads", "0"),
        ("--fragments", "0"),
        ("--seats", "0"),
        ("--streams", "65"),
        ("--max-alone", "0"),
        ("--log-every", "0"),
        ("--eval-rows", "0"),
        ("--max-rows", "0"),
        ("--val-rows", "-1"),
        ("--max-dropped", "101"),
        ("--seat", "1"),
    ],
)
def test_a_number_out_of_range_is_refused(flag: str, value: str) -> None:
    with pytest.raises(YetoError) as caught:
        options(flag, value)
    assert caught.value.code == "E_RANGE" and caught.value.exit_code == 64
    assert caught.value.what.startswith(f"{flag} {value} is out of range")
    assert caught.value.hint


@pytest.mark.parametrize(
    "flag, value",
    [
        ("--seq-len", "many"),
        ("--lora-r", "1.5"),
        ("--inner-lr", "fast"),
        ("--betas", "0.9"),
        ("--betas", "a,b"),
        ("--syncer", "here"),
        ("--syncer", "host:99999"),
        ("--syncer", "@"),
        ("--lora-targets", "a,,b"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(flag: str, value: str) -> None:
    with pytest.raises(YetoError) as caught:
        options(flag, value)
    assert caught.value.code == "E_TYPE"
    assert flag in caught.value.what and value in caught.value.what


@pytest.mark.parametrize(
    "flags, code",
    [
        (["--val-data", "v", "--val-rows", "3"], "E_CONFLICT"),
        (["--syncer", "h:1", "--seats", "2"], "E_CONFLICT"),
        (["--no-such-flag"], "E_FLAG_UNKNOWN"),
        (["--seq"], "E_FLAG_UNKNOWN"),
        (["--overlong", "split"], "E_USAGE"),
        (["--seq-len"], "E_USAGE"),
    ],
)
def test_flags_that_cannot_stand_are_refused(flags: list[str], code: str) -> None:
    with pytest.raises(YetoError) as caught:
        options(*flags)
    assert caught.value.code == code and caught.value.exit_code == 64


def test_edges_of_ranges_pass() -> None:
    got = options(
        "--seq-len",
        "8",
        "--inner-lr",
        "0",
        "--betas",
        "0,0",
        "--warmup",
        "0",
        "--seed",
        str(2**63 - 1),
        "--syncer",
        "@endpoint.json",
        "--max-dropped",
        "0",
    )
    assert (got.seq_len, got.inner_lr, got.betas, got.warmup) == (8, 0.0, (0.0, 0.0), 0)
    assert got.syncer == "@endpoint.json" and got.max_dropped == 0.0


@pytest.mark.parametrize(
    "text, tokens", [("12", 12), ("2k", 2000), ("1.5M", 1_500_000), ("20B", 20 * 10**9)]
)
def test_tokens_may_have_a_unit(text: str, tokens: int) -> None:
    assert options("--tokens", text).tokens == tokens


def test_defaults() -> None:
    got = options()
    assert (got.seq_len, got.micro_batch_size, got.grad_accum, got.lora_r) == (2048, 1, 4, 16)
    assert (got.lora_alpha, got.inner_lr, got.clip, got.warmup) == (32.0, 3e-4, 1.0, 10)
    assert (got.fragments, got.matrix_merge, got.nan_policy, got.seats) == (8, "rda", "skip", 1)


def test_the_run_folder_gives_the_output_folder() -> None:
    base = ["--model", "m", "--data", "d", "--run-dir", "/r"]
    assert parse([*base, "--seat", "2", "--seats", "3"]).out_dir == "/r/islands/2"
    assert parse([*base, "--out-dir", "/o"]).out_dir == "/o"
    with pytest.raises(YetoError, match="--out-dir"):
        parse(["--model", "m", "--data", "d"])
    assert parse(["--check", "--model", "m", "--data", "d"]).check


def test_errors_reach_stderr_with_their_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NEEDED, "--lora-r", "0"]) == 64
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error[E_RANGE]: --lora-r 0 is out of range\n  hint: ")


def test_help_and_refusals_load_no_framework() -> None:
    root = Path(__file__).resolve().parent.parent
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import yeto\nfrom yeto.learner.cli import main\n"
        "assert main(['--model']) == 64\n"
        "try:\n  main(['--help'])\nexcept SystemExit as leave:\n  assert leave.code == 0\n"
        "heavy = {'torch', 'transformers', 'peft', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "example:" in done.stdout


TLS = ["--tls-cert", "c.pem", "--tls-key", "k.pem", "--tls-ca", "ca.pem"]


def test_certificates_take_the_place_of_the_key_file() -> None:
    got = options(*TLS, "--syncer", "10.0.0.1:29400")
    assert (got.tls_cert, got.tls_key, got.tls_ca) == ("c.pem", "k.pem", "ca.pem")
    assert got.token_file is None and not got.insecure
    assert options("--insecure", "--token-file", "k").insecure


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (TLS[:2], "E_USAGE", "--tls-key and --tls-ca missing"),
        (TLS[2:], "E_USAGE", "--tls-cert missing"),
        ([*TLS, "--token-file", "k"], "E_CONFLICT", "--token-file and --tls-cert"),
        ([*TLS, "--insecure"], "E_CONFLICT", "--insecure and --tls-cert"),
    ],
)
def test_half_a_set_of_certificates_is_refused(flags: list[str], code: str, text: str) -> None:
    with pytest.raises(YetoError) as caught:
        options(*flags)
    assert (caught.value.code, text in caught.value.what) == (code, True), caught.value.what
    assert caught.value.hint


def test_layers_may_be_dealt_in_turn() -> None:
    assert options("--fragment-pattern", "strided").fragment_pattern == "strided"
