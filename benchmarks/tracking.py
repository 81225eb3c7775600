"""What a tracker costs: processor time of a run's start and of a round, in this process.

python benchmarks/tracking.py
"""

import tempfile
import time
from pathlib import Path

import fedconcord
from fedconcord import Row, Run

ROUNDS = 200


def main() -> None:
    """A line a tracker."""
    for make in (fedconcord.TensorBoard, fedconcord.MLflow, fedconcord.WandB):
        with tempfile.TemporaryDirectory() as name:
            folder, tracker = Path(name), make()
            run = Run(0, folder, folder, "fedavg", 0, 0, ROUNDS, {"local": {"lr": 0.1}})
            begin = time.process_time()
            tracker.start(run)
            started = time.process_time()
            for k in range(ROUNDS):
                tracker.row(run, Row(k, {"test_accuracy": 0.5, "test_loss": 1.0, "train_loss": 2.0}, k, k, k, 0.1))
            ended = time.process_time()
            tracker.end(run, fedconcord.Finished(folder, "fedavg", 0, "complete", ROUNDS, {}))
        each = 1000 * (ended - started) / ROUNDS
        print(f"{make.__name__}: start {started - begin:.1f} s, a round {each:.1f} ms")


if __name__ == "__main__":
    main()
