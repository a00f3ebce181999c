# SPDX-License-Identifier: Apache-2.0
"""The frozen base model with its LoRA adapter, and the adapter's tensors by canonical name."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from yeto.errors import YetoError
from yeto.learner import lora_init, targets
from yeto.learner.base import BaseFolder
from yeto.learner.options import Options


@dataclass(frozen=True)
class Adapted:
    """`model` is the PEFT model. `names` are the trainable tensors' names as PEFT saves them,
    sorted; `tensors` are the parameters in that order, float32."""

    model: Any
    names: list[str]
    tensors: list[torch.nn.Parameter]
    targets: list[str]
    device: torch.device
    dtype: torch.dtype

    @property
    def trainable(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors)


def choose_device(options: Options) -> tuple[torch.device, torch.dtype]:
    """Device and base precision. Raises YetoError where the machine lacks what is asked for."""
    has_cuda = torch.cuda.is_available()
    if options.device == "cuda" and not has_cuda:
        raise YetoError(
            "E_CONFLICT",
            "--device cuda, but this machine shows no CUDA device",
            hint="use --device cpu, or install a CUDA build of PyTorch",
        )
    kind = "cuda" if options.device == "cuda" or (options.device == "auto" and has_cuda) else "cpu"
    if options.dtype == "auto":
        wide = kind == "cpu" or not torch.cuda.is_bf16_supported()
        dtype = torch.float32 if wide else torch.bfloat16
    else:
        dtype = torch.float32 if options.dtype == "fp32" else torch.bfloat16
    return torch.device(kind), dtype


def load_adapted(options: Options, base: BaseFolder) -> Adapted:
    """Loads the base, freezes it, adds the adapter with its seeded first values."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    device, dtype = choose_device(options)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            base.path, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # the library raises many kinds, all meaning: not loadable
        text = str(error).strip().splitlines()
        raise YetoError(
            "E_MODEL",
            f"the model cannot be loaded: {text[0] if text else type(error).__name__}",
            str(base.path),
            "its weights and config.json must belong together",
        ) from error
    model, info = loaded
    missing = sorted(info.get("missing_keys", ()))
    if missing:  # the library would go on with random numbers in their place
        raise YetoError(
            "E_MODEL",
            f"{len(missing)} weights are missing, first {missing[0]}",
            str(base.path),
            "fetch the model again",
        )
    model.requires_grad_(False)
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    chosen = targets.resolve(options.lora_targets, linear)
    alpha: Any = int(options.lora_alpha) if options.lora_alpha.is_integer() else options.lora_alpha
    config = LoraConfig(
        r=options.lora_r,
        lora_alpha=alpha,
        lora_dropout=options.lora_dropout,
        target_modules=chosen,
        bias="none",
        task_type="CAUSAL_LM",
    )
    # Seeded for dropout, apart for each seat; the first values below do not depend on it.
    torch.manual_seed((options.seed * 1_000_003 + (options.seat or 0)) % (1 << 63))
    adapted = get_peft_model(model, config)
    adapted.to(device)
    named = {
        name.replace(".default.", "."): parameter
        for name, parameter in adapted.named_parameters()
        if parameter.requires_grad
    }
    names = sorted(named)
    parameters = [named[name] for name in names]
    with torch.no_grad():
        for name, parameter in zip(names, parameters, strict=True):
            parameter.data = parameter.data.float().contiguous()
            values = lora_init.initial_values(options.seed, name, tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(values))
    adapted.train()
    return Adapted(adapted, names, parameters, chosen, device, dtype)


def describe(adapted: Adapted, base: BaseFolder) -> str:
    """One line of facts about the model for the log."""
    total = base.parameters or sum(p.numel() for p in adapted.model.parameters())
    share = 100 * adapted.trainable / total
    return (
        f"model {base.id}: {base.config.get('model_type')}, {total:,} parameters, "
        f"{adapted.trainable:,} trainable ({share:.2f} %) in {len(adapted.names)} tensors, "
        f"base {str(adapted.dtype).removeprefix('torch.')} on {adapted.device}"
    )


def gradient_norm(tensors: list[torch.nn.Parameter]) -> float:
    """The 2-norm of all gradients together, summed in float64; not finite if any is not."""
    grads = [t.grad for t in tensors if t.grad is not None]
    if not grads:
        return 0.0
    norms = torch._foreach_norm(grads)
    return math.sqrt(float(torch.stack([n.double() for n in norms]).square().sum()))
