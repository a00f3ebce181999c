# SPDX-License-Identifier: Apache-2.0
"""The finished adapter as a folder: written beside its place, opened again, checked, renamed."""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import yeto
from yeto.errors import YetoError
from yeto.learner.base import BaseFolder, file_digest, tree_digest
from yeto.learner.model import Adapted
from yeto.learner.options import Options

MANIFEST = "yeto_manifest.json"
WEIGHTS = "adapter_model.safetensors"
# Flags that say where and how a run was made, not what was trained.
_NOT_RECIPE = frozenset(
    {
        "model",
        "data",
        "val_data",
        "syncer",
        "run_id",
        "seat",
        "token_file",
        "streams",
        "max_alone",
        "run_dir",
        "out_dir",
        "log_every",
        "sample_prompt",
        "device_text",
        "check",
        "threads",
        "chat_template",
    }
)


@dataclass(frozen=True)
class Provenance:
    """What the manifest says beyond the adapter's own bytes. None is unknown."""

    base: BaseFolder
    tokenizer: Any
    base_sha256: str
    template_sha256: str
    data_sha256: str
    data_rows: int
    global_step: int | None
    run_tokens: int | None
    run_targets: int | None
    score: tuple[float, int] | None
    trained: bool  # some step had a rate above zero, here or on another island


def publish(out_dir: Path, adapted: Adapted, options: Options, provenance: Provenance) -> Path:
    """Writes, checks and publishes `out_dir`/adapter. Raises YetoError (E_DAMAGED, E_IO)."""
    final = out_dir / "adapter"
    for stale in out_dir.glob("adapter.tmp-*"):
        shutil.rmtree(stale, ignore_errors=True)
    folder = out_dir / f"adapter.tmp-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
        _write(folder, adapted, provenance)
        _check(folder / WEIGHTS, adapted, provenance.trained)
        manifest = _manifest(folder, adapted, options, provenance)
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (folder / MANIFEST).write_text(text, encoding="utf-8")
        _make_durable(folder)
        if final.exists():
            old = out_dir / f"adapter.tmp-{os.getpid()}-old"
            final.rename(old)
            folder.rename(final)
            shutil.rmtree(old)
        else:
            folder.rename(final)
        _sync_path(out_dir)
    except OSError as error:
        raise YetoError(
            "E_IO",
            f"the adapter cannot be written: {error.strerror or error}",
            str(out_dir),
            "free space or choose another --out-dir; the run's checkpoint holds the same values",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return final


def _write(folder: Path, adapted: Adapted, provenance: Provenance) -> None:
    base = provenance.base
    config = adapted.model.peft_config["default"]
    config.base_model_name_or_path = base.id if base.source == "hub" else str(base.path.resolve())
    # The vocabulary is never changed here, so no embedding belongs into the adapter.
    adapted.model.save_pretrained(folder, safe_serialization=True, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # an empty model card says nothing
    # safetensors makes its file for the owner alone; an artifact is read as the rest of it is.
    os.chmod(folder / WEIGHTS, (folder / "adapter_config.json").stat().st_mode & 0o777)
    provenance.tokenizer.save_pretrained(folder)


def _check(path: Path, adapted: Adapted, trained: bool) -> None:
    """What was saved is what was trained: names, shapes, finite values, and some change."""
    from safetensors.numpy import load_file

    saved = load_file(path)
    if sorted(saved) != adapted.names:
        odd = sorted(set(saved) ^ set(adapted.names))
        raise YetoError("E_DAMAGED", f"saved and trained tensors differ, first {odd[0]}", str(path))
    changed = False
    for name, parameter in zip(adapted.names, adapted.tensors, strict=True):
        values = saved[name]
        if values.size == 0 or values.shape != tuple(parameter.shape):
            raise YetoError("E_DAMAGED", f"{name} is saved with shape {values.shape}", str(path))
        if not np.isfinite(values).all():
            raise YetoError(
                "E_DAMAGED",
                f"{name} holds values that are not finite",
                str(path),
                "lower --inner-lr and train again",
            )
        if not np.array_equal(values, parameter.detach().cpu().numpy()):
            raise YetoError("E_DAMAGED", f"{name} is not saved as it was trained", str(path))
        changed = changed or (".lora_B." in name and bool(values.any()))
    if trained and not changed:
        raise YetoError(
            "E_DAMAGED",
            "every B matrix is zero after training: the adapter does nothing",
            str(path),
            "look at --inner-lr and at the loss in metrics.jsonl",
        )


def _manifest(
    folder: Path, adapted: Adapted, options: Options, provenance: Provenance
) -> dict[str, Any]:
    names = sorted(p.name for p in folder.iterdir())
    files = {}
    for name in names:
        size, digest = file_digest(folder / name)
        files[name] = {"bytes": size, "sha256": digest}
    score = provenance.score
    return {
        "schema": "yeto.manifest/1",
        "kind": "adapter",
        "created_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "run": {
            "id": options.run_id or None,
            "name": _run_name(options.run_dir),
            "global_step": provenance.global_step,
            "tokens": provenance.run_tokens,
            "targets": provenance.run_targets,
            "islands": options.seats,
        },
        "base": _base_part(adapted, provenance),
        "adapter": _adapter_part(adapted, options),
        "data": [_data_part(options, provenance)],
        "cache_sha256": None,
        "recipe": {k: v for k, v in asdict(options).items() if k not in _NOT_RECIPE},
        "parent": None,
        "score": {
            "eval_loss": score[0] if score else None,
            "eval_targets": score[1] if score else None,
        },
        "code": {
            "yeto": yeto.version(),
            "source_sha256": _source_digest(),
            "torch": metadata.version("torch"),
            "transformers": metadata.version("transformers"),
            "tokenizers": metadata.version("tokenizers"),
        },
        "files": files,
        "tree_sha256": tree_digest(folder, names),
    }


def _base_part(adapted: Adapted, provenance: Provenance) -> dict[str, Any]:
    base = provenance.base
    return {
        "source": base.source,
        "id": base.id if base.source == "hub" else base.path.name,
        "revision": base.revision,
        "tree_sha256": provenance.base_sha256,
        "tokenizer_sha256": base.tokenizer_digest(),
        "template_sha256": provenance.template_sha256,
        "tied_head": bool(adapted.model.config.tie_word_embeddings),
    }


def _adapter_part(adapted: Adapted, options: Options) -> dict[str, Any]:
    return {
        "type": "lora",
        "r": options.lora_r,
        "alpha": options.lora_alpha,
        "dropout": options.lora_dropout,
        "rslora": False,
        "dora": False,
        "targets": adapted.targets,
        "full_copies": [],
        "base_quant": {"kind": "none"},
        "tensors": len(adapted.names),
        "values": adapted.trainable,
    }


def _data_part(options: Options, provenance: Provenance) -> dict[str, Any]:
    return {
        "source": "file",
        "id": Path(options.data).name,
        "revision": None,
        "content_sha256": provenance.data_sha256,
        "format": "openai",
        "rows": provenance.data_rows,
        "weight": 1.0,
    }


def _run_name(run_dir: str | None) -> str | None:
    if run_dir is None:
        return None
    try:
        value = json.loads((Path(run_dir) / "run.json").read_text(encoding="utf-8"))
        return value.get("name")
    except (OSError, ValueError, AttributeError):
        return None


def _source_digest() -> str:
    """Content of this package's Python files."""
    root = Path(__file__).resolve().parent.parent
    names = [p.relative_to(root).as_posix() for p in root.rglob("*.py")]
    return tree_digest(root, names)


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _make_durable(folder: Path) -> None:
    for path in folder.iterdir():
        _sync_path(path)
    _sync_path(folder)


def _sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
