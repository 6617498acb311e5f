"""A tracker by which a worker dies, once."""

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
