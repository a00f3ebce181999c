# SPDX-License-Identifier: Apache-2.0
"""The learner's flags: parsed, range-checked, and kept in one plain struct. No framework."""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

from yeto.errors import YetoError

_EXAMPLE = """example:
  python -m yeto.learner --model ./model --data chat.jsonl --val-data heldout.jsonl \\
      --seq-len 256 --micro-batch-size 4 --grad-accum 1 --epochs 1 --out-dir out
"""


@dataclass(frozen=True)
class Options:
    """Effective flags. None means: not given."""

    model: str
    data: str
    val_data: str | None
    val_rows: int
    max_rows: int | None
    max_dropped: float
    seq_len: int
    overlong: str
    micro_batch_size: int
    grad_accum: int
    lora_r: int
    lora_alpha: float
    lora_dropout: float
    lora_targets: str
    inner_lr: float
    weight_decay: float
    betas: tuple[float, float]
    clip: float
    warmup: int
    epochs: int | None
    tokens: int | None
    local_steps: int | None
    seed: int
    dtype: str
    device: str
    threads: int | None
    chat_template: str | None
    assistant_mask_mode: str
    train_on: str
    fragments: int
    fragment_pattern: str
    matrix_merge: str
    syncer: str | None
    run_id: str
    seat: int | None
    seats: int
    token_file: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None
    insecure: bool
    streams: int
    max_alone: float
    run_dir: str | None
    out_dir: str
    log_every: int
    eval_rows: int
    sample_prompt: str | None
    nan_policy: str
    device_text: str
    check: bool


def _number(
    flag: str, convert: Callable[[str], Any], low: float, high: float, *, open_low: bool = False
) -> Callable[[str], Any]:
    """A parser of one number in [low, high], or (low, high] with `open_low`."""

    def parse(text: str) -> Any:
        noun = "an integer" if convert is int else "a number"
        try:
            value = convert(text)
        except ValueError:
            raise YetoError(
                "E_TYPE", f"{flag} takes {noun}, not {text!r}", hint=f"for example {flag} {low:g}"
            ) from None
        inside = math.isfinite(value) and low <= value <= high and not (open_low and value == low)
        if not inside:
            bounds = f"{'more than' if open_low else 'at least'} {low:g}"
            if high < 1e18:
                bounds += f" and at most {high:g}"
            raise YetoError("E_RANGE", f"{flag} {text} is out of range", hint=f"give {bounds}")
        return value

    return parse


def _count(text: str) -> int:
    """A number of tokens: digits, with a decimal part where k, M, B or T follows."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMBT])", text.strip())
    if match is None:
        return int(_number("--tokens", int, 1, 1e15)(text))
    scale = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}[match[2]]
    value = Fraction(match[1]) * scale
    if value.denominator != 1 or not 1 <= value <= 10**15:
        raise YetoError(
            "E_RANGE",
            f"--tokens {text} is out of range",
            hint="give at least 1 and at most 1e+15, a whole number of tokens",
        )
    return int(value)


def _betas(text: str) -> tuple[float, float]:
    parts = text.split(",")
    try:
        values = tuple(float(part) for part in parts)
    except ValueError:
        values = ()
    if len(values) != 2:
        raise YetoError(
            "E_TYPE",
            f"--betas takes two numbers, not {text!r}",
            hint="for example --betas 0.9,0.999",
        )
    if not all(0 <= value < 1 for value in values):
        raise YetoError(
            "E_RANGE", f"--betas {text} is out of range", hint="both must be at least 0 and below 1"
        )
    return values[0], values[1]


def _percent(text: str) -> float:
    bare = text.strip().removesuffix("%")
    return _number("--max-dropped", float, 0, 100)(bare) / 100


def _targets(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+(,[A-Za-z0-9_.-]+)*", text):
        raise YetoError(
            "E_TYPE",
            f"--lora-targets takes auto, all-linear, attention or a list of "
            f"module names, not {text!r}",
            hint="for example q_proj,v_proj",
        )
    return text


def _syncer(text: str) -> str:
    if text.startswith("@") and len(text) > 1:
        return text
    host, _, port = text.rpartition(":")
    if host and port.isdigit() and 0 < int(port) < 65536:
        return text
    raise YetoError(
        "E_TYPE",
        f"--syncer takes HOST:PORT or @FILE, not {text!r}",
        hint="@FILE names the endpoint.json that the syncer writes",
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        code = "E_FLAG_UNKNOWN" if message.startswith("unrecognized") else "E_USAGE"
        raise YetoError(code, message, hint="python -m yeto.learner --help lists the flags")


def _parser() -> argparse.ArgumentParser:
    p = _Parser(
        prog="python -m yeto.learner",
        epilog=_EXAMPLE,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Trains a LoRA adapter on chat data as one island.",
    )
    p.add_argument(
        "--check",
        action="store_true",
        help="validate model and data, print one JSON object, train nothing",
    )
    _data_flags(p.add_argument_group("data"))
    _training_flags(p.add_argument_group("training"))
    _limit_flags(p.add_argument_group("limits, the first that is reached ends the steps"))
    _island_flags(p.add_argument_group("island and syncer"))
    _output_flags(p.add_argument_group("output"))
    return p


def _data_flags(g: Any) -> None:
    g.add_argument("--model", required=True, help="hub id or local folder, safetensors")
    g.add_argument("--data", required=True, help="JSONL file of OpenAI-style messages")
    g.add_argument("--val-data", help="held-out JSONL file")
    g.add_argument(
        "--val-rows",
        type=_number("--val-rows", int, 0, 1e9),
        default=0,
        help="hold out this many rows of --data (0)",
    )
    g.add_argument(
        "--max-rows", type=_number("--max-rows", int, 1, 1e12), help="read only the first rows"
    )
    g.add_argument(
        "--max-dropped",
        type=_percent,
        default=0.05,
        help="refuse the data when more rows than this are damaged (5%%)",
    )
    g.add_argument(
        "--seq-len",
        type=_number("--seq-len", int, 8, 1 << 20),
        default=2048,
        help="longest row in tokens (2048)",
    )
    g.add_argument(
        "--overlong",
        choices=("drop", "right", "error"),
        default="drop",
        help="longer rows: drop, keep the first tokens (right), or stop (drop)",
    )
    g.add_argument("--chat-template", help="file that replaces the tokenizer's chat template")
    g.add_argument("--assistant-mask-mode", choices=("auto", "native", "spans"), default="auto")
    g.add_argument(
        "--train-on",
        choices=("assistant", "last", "all"),
        default="assistant",
        help="which turns carry loss (assistant)",
    )


def _training_flags(g: Any) -> None:
    g.add_argument(
        "--micro-batch-size",
        type=_number("--micro-batch-size", int, 1, 4096),
        default=1,
        help="rows in one forward pass (1)",
    )
    g.add_argument(
        "--grad-accum",
        type=_number("--grad-accum", int, 1, 65536),
        default=4,
        help="micro-batches of one step (4)",
    )
    g.add_argument("--lora-r", type=_number("--lora-r", int, 1, 4096), default=16)
    g.add_argument(
        "--lora-alpha", type=_number("--lora-alpha", float, 0, 1e6, open_low=True), default=32.0
    )
    g.add_argument("--lora-dropout", type=_number("--lora-dropout", float, 0, 0.99), default=0.0)
    g.add_argument(
        "--lora-targets",
        type=_targets,
        default="auto",
        help="auto, all-linear, attention, or module names with commas (auto)",
    )
    g.add_argument("--inner-lr", type=_number("--inner-lr", float, 0, 10), default=3e-4)
    g.add_argument("--weight-decay", type=_number("--weight-decay", float, 0, 10), default=0.0)
    g.add_argument("--betas", type=_betas, default=(0.9, 0.999))
    g.add_argument(
        "--clip",
        type=_number("--clip", float, 0, 1e9, open_low=True),
        default=1.0,
        help="largest gradient norm (1.0)",
    )
    g.add_argument(
        "--warmup",
        type=_number("--warmup", int, 0, 1e9),
        default=10,
        help="steps until the full learning rate, which then stays (10)",
    )
    g.add_argument("--seed", type=_number("--seed", int, 0, 2**63 - 1), default=0)
    g.add_argument(
        "--dtype",
        choices=("auto", "fp32", "bf16"),
        default="auto",
        help="of the base model: bf16 on devices that have it, else fp32 (auto)",
    )
    g.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    g.add_argument(
        "--threads",
        type=_number("--threads", int, 1, 1024),
        help="threads of one operation on the CPU",
    )
    g.add_argument(
        "--nan-policy",
        choices=("skip", "stop"),
        default="skip",
        help="a non-finite step is left out, or ends the island (skip)",
    )


def _limit_flags(g: Any) -> None:
    g.add_argument(
        "--epochs",
        type=_number("--epochs", int, 1, 1e6),
        help="stop after this many passes over the island's rows",
    )
    g.add_argument(
        "--tokens",
        type=_count,
        help="stop when the run has trained this many tokens; k, M, B, T are allowed",
    )
    g.add_argument(
        "--local-steps",
        type=_number("--local-steps", int, 1, 1e12),
        help="stop after exactly this many steps of this island",
    )


def _island_flags(g: Any) -> None:
    g.add_argument(
        "--syncer",
        type=_syncer,
        help="HOST:PORT or @endpoint.json; without it the island trains alone",
    )
    g.add_argument("--run-id", default="", help="the run's id, as the syncer has it")
    g.add_argument("--seat", type=_number("--seat", int, 0, 65535), help="this island's place")
    g.add_argument(
        "--seats",
        type=_number("--seats", int, 1, 65536),
        default=1,
        help="places in the run; position i of the order belongs to seat i mod seats",
    )
    g.add_argument("--token-file", help="file with this seat's key; this, or the three TLS files")
    g.add_argument("--tls-cert", help="certificate that names yeto://RUN/seat/N (PEM)")
    g.add_argument("--tls-key", help="its private key, mode 0600 (PEM)")
    g.add_argument("--tls-ca", help="the CA that signed all certificates of the run (PEM)")
    g.add_argument(
        "--insecure", action="store_true", help="allow plain TCP to a syncer on another machine"
    )
    g.add_argument("--fragments", type=_number("--fragments", int, 1, 65536), default=8)
    g.add_argument("--fragment-pattern", choices=("binpack", "strided"), default="binpack")
    g.add_argument("--matrix-merge", choices=("rda", "avg"), default="rda")
    g.add_argument(
        "--streams",
        type=_number("--streams", int, 0, 64),
        default=4,
        help="data streams to the syncer (4)",
    )
    g.add_argument(
        "--max-alone",
        type=_number("--max-alone", float, 1, 1e7),
        default=600.0,
        help="seconds without the syncer after which the island pauses (600)",
    )
    g.add_argument("--device-text", default="", help="what status shows as this island's device")


def _output_flags(g: Any) -> None:
    g.add_argument("--run-dir", help="the run's folder; gives --out-dir its default")
    g.add_argument("--out-dir", help="folder for metrics.jsonl and adapter/")
    g.add_argument("--log-every", type=_number("--log-every", int, 1, 1e9), default=1)
    g.add_argument(
        "--eval-rows",
        type=_number("--eval-rows", int, 1, 1e9),
        default=512,
        help="at most this many held-out rows are evaluated (512)",
    )
    g.add_argument("--sample-prompt", help="answered before and after training")


def _check_credentials(values: dict[str, Any]) -> None:
    """By what the island proves its seat: a key file, or certificate, key and CA."""
    files = {name: values[f"tls_{name}"] for name in ("cert", "key", "ca")}
    missing = [f"--tls-{name}" for name, path in files.items() if path is None]
    if len(missing) == len(files):
        return
    if missing:
        raise YetoError(
            "E_USAGE",
            f"{' and '.join(missing)} missing",
            hint="TLS needs --tls-cert, --tls-key and --tls-ca together",
        )
    for name in ("token_file", "insecure"):
        if values[name]:
            flag = "--" + name.replace("_", "-")
            raise YetoError(
                "E_CONFLICT",
                f"{flag} and --tls-cert exclude each other",
                hint=f"with TLS the certificate says which seat this is: leave {flag} out",
            )


def parse(argv: Sequence[str] | None = None) -> Options:
    """The effective flags. Raises YetoError with exit code 64; `--help` leaves by SystemExit."""
    values = vars(_parser().parse_args(argv))
    seat, seats = values["seat"], values["seats"]
    if seat is not None and seat >= seats:
        raise YetoError(
            "E_RANGE",
            f"--seat {seat} is out of range with --seats {seats}",
            hint=f"give a seat from 0 to {seats - 1}",
        )
    if values["val_data"] and values["val_rows"]:
        raise YetoError(
            "E_CONFLICT",
            "--val-data and --val-rows exclude each other",
            hint="held-out rows come from one of them",
        )
    if values["syncer"] and seats > 1 and seat is None:
        raise YetoError(
            "E_CONFLICT",
            f"--seats {seats} needs --seat",
            hint="the seat decides which rows this island trains",
        )
    _check_credentials(values)
    if values["out_dir"] is None and values["run_dir"]:
        values["out_dir"] = f"{values['run_dir']}/islands/{seat or 0}"
    if values["out_dir"] is None:
        if not values["check"]:
            raise YetoError("E_USAGE", "--out-dir is needed", hint="where metrics and adapter go")
        values["out_dir"] = ""
    return Options(**values)
