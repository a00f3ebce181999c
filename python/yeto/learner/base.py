# SPDX-License-Identifier: Apache-2.0
"""The base model as files: found, checked and digested without loading a single weight."""

import hashlib
import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yeto.errors import YetoError

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)
_CONFIG_FILES = ("config.json", "generation_config.json")
_INDEX = "model.safetensors.index.json"
_SMALL_PATTERNS = ["*.json", "*.jinja", "*.txt", "*.model"]
_HEADER_BYTES_MAX = 100 << 20


@dataclass(frozen=True)
class BaseFolder:
    """A local folder with config, tokenizer and safetensors weights. `tensors` maps each weight
    to its shape; it is empty if the weights lie on the hub and are not fetched yet."""

    path: Path
    source: str  # "local" or "hub"
    id: str
    revision: str | None
    config: dict[str, Any]
    weight_files: tuple[str, ...]
    tensors: dict[str, tuple[int, ...]]

    @property
    def parameters(self) -> int | None:
        """Values stored in the weights; None if unknown. A tied head is stored once."""
        return sum(math.prod(shape) for shape in self.tensors.values()) if self.tensors else None

    @property
    def vocabulary(self) -> int | None:
        text_config = self.config.get("text_config", {})
        return self.config.get("vocab_size") or text_config.get("vocab_size")

    def tokenizer_digest(self) -> str:
        return tree_digest(self.path, [n for n in _TOKENIZER_FILES if (self.path / n).is_file()])

    def digest(self) -> str:
        """Content of everything that was read: weights, config and tokenizer."""
        small = [n for n in (*_TOKENIZER_FILES, *_CONFIG_FILES) if (self.path / n).is_file()]
        if (self.path / _INDEX).is_file():
            small.append(_INDEX)
        return tree_digest(self.path, [*small, *self.weight_files])


def file_digest(path: Path) -> tuple[int, str]:
    """(bytes, SHA-256 hex) of a file."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb") as handle:
        while block := handle.read(1 << 22):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def tree_digest(folder: Path, names: list[str]) -> str:
    """SHA-256 of the lines `<sha256> <bytes> <relative path>`, sorted by path."""
    outer = hashlib.sha256()
    for name in sorted(names, key=lambda n: n.encode()):
        size, digest = file_digest(folder / name)
        outer.update(f"{digest} {size} {name}\n".encode())
    return outer.hexdigest()


def open_base(model: str, *, fetch_weights: bool) -> BaseFolder:
    """Finds `model` (a folder or a hub id) and checks its files. Raises YetoError (E_MODEL)."""
    source, revision = "local", None
    path = Path(os.path.expanduser(model))
    weights_fetched = True
    if not path.is_dir():
        if model.startswith(("/", "./", "../", "~")) or model.count("/") != 1 or path.exists():
            raise YetoError(
                "E_MODEL",
                f"the model folder {model} does not exist",
                "--model",
                "give a local folder, or a hub id of the form org/name",
            )
        path = _fetch(model, fetch_weights)
        source, revision = "hub", path.name
        weights_fetched = fetch_weights or any(path.glob("*.safetensors"))
    config = _read_json(path / "config.json")
    files: tuple[str, ...] = ()
    tensors: dict[str, tuple[int, ...]] = {}
    if weights_fetched:
        files, tensors = _weights(path)
    if "quantization_config" in config:
        raise YetoError(
            "E_MODEL",
            "the weights are stored quantised",
            str(path / "config.json"),
            "take the 16- or 32-bit form of the model",
        )
    return BaseFolder(path, source, model, revision, config, files, tensors)


def _fetch(model: str, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = _SMALL_PATTERNS + (["*.safetensors"] if weights else [])
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds, all meaning: not to be had
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise YetoError(
            "E_MODEL",
            f"the model {model} is not in the local cache and cannot be fetched",
            reason,
            "check the id and the network, or give a local folder; HF_HUB_OFFLINE=1 uses "
            "only what is cached",
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise YetoError(
            "E_MODEL",
            f"the model folder has no {path.name}",
            str(path.parent),
            "give a folder in the Transformers layout",
        ) from error
    except (OSError, ValueError) as error:
        raise YetoError("E_MODEL", f"{path.name} cannot be read: {error}", str(path)) from error
    if not isinstance(value, dict):
        raise YetoError("E_MODEL", f"{path.name} is no JSON object", str(path))
    return value


def _weights(folder: Path) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """The weight files and the shapes of their tensors. An index is the only authority."""
    if (folder / _INDEX).is_file():
        weight_map = _read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise YetoError("E_MODEL", "the index names no weights", str(folder / _INDEX))
        names = sorted(set(weight_map.values()))
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        if len(names) > 1:
            raise YetoError(
                "E_MODEL",
                f"{len(names)} weight files and no {_INDEX}",
                str(folder),
                "a model in shards needs its index",
            )
    if not names:
        others = sorted({p.suffix for p in folder.iterdir()} & {".bin", ".pt", ".pth", ".gguf"})
        found = f"; there are {', '.join(others)} files" if others else ""
        raise YetoError(
            "E_MODEL",
            f"the model has no safetensors weights{found}",
            str(folder),
            "save the model as safetensors",
        )
    tensors: dict[str, tuple[int, ...]] = {}
    for name in names:
        tensors.update(_header(folder / name))
    return tuple(names), tensors


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes in a safetensors file, whose length must be what its header says."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as handle:
            length = struct.unpack("<Q", handle.read(8))[0]
            if length > min(_HEADER_BYTES_MAX, size - 8):
                raise ValueError("the header is longer than the file")
            header = json.loads(handle.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if 8 + length + end != size:
            raise ValueError(f"{size} bytes, but the header speaks of {8 + length + end}")
        return {name: tuple(entry["shape"]) for name, entry in header.items()}
    except FileNotFoundError as error:
        raise YetoError(
            "E_MODEL",
            f"the weight file {path.name} is missing",
            str(path.parent),
            "fetch the model again",
        ) from error
    except OSError as error:
        raise YetoError(
            "E_MODEL", f"the weight file cannot be read: {error.strerror}", str(path)
        ) from error
    except (ValueError, KeyError, TypeError, struct.error, AttributeError) as error:
        raise YetoError(
            "E_MODEL", f"the weight file is damaged: {error}", str(path), "fetch the model again"
        ) from error


def load_tokenizer(base: BaseFolder) -> Any:
    """The model's tokenizer. Raises YetoError (E_MODEL)."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(base.path)
    except Exception as error:  # the library raises many kinds
        raise YetoError(
            "E_MODEL",
            f"the tokenizer cannot be loaded: {_first_line(error)}",
            str(base.path),
            "the folder needs tokenizer.json and tokenizer_config.json",
        ) from error
    if not tokenizer.is_fast:
        raise YetoError(
            "E_MODEL",
            "the tokenizer has no fast form, so no character offsets",
            str(base.path),
            "save it with a tokenizer.json",
        )
    if base.vocabulary is not None and len(tokenizer) > base.vocabulary:
        highest = max(tokenizer.get_vocab().values())
        if highest >= base.vocabulary:
            raise YetoError(
                "E_MODEL",
                f"the tokenizer has {highest + 1} entries, the embedding {base.vocabulary} rows",
                str(base.path),
                "take the tokenizer that belongs to the model",
            )
    return tokenizer


def load_config(base: BaseFolder) -> Any:
    """The model's configuration object; its kind must be a causal language model."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config = AutoConfig.from_pretrained(base.path)
    except Exception as error:  # as in load_tokenizer
        raise YetoError(
            "E_MODEL",
            f"the configuration is not understood: {_first_line(error)}",
            str(base.path / "config.json"),
            "models with code of their own are not taken",
        ) from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise YetoError(
            "E_MODEL",
            f"a model of type {config.model_type} is no causal language model",
            str(base.path / "config.json"),
            "take a text model with a language-model head",
        )
    return config


def stop_ids(base: BaseFolder, tokenizer: Any) -> set[int]:
    """End tokens named by the generation config, the config and the tokenizer."""
    found: set[int] = set()
    sources = [base.config]
    if (base.path / "generation_config.json").is_file():
        sources.append(_read_json(base.path / "generation_config.json"))
    for source in sources:
        ids = source.get("eos_token_id")
        found.update(i for i in (ids if isinstance(ids, list) else [ids]) if isinstance(i, int))
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    return {token_id for token_id in found if 0 <= token_id < len(tokenizer)}


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
