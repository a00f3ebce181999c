# SPDX-License-Identifier: Apache-2.0
"""Which linear layers get an adapter: from a flag and tensor or module names to suffixes."""

from collections import Counter
from collections.abc import Iterable, Mapping

from yeto.errors import YetoError

PRESETS = ("auto", "all-linear", "attention")
_ATTENTION = {
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "qkv_proj",
    "out_proj",
    "query_key_value",
    "c_attn",
    "query",
    "key",
    "value",
    "Wqkv",
}
_NEVER = {"lm_head", "embed_out", "output"}


def resolve(flag: str, linear_names: Iterable[str]) -> list[str]:
    """The suffixes to adapt, sorted. `linear_names` are the full names of all linear modules.

    auto is all linear layers of the blocks, and attention alone for a mixture of experts. Raises
    YetoError (E_MODEL) if nothing matches, listing the suffixes there are.
    """
    names = list(linear_names)
    counts = Counter(name.rsplit(".", 1)[-1] for name in names)
    for head in _NEVER:
        counts.pop(head, None)
    experts = any(".experts" in name for name in names)
    attention = {suffix for suffix in counts if suffix in _ATTENTION}
    if flag == "attention" or (flag == "auto" and experts):
        chosen = attention
    elif flag in ("auto", "all-linear"):
        chosen = set(counts)
    else:
        chosen = set(flag.split(","))
        missing = sorted(chosen - set(counts))
        if missing:
            raise _no_match(flag, missing, counts)
    if not chosen:
        raise _no_match(flag, [], counts)
    return sorted(chosen)


def check_suffixes(flag: str, tensors: Mapping[str, tuple[int, ...]]) -> None:
    """The same refusal for named suffixes from weight names alone, before any model is built."""
    if flag in PRESETS or not tensors:
        return
    matrices = [
        name.removesuffix(".weight")
        for name, shape in tensors.items()
        if name.endswith(".weight") and len(shape) == 2 and "embed" not in name
    ]
    resolve(flag, matrices)


def _no_match(flag: str, missing: list[str], counts: Mapping[str, int]) -> YetoError:
    known = ", ".join(f"{suffix} ({count})" for suffix, count in sorted(counts.items()))
    what = f"{', '.join(missing)} of " if missing else ""
    return YetoError(
        "E_MODEL",
        f"{what}--lora-targets {flag} names no linear layer of the model",
        f"linear layers: {known or 'none'}",
        "choose among these, or use all-linear",
    )
