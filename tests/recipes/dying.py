"""A tracker by which a worker dies, once, and one that says on which node of Ray each works."""

import os
from pathlib import Path


def tracker(folder):
    """End the process after the second round of FedAvg's pre-training, unless it was ended so."""

    def track(stage):
        def die(report):
            mark = Path(folder) / "died"
            if (stage.start, stage.task, report.round) == ("fedavg", None, 2) and not mark.exists():
                mark.touch()
                os._exit(9)

        return [die]

    return track


def nodes(folder):
    """Leave an empty file called as the node that makes a stage."""

    def track(stage):
        import ray

        there = Path(folder) / "nodes"
        there.mkdir(exist_ok=True)
        (there / ray.get_runtime_context().get_node_id()).touch()
        return []

    return track
