"""Plant errors of public federated code in copies of the package, and see that the tests notice each.

    python tests/mutations.py [--list] [name ...]

A line a mutation: the test that failed, or SURVIVED. Exit status 1 if one survives, 2 if one says nothing: the source
has changed (correct the text here then), or the test fails without the error too. The tests about the method run
first; if they pass, the wider part of the suite, and the reference trajectories in tests/oracles.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ORACLES = ROOT / "tests" / "oracles"
FIXED, CHECK = (f"tests/method/test_{name}.py" for name in ("fixed_points", "check"))
ENGINES, RESULTS, STATE = (f"tests/execution/test_{name}.py" for name in ("engines", "results", "state"))
TUNING, BASELINES, DIAGNOSIS = (
    "tests/study/test_tuning.py",
    "tests/study/test_baselines.py",
    "tests/diagnosis/test_diagnosis.py",
)
RANKS = ("tests/execution/test_distributed.py", "-k", "serial_engine and 2")
PRIVACY = ("tests/method/test_privacy.py",)
DISCRETE = ("tests/method/test_discrete.py",)
ROBUST = ("tests/method/test_robust.py",)
SERVERS = ("tests/federation/test_servers.py", "-k", "nest or bytes or absent or lost or chances or edges")
FACTORS = ("tests/federation/test_factors.py", "-k", "products or weights")
MIXED_RANKS = ("tests/federation/test_mixed_ranks.py", "-k", "products")
ASYNCHRONOUS = ("tests/execution/test_asynchronous.py", "-m", "not slow")
MEMORY = ("tests/execution/test_asynchronous_memory.py", "-m", "not slow")
SECURE = ("tests/execution/test_secure.py", "tests/sites/test_weighing.py", "tests/sites/test_jury.py")
CLOCK_RANKS = ("tests/execution/test_asynchronous_distributed.py", "-m", "not slow")
TRACE = ("tests/execution/test_trace.py", "-m", "not slow")
NOWAIT = ("tests/sites/test_deploy_asynchronous.py", "-m", "not slow")
EDGES = ("tests/sites/test_edges.py", "-m", "not slow")
TIERS = ("tests/sites/test_edge_tiers.py",)
SUMS_BELOW = ("tests/sites/test_edges_secure.py", "-m", "not slow")
STANDING = ("tests/papers/test_arena_table.py",)
WIRE = ("tests/execution/test_wire.py", "-k", "faults_running or damaged")


class Edit(NamedTuple):
    file: str  # under src/fedconcord
    old: str  # occurs once
    new: str


class Mutation(NamedTuple):
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]  # arguments of pytest: what should notice it


def asynchronous(file: str, old: str, new: str) -> Mutation:
    return Mutation((Edit(file, old, new),), ASYNCHRONOUS)


def servers(file: str, old: str, new: str) -> Mutation:
    return Mutation((Edit(file, old, new),), SERVERS)


def remembering(file: str, old: str, new: str) -> Mutation:
    return Mutation((Edit(file, old, new),), MEMORY)


def secure(file: str, old: str, new: str) -> Mutation:
    return Mutation((Edit(file, old, new),), SECURE)


def factors(file: str, old: str, new: str) -> Mutation:
    return Mutation((Edit(file, old, new),), FACTORS)


def scaffold(*edits: tuple[str, str]) -> Mutation:
    return Mutation(
        tuple(Edit("method/algorithms/scaffold.py", *edit) for edit in edits), (FIXED, CHECK, "-k", "scaffold or sums")
    )


def feddyn(old: str, new: str) -> Mutation:
    return Mutation((Edit("method/algorithms/feddyn.py", old, new),), (FIXED, "-k", "feddyn or sums or identities"))


def private(old: str, new: str) -> Mutation:
    return Mutation((Edit("method/wrappers/privacy.py", old, new),), PRIVACY)


def grid(old: str, new: str) -> Mutation:
    return Mutation((Edit("method/contract/grid.py", old, new),), (*PRIVACY, *DISCRETE))


def steps(file: str, old: str, new: str) -> Mutation:
    return Mutation((Edit(f"method/{file}.py", old, new),), ("tests/method/test_sample_privacy.py",))


def trees(old: str, new: str) -> Mutation:
    return Mutation((Edit("method/step/noise.py", old, new),), ("tests/method/test_tree_privacy.py",))


def persons(old: str, new: str) -> Mutation:
    file = "federation/objectives/persons.py"
    return Mutation((Edit(file, old, new),), ("tests/method/test_person_privacy.py",))


def adaptive(old: str, new: str) -> Mutation:
    return Mutation((Edit("method/wrappers/privacy.py", old, new),), ("tests/method/test_adaptive_clip.py",))


def own(file: str, old: str, new: str) -> Mutation:
    return Mutation((Edit(f"method/{file}", old, new),), ("tests/method/test_personal.py", "-k", "equations"))


def prototypes(file: str, old: str, new: str) -> Mutation:
    return Mutation((Edit(file, old, new),), ("tests/method/test_prototypes.py",))


def fednova(*edits: tuple[str, str]) -> Mutation:
    return Mutation(
        tuple(Edit("method/algorithms/fednova.py", *e) for e in edits),
        (CHECK, FIXED, "-k", "fednova-origin or identities"),
    )


def fedadmm(old: str, new: str) -> Mutation:
    return Mutation((Edit("method/algorithms/fedadmm.py", old, new),), (CHECK, FIXED, "-k", "fedadmm"))


def server(*edits: tuple[str, str]) -> Mutation:
    return Mutation(
        tuple(Edit("method/wrappers/server.py", *e) for e in edits), ("tests/method/test_extrapolation.py",)
    )


def untuned(file: str, old: str, new: str) -> Mutation:
    return Mutation((Edit(file, old, new),), ("tests/method/test_auto.py",))


MUTATIONS: dict[str, Mutation] = {
    "operations: files that were added are not seen": Mutation(
        (Edit("../fedconcord_flower/signing.py", "[name for name in now if name not in then]", "[]"),),
        ("tests/sites/test_signing.py",),
    ),
    "operations: anybody vouches for a site's next key": Mutation(
        (Edit("../fedconcord_flower/rotation.py", "        present.verify(", "        coming and (lambda *_: None)("),),
        ("tests/sites/test_rotation.py",),
    ),
    "operations: the door is open to all": Mutation(
        (
            Edit(
                "../fedconcord_flower/door.py",
                "return any(address in network for",
                "return True or any(address in network for",
            ),
        ),
        ("tests/sites/test_rotation.py",),
    ),
    "fedex: residue turned the wrong way": factors(
        "method/contract/pairs.py", "(product.mT if self.fan_in_fan_out else product)", "product.mT"
    ),
    "fedex: weights taken to sum to 1": factors(
        "method/wrappers/factors.py", "torch.cat([1 - senders.w.sum(0, keepdim=True)", "torch.cat([0 * senders.w[:1]"
    ),
    "fedex: clients train without what was added": factors(
        "method/step/assignment.py", "{name: of(down).flatten()}", "{name: 0 * of(down).flatten()}"
    ),
    "flora: clients taken to begin with all ranks": Mutation(
        (Edit("method/wrappers/factors.py", "_within(parts, server.x, senders.id)", "server.x"),), MIXED_RANKS
    ),
    "scaffold: sign flipped": scaffold(("Constant(down.c - row.c)", "Constant(row.c - down.c)")),
    "scaffold: control variates never stored": scaffold(("Row(c)\n", "row\n"), ("server.c + total.c", "server.c")),
    "scaffold: c_i starts at the model's weights": scaffold(
        ("init_client=lambda x: Row(torch.zeros_like(x))", "init_client=lambda x: Row(x)")
    ),
    "scaffold: 1/N forgotten": scaffold(("sender.p * up.c", "up.c")),
    "scaffold: mean over the cohort, not over all": scaffold(("sender.p * up.c", "sender.w * up.c")),
    "scaffold: full c_i sent, not its change": scaffold(("c - row.c), Row(c)", "c), Row(c)")),
    "scaffold: K of client 0 for all": scaffold(
        ("(done.normaliser * client.lr)", "(done.normaliser.reshape(-1)[0] * client.lr)")
    ),
    "scaffold: divided by the next step size": Mutation(
        (
            Edit(
                "method/step/assignment.py",
                "lr=orders[0].lr,",
                "lr=orders[0].lr * 0.998,",
            ),
        ),
        (CHECK, "-k", "plan"),
    ),
    "last client's change only": Mutation(
        (
            Edit("method/step/compiled/formulas.py", "there(leaf).sum(0)", "there(leaf)[-1]"),
            Edit("method/contract/trees.py", "tree_map(torch.add, total, tree)", "tree"),
        ),
        (FIXED, "-k", "sums or identities"),
    ),
    "feddyn: sign flipped": feddyn("Constant(penalty * row.h)", "Constant(-penalty * row.h)"),
    "feddyn: half of the penalty missing": feddyn(
        "Constant(penalty * row.h), Pull(penalty, down.x)", "Constant(penalty * row.h)"
    ),
    "feddyn: offset from participants only": feddyn("sender.p * move)", "sender.w * move)"),
    "fednova: tau_eff cancelled": fednova(("a=sender.w * up.a,", "a=sender.w / up.a,"), ("sums.a if", "1 / sums.a if")),
    "fednova: tau_eff left out": fednova(
        ('effective = sums.a if tau_eff == "a" else sums.tau', "effective = torch.ones_like(sums.a)")
    ),
    "fednova: models averaged, not moves": fednova(
        ("Message(done.x - x,", "Message(done.x,"),
        ("Server(server.x + server_lr * effective * sums.move)", "Server(effective * sums.move)"),
    ),
    "fednova: no momentum in a_i": Mutation(
        (Edit("method/contract/pieces.py", "return self._replace(buffer=zero)", "return None"),),
        (FIXED, "-k", "normaliser"),
    ),
    "fedadmm: one dual for all clients": fedadmm(
        "y = row.y + weight * (done.x - x)",
        "y = (row.y + weight * (done.x - x)).reshape(-1, x.shape[-1]).mean(0).expand_as(row.y)",
    ),
    "fedadmm: server's model taken for the client's": fedadmm(
        "before = row.w if isinstance(row.w, Tensor) else x", "before = x"
    ),
    "fedadmm: duals of the last rho taken for the new one's": Mutation(
        (
            Edit(
                "method/algorithms/fedadmm.py",
                "sent = row.y * (weight / row.rho) if isinstance(row.rho, Tensor) else row.y",
                "sent = row.y",
            ),
        ),
        (FIXED, "-k", "rho_that_rises"),
    ),
    "fedprox: pushes away": Mutation(
        (Edit("method/algorithms/fedavg.py", "Pull(mu, x)", "Pull(-mu, x)"),),
        (FIXED, "-k", "identities or solver"),
    ),
    "apfl: the own part is trained without the mixture": own(
        "contract/nested.py", "at.gradient(torch.addcmul(at.x, apart, self.share))", "at.gradient(self.v.clone())"
    ),
    "apfl: the share moves at every step": own("contract/nested.py", "if at.k == 0 and self.rate", "if self.rate"),
    "proto: means of clients' means": prototypes(
        "method/wrappers/terms.py", "Prototyped(up, sums)", "Prototyped(up, sums / sums[..., -1:].clamp(min=1))"
    ),
    "proto: a class that nobody has is forgotten": prototypes(
        "method/wrappers/terms.py", "count.clamp(min=1), server.classes)", "count.clamp(min=1), 0.0)"
    ),
    "proto: classes without one are drawn to 0": prototypes(
        "method/wrappers/terms.py", "return distance * view.has_prototype[view.targets]", "return distance"
    ),
    "extrapolation: shorter steps too": server((".clamp(min=1.0)", "")),
    "extrapolation: the factor 2 forgotten": server(("square / (2 * (delta", "square / (1 * (delta")),
    "extrapolation: lengths without weights": server(("sender.w * up.square", "up.square / cohort.n")),
    "extrapolation: the answer is the last model": server(("x - last / 2", "x")),
    "extrapolation: the length of the model": server(("(done.x - model_of(down)).square()", "done.x.square()")),
    "servers: the last sum of an edge only": servers(
        "method/contract/round.py", "tree_map(torch.add, sums[server], share) if server in sums else share", "share"
    ),
    "servers: all servers send a total": servers(
        "execution/engines/driver.py", "between(reached, message, through(plan),", "between(reached, message, reached,"
    ),
    "servers: nothing settles between them": servers(
        "execution/engines/driver.py",
        "between(through(plan), () if settling is None else settling,",
        "between(through(plan), (),",
    ),
    "servers: a lost one leaves the chances as they were": servers(
        "federation/participation/participation.py", "inclusion * (1 - away)", "inclusion"
    ),
    "servers: clients below a lost one reply": servers(
        "federation/participation/participation.py", "lost | is_away, expected", "lost, expected"
    ),
    "servers: coins of a tier are those of the next": servers(
        "federation/participation/servers.py", "            first += count\n", ""
    ),
    "asynchronous: clients begin from the newest model": asynchronous(
        "method/contract/round.py",
        "self.down if plan.version is None else self.downs",
        "self.down if True else self.downs",
    ),
    "asynchronous: the control variate is damped too": asynchronous(
        "method/algorithms/scaffold.py", "sender.p * up.c)", "sender.p * up.c * sender.w * cohort.size)"
    ),
    "asynchronous: age counted from 1": asynchronous(
        "federation/participation/schedule.py", "(round - versions)", "(round + 1 - versions)"
    ),
    "asynchronous: draws by the update, not the dispatch": asynchronous(
        "method/contract/round.py", "round=plan.round_of(position)", "round=plan.round"
    ),
    "asynchronous: every model is kept": asynchronous(
        "execution/job/loop.py", "for version in plan.in_flight}", "for version in here}"
    ),
    "asynchronous: chunks of several starts": asynchronous(
        "execution/engines/stacked.py",
        "if starts is None:\n        return [order]",
        "if True:\n        return [order]",
    ),
    "asynchronous: a reply left out undoes the damping": asynchronous(
        "method/contract/weights.py", "w if cut.damping is None else w * cut.damping", "w"
    ),
    "asynchronous: too old counts": asynchronous(
        "federation/participation/events.py",
        '["version"][0] > clock.max_staleness',
        '["version"][0] > clock.max_staleness + 1',
    ),
    "ca2fl: a sum that is damped": remembering(
        "method/algorithms/ca2fl.py", "sender.p * change)", "sender.w * change)"
    ),
    "ca2fl: v from the new h": remembering(
        "method/algorithms/ca2fl.py", "(server.h + total.move)", "(server.h + total.h + total.move)"
    ),
    "fedasync: FedBuff's increment": asynchronous("method/algorithms/fedasync.py", "(end.x, row)", "(end.x - x, row)"),
    "auto: absent clients' duals stay": untuned(
        "method/algorithms/auto.py", "server.dual + torch.where(begun", "server.dual + 0 * torch.where(begun"
    ),
    "auto: own duals measured from the server's model": untuned(
        "method/algorithms/auto.py", "Row(shift.unit * (row.dual - shift.common))", "Row(row.dual)"
    ),
    "auto: duals in units of models": untuned(
        "method/algorithms/auto.py", "Row(row.dual + gain * move)", "Row(row.dual + move)"
    ),
    "auto: rows of round 0 stay moves": untuned("method/algorithms/auto.py", "Row(shift.unit * (", "Row(("),
    "auto: steps that overshoot grow": untuned(
        "method/algorithms/auto.py", "-SHRINK * cosine.clamp(min=0)", "SHRINK * cosine.clamp(min=0)"
    ),
    "auto: no step is too long": untuned("method/step/sizes.py", "self.bound * self.length / whole", "self.opening"),
    "losac: phi scaled by N/S": Mutation(
        (
            Edit(
                "method/algorithms/losac.py",
                "return Corrected(server.x + total.x, server.phi + total.phi)",
                "return Corrected(server.x + total.x, server.phi + cohort.n / cohort.size * total.phi)",
            ),
        ),
        ("tests/whole/test_golden.py", "-k", "losac"),  # phi may be any multiple of its sum without moving the optimum
    ),
    "saga: the table's mean against the method's own constant": Mutation(
        (Edit("method/wrappers/tables.py", "row.table.mean(-2)", "-row.table.mean(-2)"),),
        (ENGINES, "-k", "one_block"),
    ),
    "lesam: descends in place of climbing": Mutation(
        (Edit("method/wrappers/perturbed.py", "row.last - model_of(down)", "model_of(down) - row.last"),),
        ("tests/method/test_published.py", "-k", "fedlesam"),
    ),
    "lesam: the first model stays the last one": Mutation(
        (Edit("method/wrappers/perturbed.py", "model_of(down).expand_as(row.last)", "row.last"),),
        ("tests/method/test_published.py", "-k", "fedlesam"),
    ),
    "checkpoint: server's control variate forgotten": Mutation(
        (
            Edit(
                "execution/job/checkpoint.py",
                "leaves[name] = got.to(leaf.device)",
                'leaves[name] = got.to(leaf.device) if name == "x" else leaf',
            ),
        ),
        (CHECK, RESULTS, "-k", "resume and scaffold"),
    ),
    "checkpoint: clients' rows forgotten": Mutation(
        (
            Edit(
                "execution/job/checkpoint.py",
                "exported(state.store) if",
                "{'ids': torch.zeros(0, dtype=torch.int64)} if",
            ),
        ),
        (CHECK, RESULTS, "-k", "resume and scaffold"),
    ),
    "checkpoint: rows as they lie, in their own order": Mutation(
        (Edit("execution/rows/tensors.py", "raw(leaf.rows[some])", "raw(leaf.rows[: len(some)])"),),
        ("tests/execution/test_state.py", "-k", "as_they_lie"),
    ),
    "rows on disk: a checkpoint's rows written over": Mutation(
        (
            Edit(
                "execution/rows/disk.py",
                "self._stale, self._fresh = [np.zeros(0, np.int64)], PerClient(0)",
                "self._stale = []",
            ),
        ),
        (STATE,),
    ),
    "rows on disk: slots free before the next checkpoint": Mutation(
        (
            Edit(
                "execution/rows/disk.py",
                "        self._stale.append(old_slots)",
                "        self._free = np.append(self._free, old_slots)",
            ),
        ),
        (STATE,),
    ),
    "keys: noise by cohort position": Mutation(
        (Edit("method/step/assignment.py", "one.round, one.id).random", "one.round, orders.index(one)).random"),),
        (CHECK, "-k", "good or fedpaq"),
    ),
    "keys: batches by cohort position": Mutation(
        (
            Edit(
                "method/step/step.py",
                "draw(assignment.algorithm, joint.orders(order), int(n))",
                "draw(assignment.algorithm, joint.orders(order)._replace(id=orders.index(order)), int(n))",
            ),
        ),
        (ENGINES, "-k", "stacked_equals_serial and fedavg"),
    ),
    "keys: two purposes share their draws": Mutation(
        (Edit("method/contract/rng.py", "SAMPLE = 5", "SAMPLE = 6"),), (ENGINES, "-k", "purposes")
    ),
    "tolerance: steps miscounted": Mutation(
        (Edit("method/step/walk.py", ".cpu().numpy()]] = k + 1", ".cpu().numpy()]] = k - 1"),),
        (ENGINES, "-k", "who_stops"),
    ),
    "svrg: no correction": Mutation(
        (Edit("method/step/assignment.py", 'if oracle.kind != "svrg":', "if oracle.kind:"),),
        (ENGINES, "-k", "svrg_of"),
    ),
    "newton: steps up a hill": Mutation(
        (Edit("method/step/assignment.py", "eigenvalues[0] < -1e-6 *", "eigenvalues[0] < -1e6 *"),),
        ("tests/method/test_published.py", "-k", "hill"),
    ),
    "fedprox as fedvra: N over S, rounded": Mutation(
        (Edit("method/algorithms/family.py", "0.0, n / cohort, weights)", "0.0, n // cohort, weights)"),),
        ("tests/method/test_family.py", "-k", "divide"),
    ),
    "late: who waited one step is asked to work": Mutation(
        (Edit("method/contract/round.py", "is None else self.waited > 0", "is None else self.waited > 1"),),
        ("tests/federation/test_unequal.py", "-k", "only_answers"),
    ),
    "batchnorm: running statistics let through": Mutation(
        (Edit("method/contract/flat.py", "        refuse_layers(module)\n", ""),), (ENGINES, "-k", "batchnorm")
    ),
    "peft: factors of GPT-2's layers transposed": Mutation(
        (Edit("interface/trained/adapter.py", "added.mT if fan_in_fan_out else added", "added"),),
        ("tests/interface/test_peft_export.py", "-k", "factors_are"),
    ),
    "silo: statistics of all clients": Mutation(
        (Edit("federation/objectives/judging.py", "problem.x[begin:end], None", "problem.x, None"),),
        ("tests/federation/test_silo.py", "-m", "not slow"),
    ),
    "step schedule: the normaliser takes steps of one size": Mutation(
        (Edit("method/step/walk.py", "size.schedule is None and ", ""),),
        ("tests/method/test_step_schedules.py", "-k", "divides or fednova"),
    ),
    "large linear layers: no gradient of a bias": Mutation(
        (Edit("method/contract/products.py", "rows.sum(0) if of_bias else None", "None"),),
        ("tests/federation/test_large_linear.py",),
    ),
    "large linear layers: of models that are judged alone": Mutation(
        (
            Edit(
                "federation/objectives/supervised.py",
                "torch.enable_grad(), by_product(self.forward.work(inputs)):",
                "torch.enable_grad():",
            ),
        ),
        ("tests/federation/test_large_linear.py",),
    ),
    "own step: the method's corrections left out": Mutation(
        (Edit("method/wrappers/code.py", "            visit.correct()\n", ""),),
        ("tests/method/test_own_code.py", "-k", "step_of_ones_own"),
    ),
    "own step: gradients add up from step to step": Mutation(
        (Edit("method/wrappers/code.py", "            model.zero_grad()\n", ""),),
        ("tests/method/test_own_code.py", "-k", "step_of_ones_own"),
    ),
    "dropout: one mask for all steps": Mutation(
        (Edit("federation/layers.py", "numbers(streams[:, 0], step, samples)", "numbers(streams[:, 0], 0, samples)"),),
        ("tests/federation/test_dropout.py", "-k", "words_say or same_masks"),
    ),
    "dropout: one mask for all rounds": Mutation(
        (Edit("method/step/assignment.py", "rng.Purpose.MASK, one.round, one.id", "rng.Purpose.MASK, 0, one.id"),),
        ("tests/federation/test_dropout.py", "-k", "words_say"),
    ),
    "dropout: what stays is not scaled up": Mutation(
        (Edit("federation/layers.py", "stays.to(x.dtype).div_(1.0 - self.p)", "stays"),),
        ("tests/federation/test_dropout.py", "-k", "words_say or mean"),
    ),
    "dropout: the final model drops too": Mutation(
        (
            Edit(
                "federation/layers.py",
                "            self.in_training, self.keys, self.weights = False, None, None\n",
                "            pass\n",
            ),
        ),
        ("tests/federation/test_dropout.py", "-k", "judging or agree"),
    ),
    "batch norm: the mean of batches' variances": Mutation(
        (
            Edit("federation/layers.py", "+ wide.square().sum(axes)", "+ wide.var(axes, correction=0) * len(x)"),
            Edit("federation/layers.py", "(self.second - self.count * mean.square())", "self.second"),
        ),
        ("tests/federation/test_batchnorm.py", "-k", "pooled_ones"),
    ),
    "batch norm: the biased variance is kept": Mutation(
        (Edit("federation/layers.py", "/ max(self.count - 1, 1)", "/ self.count"),),
        ("tests/federation/test_batchnorm.py", "-k", "pooled_ones"),
    ),
    "batch norm: what fills a batch up is in its mean": Mutation(
        (Edit("federation/layers.py", "if of.weights is None and len(x) > 1:", "if len(x) > 1:"),),
        ("tests/federation/test_batchnorm.py", "-k", "padding or engines_agree"),
    ),
    "batch norm: all layers in one pass of several batches": Mutation(
        (Edit("federation/layers.py", "is_whole=len(batches) == 1", "is_whole=True"),),
        ("tests/federation/test_batchnorm.py", "-k", "pooled_ones"),
    ),
    "batch norm: judged by the batch": Mutation(
        (Edit("federation/layers.py", "if of is None or not of.in_training:", "if of is None:"),),
        ("tests/federation/test_batchnorm.py", "-k", "judged"),
    ),
    "wire: a row moves though its reply was lost": Mutation(
        (Edit("execution/messages/client.py", 'if frame.fields["counted"] == [pending, fingerprint]:', "if True:"),),
        WIRE,
    ),
    "wire: clients are told before the server has put it down": Mutation(
        (
            Edit(
                "execution/messages/store.py",
                "        return self.run(decide, plan.seed)\n",
                "        def told(half):\n"
                "            made = decide(half)\n"
                "            if made.message is not None:\n"
                "                half.ledger.owe(plan.round, made.message, made.plan.ids.tolist())\n"
                "                half.settle(plan.round)\n"
                "            return made\n\n"
                "        return self.run(told, plan.seed)\n",
            ),
        ),
        WIRE,
    ),
    "wire: orders of an earlier model have the newest": Mutation(
        (Edit("execution/messages/server.py", "phase.downs.get(versions[k], broadcast)", "broadcast"),),
        ("tests/execution/test_asynchronous_wire.py", "-k", "frames"),
    ),
    "edges: the others' totals stay as they are when one is lost": Mutation(
        (
            Edit(
                "../fedconcord_sites/edges.py",
                "for _, total in totals] if len(replies) == count else None",
                "for _, total in totals]",
            ),
        ),
        EDGES,
    ),
    "edges: a total of replies that the root does not mean": Mutation(
        (
            Edit(
                "../fedconcord_sites/edge.py",
                "(frame.method, round, mark):",
                '(frame.method, round, reply.fields.get("fingerprint", 0)):',
            ),
        ),
        EDGES,
    ),
    "edges: a site is blamed for what its edge lost": Mutation(
        (Edit("../fedconcord_sites/edge.py", "wrong[site] = None  # the edge", 'wrong[site] = "lost"  # the edge'),),
        EDGES,
    ),
    "edges: one total of those below": Mutation(
        (
            Edit(
                "../fedconcord_sites/edge.py", "[*shares, *came.edges.values()]", "[*shares, *came.edges.values()][:1]"
            ),
        ),
        TIERS,
    ),
    "edges: who adds up nothing of a lost edge says so to nobody": Mutation(
        (
            Edit(
                "../fedconcord_sites/edge.py",
                "        for edge in edges:\n            total = came.edges.get(edge, {})",
                "        for edge in came.edges:\n            total = came.edges.get(edge, {})",
            ),
        ),
        TIERS,
    ),
    "edges: tiers are counted from the sites": Mutation(
        (Edit("../fedconcord_sites/edges.py", "row[len(row) - len(way) :] = way", "row[: len(way)] = way"),),
        TIERS,
    ),
    "sums below edges: weights of those below alone": Mutation(
        (
            Edit(
                "execution/messages/terms.py",
                "return clients if self.homes is None else range(len(self.homes))",
                "return clients",
            ),
        ),
        SUMS_BELOW,
    ),
    "sums below edges: what an edge leaves out goes into the model": Mutation(
        (
            Edit(
                "execution/messages/secure.py", "if np.abs(whole).max(initial=0) > len(senders)", "if 0 > len(senders)"
            ),
        ),
        SUMS_BELOW,
    ),
    "sums below edges: with whom the server says": Mutation(
        (Edit("execution/messages/member.py", "self.terms.homes[i] != self.terms.homes[self.id]", "i < 0"),),
        SUMS_BELOW,
    ),
    "sums below edges: others in another run of the job": Mutation(
        (Edit("../fedconcord_sites/gate.py", 'line.get("group", group) != group', "False"),),
        SUMS_BELOW,
    ),
    "arena: rows of other seeds and trials stand beside": Mutation(
        (
            Edit(
                "../fedconcord_papers/arena/kept.py",
                "if is_same and (table.budget, table.seeds) == (spec.budget, tuple(spec.seeds)) else None",
                "if is_same else None",
            ),
        ),
        STANDING,
    ),
    "arena: ties are wins over a control": Mutation(
        (Edit("../fedconcord_papers/arena/standing.py", "sum(a < b for", "sum(a <= b for"),),
        STANDING,
    ),
    "sites: a reply counts by the update that it is in": Mutation(
        (Edit("execution/messages/server.py", "(plan.round_of(k), self._replies[i].fingerprint)", "(plan.round, 0)"),),
        NOWAIT,
    ),
    "sites: too old counts": Mutation(
        (
            Edit(
                "../fedconcord_sites/asynchronous.py",
                "update - version > oldest",
                "update - version > oldest + 1",
            ),
        ),
        NOWAIT,
    ),
    "sites: a trace of what a killed server saw alone": Mutation(
        (
            Edit(
                "../fedconcord_sites/asynchronous.py",
                "self.trace.cut(requests.plan.round)",
                "pass",
            ),
        ),
        NOWAIT,
    ),
    "processes: each counts who joins without rounds": Mutation(
        (Edit("execution/engines/base.py", "newcomers if team.rank == 0 else 0", "newcomers"),), CLOCK_RANKS
    ),
    "processes: the group outlives its end": Mutation(
        (Edit("execution/engines/distributed.py", 'import_module("torch.distributed.nn.functional")', "pass"),),
        CLOCK_RANKS,
    ),
    "trace: draws by the version": Mutation(
        (Edit("execution/run/trace.py", "client, wave, version, start /", "client, version, version, start /"),), TRACE
    ),
    "trace: what a wire lost is counted": Mutation(
        (Edit("execution/job/loop.py", 'dict.fromkeys(outcome.missing, "lost")', "{}"),), TRACE
    ),
    "wire: a damaged message is taken": Mutation(
        (
            Edit(
                "execution/messages/codec.py",
                "if zlib.crc32(data[HEAD:], zlib.crc32(data[4:8])) != check:",
                "if False:",
            ),
        ),
        WIRE,
    ),
    "processes: one without clients counts": Mutation(
        (Edit("execution/engines/stacked.py", "tree_map(torch.zeros_like, computed.total)", "computed.total"),), RANKS
    ),
    "robust: contributions with their weights": Mutation(
        (Edit("method/wrappers/robust.py", "sender._replace(w=torch.ones_like(sender.w))", "sender"),), ROBUST
    ),
    "robust: the centre never moves": Mutation(
        (Edit("method/wrappers/robust.py", "(1 - momentum) * aggregate)", "0 * aggregate)"),), ROBUST
    ),
    "refused: the others keep their weights": Mutation(
        (
            Edit(
                "method/contract/weights.py",
                "cohort(kind, cut.p[comes], times[comes], expected[comes])",
                "cut.w[comes]",
            ),
        ),
        ROBUST,
    ),
    "refused: on the wire its row counts": Mutation(
        (
            Edit(
                "execution/messages/server.py",
                "enumerate(zip(plan.ids.tolist(), plan.heard, strict=True)):\n            self.ledger",
                "enumerate(zip(self._replies, [True] * 99, strict=False)):\n            self.ledger",
            ),
        ),
        ROBUST,
    ),
    "processes: the prologue asks each one's clients": Mutation(
        (Edit("execution/engines/base.py", "total, (bytes_sent, evaluations) = self.team", "_ = self.team"),), RANKS
    ),
    "compiled steps: the anchor's pull without eta": Mutation(
        (Edit("method/step/compiled/network.py", "eta * terms.prox[s]", "terms.prox[s]"),),
        ("tests/method/test_compiled.py", "-k", "fedprox or feddyn"),
    ),
    "formulas: rows are written before others are read from them": Mutation(
        (
            Edit(
                "method/step/compiled/formulas.py",
                "others: dict[str, Tensor] = there(rest)",
                "_make(pairs); pairs = []; others = there(rest)",
            ),
        ),
        ("tests/method/test_formulas.py", "-k", "rows"),
    ),
    "formulas: messages that are not finite pass": Mutation(
        (
            Edit(
                "method/step/compiled/formulas.py",
                "sums.isfinite().all(0) if len(sums)",
                "sums.isfinite().any(0) if len(sums)",
            ),
        ),
        ("tests/method/test_formulas.py", "-k", "sums"),
    ),
    "convolutions: what rows of opposite points share has one sign": Mutation(
        (Edit("federation/objectives/tiles.py", "self.scaled(-by, second, first)", "self.scaled(by, second, first)"),),
        ("tests/federation/test_winograd.py", "-k", "passes_are"),
    ),
    "convolutions: slopes go back by weights that are not turned round": Mutation(
        (Edit("federation/objectives/tiles.py", "[row[::-1] for row in G]", "G"),),
        ("tests/federation/test_winograd.py", "-k", "passes_are or models"),
    ),
    "convolutions: threads share out channels that overlap": Mutation(
        (Edit("federation/objectives/winograd.py", "bounds[:-1], bounds[1:]", "[0] * threads, bounds[1:]"),),
        ("tests/federation/test_winograd.py", "-k", "threads"),
    ),
    "compiled steps: a number that two parts of a row share is left out": Mutation(
        (Edit("method/step/compiled/blocks.py", 'icmp_unsigned(">=", lanes', 'icmp_unsigned(">", lanes'),),
        ("tests/method/test_compiled.py", "-k", "products"),
    ),
    "compiled steps: a mixture's gradient counts whole for the model below it": Mutation(
        (Edit("method/step/compiled/network.py", "factor *= share[0]", "pass"),),
        ("tests/method/test_compiled.py", "-k", "further"),
    ),
    "compiled steps: a second model is not pulled": Mutation(
        (Edit("method/step/compiled/moves.py", "return Mine(x, -eta * pull", "return Mine(x, 0 * pull"),),
        ("tests/method/test_compiled.py", "-k", "further"),
    ),
    "factors: R starts at singular values that the scale counts twice": Mutation(
        (Edit("federation/adapters.py", "torch.diag(s[:rank] / scale)", "torch.diag(s[:rank])"),),
        ("tests/federation/test_adapters.py", "-k", "fed_sb"),
    ),
    "compiled steps: AdamW's moments stand uncorrected": Mutation(
        (Edit("method/step/compiled/moves.py", "        all.t[s, 0] += 1\n", ""),),
        ("tests/method/test_compiled.py", "-k", "optimisers"),
    ),
    "shared moments: their mean is a sum": Mutation(
        (Edit("method/wrappers/optimisers.py", "new / w.clamp(min=torch.finfo(w.dtype).tiny)", "2 * new"),),
        ("tests/method/test_optimisers.py", "-k", "equations"),
    ),
    "FedAdamW: the second moment is corrected by the round's steps": Mutation(
        (Edit("method/contract/optimisers.py", "(self.t, all_steps)", "(self.t, self.t)"),),
        ("tests/method/test_optimisers.py", "-k", "equations"),
    ),
    "FedMuon: momenta are corrected by the mean of a round's clients": Mutation(
        (Edit("method/wrappers/optimisers.py", "sender.p if is_corrected and k == 0 else sender.w", "sender.w"),),
        ("tests/method/test_optimisers.py", "-k", "equations"),
    ),
    "FedMuon: the direction counts clients by their steps": Mutation(
        (Edit("method/wrappers/optimisers.py", "(done.steps.clamp(min=1) * client.lr)", "(2 * client.lr)"),),
        ("tests/method/test_optimisers.py", "-k", "equations"),
    ),
    "a pull by its halves, which rounding leaves apart": Mutation(
        (
            Edit(
                "method/contract/pieces.py",
                "v.add_(away, alpha=self.rho)",
                "v.add_(at.x, alpha=self.rho).sub_(self.anchor, alpha=self.rho)",
            ),
        ),
        ("tests/method/test_compiled.py", "-k", "without_a_gradient"),
    ),
    "svrg: its mean comes after the clip": Mutation(
        (Edit("method/step/order.py", "looks = solver.clip is not None or any(", "looks = any("),),
        ("tests/method/test_reference.py",),
    ),
    "svrg: its mean comes after the moments": Mutation(
        (Edit("method/step/order.py", "piece.traits.place == Place.MEASURE for", "False for"),),
        ("tests/method/test_reference.py",),
    ),
    "muon: a factor of a long matrix is left out": Mutation(
        (Edit("method/contract/optimisers.py", "way = products(factor, way)", "way = factor"),),
        ("tests/method/test_optimisers.py", "-k", "newton_schulz"),
    ),
    "fednova: the sum of unbiased weights counts twice": Mutation(
        (Edit("method/algorithms/fednova.py", 'effective / w if weights == "unbiased" else effective', "effective"),),
        ("tests/method/test_family.py", "-k", "equal_steps"),
    ),
    "fedvra: everybody's a is the first client's": Mutation(
        (Edit("method/algorithms/fedvra.py", "_of(a, sender.id, sender.p)", "_of(a, 0 * sender.id, sender.p)"),),
        ("tests/method/test_family.py", "-k", "every_parameter"),
    ),
    "compiled steps: an optimiser leaves the pull out": Mutation(
        (Edit("method/step/compiled/moves.py", "range(size if mine.rho != 0 else 0)", "range(0)"),),
        ("tests/method/test_compiled.py", "-k", "optimisers"),
    ),
    "compiled steps: a short batch weighs as a whole one": Mutation(
        (
            Edit(
                "method/step/compiled/network.py",
                "own.share[B] = 1 / draw.samples.shape[2] if even else draw.weight[s, k, b]",
                "own.share[B] = 1 / draw.samples.shape[2]",
            ),
        ),
        ("tests/method/test_compiled.py", "-k", "method"),
    ),
    "tune: judged by the test set": Mutation(
        (Edit("study/search/scores.py", 'f"validation_{name}"', 'f"test_{name}"'),),
        (TUNING, "-k", "digits"),
    ),
    "tune: a trial that diverged may win": Mutation(
        (Edit("study/search/scores.py", "return one.broken, *first", "return 0, *first"),), (TUNING, "-k", "order")
    ),
    "tune: the same values whatever was found": Mutation(
        (Edit("study/search/search.py", "enumerate(before or [space.start])", "enumerate([space.start])"),),
        (TUNING, "-k", "drawn"),
    ),
    "baselines: all samples in one place, with one client's steps": Mutation(
        (Edit("federation/participation/schedule.py", "theirs.steps.sum()", "theirs.steps.max()"),),
        (BASELINES, "-k", "pooled"),
    ),
    "validation: the loss of a model that diverged is 0": Mutation(
        (
            Edit(
                "federation/objectives/means.py",
                "np.average(values[judged]",
                "np.average(np.nan_to_num(values[judged])",
            ),
        ),
        ("tests/federation/test_clients.py", "-k", "diverged"),
    ),
    "sites weigh with their samples where they count with their tokens": Mutation(
        (Edit("../fedconcord_sites/problem.py", "self.counts[:, 0].astype", "self.samples[:, 0].astype"),),
        ("tests/sites/test_deploy_tokens.py", "-k", "serial and gradients"),
    ),
    "sites: an own model of a reply that never counted": Mutation(
        (Edit("../fedconcord_sites/own.py", "reply == [pending, fingerprint]", "pending >= 0"),),
        ("tests/sites/test_deploy_own.py", "-k", "lost"),
    ),
    "sites: an own model of whatever reply the server names": Mutation(
        (Edit("../fedconcord_sites/own.py", "state is None or last < 0 or reply[0] != last", "state is None"),),
        ("tests/sites/test_deploy_own.py", "-k", "chooses"),
    ),
    "secure sums: of sites that were told two lists of tokens": Mutation(
        (
            Edit(
                "../fedconcord_sites/form.py",
                "samples if sizes == samples else zip(samples, sizes, strict=True)",
                "samples",
            ),
        ),
        ("tests/sites/test_deploy_tokens.py", "-k", "two_lists"),
    ),
    "sites: a model without the statistics of their samples": Mutation(
        (
            Edit(
                "../fedconcord_sites/problem.py",
                "            self.shell.forward.take(x, self.shell.x, self.shell.replaced, measured)\n",
                "",
            ),
        ),
        ("tests/sites/test_deploy_layers.py", "-k", "of_all_samples"),
    ),
    "sites: statistics as often as a server asks": Mutation(
        (
            Edit(
                "../fedconcord_sites/gate.py",
                '(line["kind"], line.get("layer")) == (frame.kind, layer)',
                'line["kind"] == "loss"',
            ),
        ),
        ("tests/sites/test_deploy_layers.py", "-k", "as_often"),
    ),
    "the cost of a job is that of its largest rank": Mutation(
        (
            Edit(
                "execution/job/job.py",
                "round(bytes_of_all(portion, tree, np.arange(n)) / n)",
                "bytes_of_all(None, tree, np.arange(1))",
            ),
        ),
        ("tests/federation/test_mixed_ranks.py", "-k", "cost_of_a_job"),
    ),
    "predictions of tokens: padding has a row": Mutation(
        (Edit("interface/trained/predict.py", 'card.get("pad") is None', "True"),),
        ("tests/interface/test_token_models.py", "-k", "predict_answers"),
    ),
    "a causal model below another head sees tokens ahead": Mutation(
        (Edit("federation/transformers.py", "not (config.is_encoder_decoder or _looks_ahead(body))", "False"),),
        ("tests/federation/test_transformers.py", "-k", "causal"),
    ),
    "tokens: every client's samples count alike": Mutation(
        (
            Edit(
                "federation/objectives/means.py",
                "factor = np.repeat(samples / np.maximum(sizes, 1)",
                "factor = np.repeat(samples / sizes.mean()",
            ),
        ),
        ("tests/federation/test_tokens.py", "-k", "mean_over_its_tokens"),
    ),
    "diagnosis: drift from the start and not from the mean": Mutation(
        (Edit("../fedconcord_diagnosis/vectors.py", "away = lengths(moves - mean)", "away = lengths(moves)"),),
        (DIAGNOSIS, "-k", "drift"),
    ),
    "diagnosis: chi-square over the other weights": Mutation(
        (Edit("insight/methods/surrogate.py", "(p - w) ** 2 / w)", "(p - w) ** 2 / p)"),), (DIAGNOSIS, "-k", "chi")
    ),
    "processes: rows gathered out of order": Mutation(
        (Edit("execution/engines/distributed.py", 'every["ids"].argsort()', 'torch.arange(len(every["ids"]))'),), RANKS
    ),
    "privacy: each tensor clipped by itself": grid(
        "torch.stack(squares).sum(0).sqrt()", "torch.stack(squares).amax(0).sqrt()"
    ),
    "privacy: rounding makes no message longer": grid(" - math.sqrt(count) / 2", ""),
    "privacy: messages of another step": grid("(self.noise * self.clip / SIGMA)", "(self.clip / SIGMA)"),
    "privacy of samples: gradients clipped together": steps(
        "step/noise", "dim=1, dtype=torch.float64)", "dtype=torch.float64)[None]"
    ),
    "privacy of samples: divided by who came": steps(
        "step/noise", "rule.probability * int(of.counts[place])", "max(1, len(samples))"
    ),
    "privacy of samples: the first step's noise in all": steps("step/noise", "order.id, step)", "order.id, 0)"),
    "privacy of samples: no room for rounding": steps("contract/grid", " - math.sqrt(d)) / (1 + margin)", ")"),
    "privacy of samples: a sample's masks are its client's": steps(
        "step/noise", "mine.masks + torch.arange(samples, device=mine.masks.device)[:, None]", "mine.masks"
    ),
    "privacy of trees: noise by step": trees("noise - sum(cover.pop(last)", "noise - 0 * sum(cover.pop(last)"),
    "privacy of trees: a pass is one node": trees("sum(1 + (n - 1).bit_length() for", "sum(1 for"),
    "privacy of trees: the last step has no root": trees(
        "rule.leaves == t or order.steps == step + 1", "t == rule.leaves"
    ),
    "privacy of trees: a pass goes on in the next one's tree": trees("if not is_root:", "if order.steps > step + 1:"),
    "privacy of persons: rows are clipped, and persons accounted": persons(
        "number = numbered(owner, persons)", "number = np.arange(len(owner))"
    ),
    "privacy of persons: a person is its first row": persons(
        "+ torch.arange(count, device=persons.device)", "+ torch.zeros(count, dtype=torch.int64)"
    ),
    "privacy of both: a client's epsilon is of the samples' noise": Mutation(
        (Edit("study/settings/privacy.py", "spending(privacy.client_noise, ", "spending(privacy.noise, "),),
        ("tests/method/test_both_units.py",),
    ),
    "privacy of samples: exact figures leave a site": Mutation(
        (Edit("../fedconcord_sites/site.py", "raise FrameError(UNJUDGED)", "pass"),),
        ("tests/sites/test_deploy_private.py", "-k", "curious"),
    ),
    "privacy: noise of another law": Mutation(
        (Edit("method/contract/discrete.py", "(1 << 2 * bits + 1)", "(1 << 2 * bits)"),), DISCRETE
    ),
    "privacy: zero twice as often": Mutation(
        (Edit("method/contract/discrete.py", "stays &= ~(is_negative & (size == 0))", "pass"),), DISCRETE
    ),
    "privacy: points above the curve are kept": Mutation(
        (Edit("method/contract/discrete.py", "stays[place] &= _is_below", "stays[place] |= _is_below"),), DISCRETE
    ),
    "privacy: masks round whole numbers": Mutation(
        (Edit("execution/messages/terms.py", "below + (draws >= 1 - (scaled - below))", "np.floor(scaled + draws)"),),
        DISCRETE,
    ),
    "privacy: weights by who came": private("(1 / cohort, 1 / n, math.nan)", "(float(of.w.mean()), 1 / n, math.nan)"),
    "privacy: a decoded message is not clipped again": private(
        'bounded = clipped(up, clip) if kind == "central" else up', "bounded = up"
    ),
    "privacy: a round of nobody without noise": private('unheard if kind == "central" else None', "None"),
    "privacy: two vectors share their noise": private("drawn[..., k : k + d] for", "drawn[..., :d] for"),
    "privacy: amplification for any sampling": Mutation(
        (Edit("study/settings/privacy.py", " if sampler.poisson else None", ""),), PRIVACY
    ),
    "privacy: local noise accounted as central": Mutation(
        (Edit("execution/job/accountant.py", "Spending(noise / 2, 1.0, delta)", "Spending(noise, 1.0, delta)"),),
        PRIVACY,
    ),
    "adaptive clip: bits that cost as much as messages": adaptive("(2 * bits) ** -2", "bits**-2"),
    "adaptive clip: bits for nothing": adaptive("(noise**-2 - (2 * bits) ** -2) ** -0.5", "noise"),
    "adaptive clip: a bit that the server believes": adaptive("up.within.clamp(-0.5, 0.5)", "up.within"),
    "adaptive clip: a broken message has a bit": adaptive(
        "torch.where(norm.isfinite(), (norm", "torch.where(norm == norm, (norm"
    ),
    "adaptive clip: away from the quantile": adaptive("torch.exp(-clip.rate", "torch.exp(clip.rate"),
    "adaptive clip: bits share the messages' noise": adaptive("every[size]", "every[0]"),
    "adaptive clip: a round of nobody keeps the clip": adaptive("moved(server.clip, extra)", "server.clip"),
    "secure sums: a site opens as often as it is asked": secure(
        "execution/messages/member.py", "        self.safe.write(Secret(opened=(frame.round, secret.part)))\n", ""
    ),
    "secure sums: keys of anybody": secure(
        "execution/messages/member.py",
        "if not self._has_signed(i, cards[i][2 * KEY :], card(self.run, frame.round, secret.part, i, cards[i])):",
        "if False:",
    ),
    "secure sums: opens whoever has signed": secure(
        "execution/messages/member.py", "if agreeing < needed:", "if False:"
    ),
    "secure sums: a cohort that the server chose": secure(
        "execution/messages/member.py",
        "if strange := sorted({*ids} - {*self.plans(frame.round, ids).ids.tolist()}):",
        "if strange := []:",
    ),
    "secure sums: a list of sizes for each client": secure(
        "execution/messages/member.py", "list(ids), keys, *terms)", "list(ids), keys, *terms[:-1])"
    ),
    "secure sums: signs as many lists as it is asked for": secure(
        "execution/messages/member.py", 'self._put(secret, stage="agreed", survivors=ids_heard)', "pass"
    ),
    "secure sums: masks whatever the model": secure("execution/messages/member.py", "models, *content)", "models)"),
    "secure sums: figures whatever the model": secure(
        "execution/messages/member.py", '("down/", "answer/", "x/")', '("down/", "answer/")'
    ),
    "secure sums: an evaluation without end": Mutation(
        (
            Edit(
                "../fedconcord_sites/site.py", "        self.gate.admit_model(frame, opened.models, len(layers))\n", ""
            ),
        ),
        SECURE,
    ),
    "secure sums: figures that are rounded at random": Mutation(
        (
            Edit(
                "../fedconcord_sites/jury.py",
                "np.round(values / member.terms.scale.step) * member.terms.scale.step",
                "values",
            ),
        ),
        SECURE,
    ),
    "secure sums: a judged model of rows that nobody has": Mutation(
        (
            Edit(
                "../fedconcord_sites/problem.py",
                "if total.counts.tolist() != counts[ids].sum(0).tolist():",
                "if False:",
            ),
        ),
        SECURE,
    ),
    "secure sums: a part of a round that is opened again under another name": secure(
        "execution/messages/member.py", "if secret.part != PARTS[frame.kind]:", "if False:"
    ),
    "private sites: orders of a round that the site was drawn for in a message of another": Mutation(
        (
            Edit(
                "../fedconcord_sites/bounds.py",
                "if theirs.round != frame.round if fields is answered else not 0 <= theirs.round < frame.round:",
                "if not 0 <= theirs.round <= frame.round:",
            ),
        ),
        ("tests/sites/test_deploy_private.py", "-k", "drawn_for"),
    ),
    "secure sums: one mask for two contributions": secure(
        "execution/messages/member.py",
        'stage="covered", among=among, shares=shares, cipher=b"", private=b"", seed=b"")',
        "shares=shares)",
    ),
    "secure sums: weights of those who were lost": secure(
        "execution/messages/secure.py", "(1.0 if scaled is None else scaled[k])", "1.0"
    ),
    "secure sums: masks of the lost stay": secure(
        "execution/messages/secure.py", "total = total + masks.pairwise", "masks.pairwise"
    ),
    "secure sums: rounded to the nearest": secure(
        "execution/messages/terms.py", "below + (draws >= 1 - (scaled - below))", "np.rint(scaled)"
    ),
    "secure sums: a pair's masks add": secure(
        "execution/messages/masks.py", "if own_id < other else total - common", "if own_id < other else total + common"
    ),
}

WIDER = (CHECK, FIXED, ENGINES, RESULTS)
QUICK = ("fedadmm: one dual for all clients", "checkpoint: server's control variate forgotten")


class CannotTellError(Exception):
    """The source does not hold the text to replace exactly once, or a test fails without the error too."""


def plant(mutation: Mutation, source: Path, target: Path) -> None:
    """Copy the checkout `source` to `target` with the error in it."""
    shutil.copytree(source, target)
    for file, old, new in mutation.edits:
        path = target / "src" / "fedconcord" / file
        text = path.read_text()
        if text.count(old) != 1:
            raise CannotTellError(f"{file} holds {text.count(old)} times {old!r}")
        path.write_text(text.replace(old, new))


def snapshot(target: Path) -> None:
    """What the tests need of this checkout; it may be edited while we run."""
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests", "docs"):
        shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", target)


def failure(checkout: Path, command: Sequence[str]) -> str | None:
    """Run `python command` on a checkout's package: the first test or trajectory that fails, or None."""
    own = {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=checkout, env=os.environ | own, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$|^(\S+) +\S+ +FAILED$", done.stdout, re.MULTILINE)
    if named is None:
        raise RuntimeError(f"{' '.join(command)} failed, but no test did:\n{done.stdout}{done.stderr}")
    return named.group(1) or named.group(2)


def run_tests(*arguments: str) -> list[str]:
    return ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", *arguments]


def suites(mutation: Mutation) -> list[list[str]]:
    """Commands that may notice it, the most likely first."""
    return [run_tests(*mutation.tests), run_tests(*WIDER), ["-m", "fedconcord.testing.oracles", str(ORACLES)]]


def caught(mutation: Mutation, clean: Path, commands: Sequence[Sequence[str]]) -> str | None:
    """What notices the error, or None.

    Raises:
        CannotTellError: the source has changed, or what fails also fails without the error.
    """
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        plant(mutation, clean, checkout)
        for command in commands:
            found = failure(checkout, command)
            if found is not None:
                if failure(clean, run_tests(found) if "::" in found else command) is not None:
                    raise CannotTellError(f"{found} fails without the error too")
                return found
    return None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="mutations to plant; all if none is given")
    parser.add_argument("--list", action="store_true", help="only show their names")
    args = parser.parse_args(argv)
    unknown = set(args.name) - set(MUTATIONS)
    if unknown:
        parser.error(f"unknown mutation {', '.join(map(repr, sorted(unknown)))}; see --list")
    if args.list:
        print(*MUTATIONS, sep="\n")
        return 0
    survived = unclear = 0
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "clean"
        snapshot(clean)
        for name in args.name or MUTATIONS:
            begin = time.perf_counter()
            try:
                found = caught(MUTATIONS[name], clean, suites(MUTATIONS[name]))
            except CannotTellError as error:
                unclear += 1
                print(f"{name:48s} CANNOT TELL: {error}", flush=True)
                continue
            survived += found is None
            seconds = time.perf_counter() - begin
            print(f"{name:48s} {'SURVIVED' if found is None else f'caught by {found}'}  ({seconds:.0f} s)", flush=True)
    planted = len(args.name or MUTATIONS)
    print(f"{planted - survived - unclear} of {planted} caught, {survived} survived, {unclear} cannot tell")
    return 2 if unclear else 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
