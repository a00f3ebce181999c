# SPDX-License-Identifier: Apache-2.0
"""One island of Yeto: the loop of task.py around `yeto._core.Boundary`.

python -m bench.torchft.ours TASK.json REPLICA syncer=@FILE token=FILE finalize=0|1
"""

from __future__ import annotations

from bench.torchft.task import Learner, moved, socket_bytes, tell, worker_arguments
from yeto._core import Boundary

RUN_ID = "bench"


def main() -> None:
    task, replica, more = worker_arguments()
    learner = Learner(task, replica)
    boundary = Boundary(
        syncer=more["syncer"],
        run_id=RUN_ID,
        seat=replica,
        token_file=more["token"],
        names=list(learner.parameters),
        tensors=[value.detach()[0].numpy() for value in learner.parameters.values()],
        fragments=task.fragments,
    )
    ready = boundary.wait_ready(60.0)
    tell("ready", joined_late=ready["joined_late"])
    before, merges, report = socket_bytes(), 0, {}
    for step in range(1, task.steps + 1):
        learner.step()
        report = boundary.step(learner.tokens)
        tell("step", step=step)
        merges += len(report["applied"])
        if step == task.warmup:
            before, merges = socket_bytes(), 0
        if report["draining"]:
            break
    sent, received = moved(before)
    tell("moved", sent=sent, received=received, merges=merges)
    if more["finalize"] == "1":
        boundary.finalize("limit", 60.0)
        tell("final", loss=learner.held_out_loss(), dropped=report["dropped"])
    else:
        tell("final", loss=None, dropped=report["dropped"])
        boundary.leave("done")
    boundary.close()


if __name__ == "__main__":
    main()
