# SPDX-License-Identifier: Apache-2.0
"""One replica of torchft 0.2.0: the loop of task.py inside its `DiLoCo` over gloo, or a lighthouse.

python -m bench.torchft.theirs lighthouse MIN_REPLICAS
python -m bench.torchft.theirs TASK.json REPLICA lighthouse=URL fragments=FILE overlap=N

FILE has the names of the tensors of each fragment; N is `fragment_sync_delay`.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from bench.torchft.task import Learner, moved, socket_bytes, tell, worker_arguments

HOST = "127.0.0.1"
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


class Fragment(nn.Module):
    """Parameters that are merged together."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        for i, parameter in enumerate(parameters):
            self.register_parameter(f"p{i}", parameter)


class Replica:
    def __init__(self, learner: Learner, more: dict[str, str]) -> None:
        self.learner = learner
        fragments = json.loads(Path(more["fragments"]).read_text())
        self.store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
            load_state_dict=self.load,
            state_dict=self.save,
            min_replica_size=1,
            use_async_quorum=False,
            rank=0,
            world_size=1,
            store_addr=HOST,
            store_port=self.store.port,
            lighthouse_addr=more["lighthouse"],
            replica_id=f"replica_{learner.replica}",
            hostname=HOST,
        )
        self.modules = [
            Fragment([learner.parameters[name] for name in names]) for names in fragments
        ]
        self.diloco = DiLoCo(
            self.manager,
            self.modules,
            learner.islands.optimizer,
            [torch.optim.SGD(module.parameters(), **OUTER) for module in self.modules],
            sync_every=learner.task.interval,
            fragment_sync_delay=int(more["overlap"]),
        )
        self.aborted = 0  # merges that did not come about; their steps are undone
        self._count_aborted()

    def _count_aborted(self) -> None:
        ask = self.manager.should_commit

        def should_commit(*arguments: Any, **named: Any) -> bool:
            yes = ask(*arguments, **named)
            self.aborted += not yes
            return yes

        self.manager.should_commit = should_commit

    def save(self) -> dict[str, Any]:
        own = self.learner
        return {
            "model": {name: value.detach().clone() for name, value in own.parameters.items()},
            "optimizer": copy.deepcopy(own.islands.optimizer.state_dict()),
        }

    def load(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, value in state["model"].items():
                self.learner.parameters[name].copy_(value)
        self.learner.islands.optimizer.load_state_dict(state["optimizer"])

    def better_loss(self) -> float:
        """Of what this replica trains on and of what the replicas last agreed on."""
        local = self.learner.held_out_loss()
        self.diloco._restore_parameters()
        return min(local, self.learner.held_out_loss())


def train() -> None:
    task, replica, more = worker_arguments()
    learner = Learner(task, replica)
    own = Replica(learner, more)
    tell("ready", joined_late=False)
    before, merges = socket_bytes(), 0
    with own.diloco:
        for step in range(1, task.steps + 1):
            learner.step()
            tell("step", step=step, aborted=own.aborted)
            if step == task.warmup:
                before, merges = socket_bytes(), own.manager.current_step()
    sent, received = moved(before)
    merges = own.manager.current_step() - merges
    tell("moved", sent=sent, received=received, merges=merges)
    tell("final", loss=own.better_loss(), dropped=own.aborted)
    # The other replica may still need this one's manager for its last merge, and the package has no
    # call that says when it does not. Nothing is measured any more.
    time.sleep(1.0)
    own.manager.shutdown(wait=False)


def lighthouse(min_replicas: int) -> None:
    server = LighthouseServer(bind=f"{HOST}:0", min_replicas=min_replicas)
    tell("lighthouse", address=server.address())
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "lighthouse":
        lighthouse(int(sys.argv[2]))
    else:
        train()
