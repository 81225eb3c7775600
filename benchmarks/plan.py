"""What a server keeps of a round's replies and how long it works on a message, beside what `fedconcord plan` says.

    python benchmarks/plan.py --replies 1000 --method scaffold --parameters 250000

Every reply is a frame of bytes that is checked, read, kept until all are there, and summed: what `engine wire` and
`deployment` do. One process, one thread.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import torch

from fedconcord import METHODS
from fedconcord.execution.messages import codec
from fedconcord.insight.advice.planner import CPU, Federation, device_of, planned, sizes_of
from fedconcord.method.contract import TRAIN, Phase, Plan, Population, Space, finite, total_of, tree_map
from fedconcord.method.wrappers.forms import forms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=1000)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--parameters", type=int, default=250_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    algorithm, replies, d = METHODS[args.method](), args.replies, args.parameters
    of = Federation(replies, replies, 1, 4 * d, device_of("phone", 0.0))
    tier = planned(sizes_of(args.method, algorithm, of), of).layouts[0].tiers[0]
    like = tree_map(lambda leaf: torch.ones(leaf.shape, dtype=leaf.dtype), forms(algorithm, torch.zeros(d)).up)
    data = codec.write(codec.Frame("reply", "method", 0, 1, {}, codec.pack("up", like)))
    one = np.ones(replies)
    plan = Plan(0, np.arange(replies), one.astype(np.int64), one / replies, one / replies, one, 0.1, 0)
    space = Space(replies, d, torch.float32, torch.device("cpu"), None)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    state = algorithm.init(torch.zeros(d), Population(replies, torch.full((replies,), 1 / replies)))
    kept = {i: codec.unpack("up", codec.read(data), like, space.device) for i in range(replies)}
    sound = all(bool(finite(reply, 1)) for reply in kept.values())
    total = total_of(Phase(TRAIN, (), (), algorithm.contribute), kept, space, plan)
    assert sound
    assert total is not None
    assert state is not None
    took = (time.process_time() - begin) / replies / len(data)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(f"{args.method}, {replies} replies of {len(data) / 1e6:.1f} MB")
    print(f"memory: {grown / 1e6:.0f} MB, planned {tier.replies / 1e6:.0f} MB ({grown / tier.replies - 1:+.1%})")
    print(f"CPU: {1e9 * took:.2f} ns a byte, planned {1e9 * CPU:.2f}")


if __name__ == "__main__":
    main()
