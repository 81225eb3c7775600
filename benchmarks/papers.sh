#!/bin/sh
# The papers' largest tables at their own size on a GPU: A-FedPD's with LeNet (P1) and ResNet-18 (P2), FedVRA's on
# CIFAR-10 (V1), FedNova's Table I (F5). Prepared, not measured: nobody has run it yet. P1 and P2 need CIFAR-100
# (`fedconcord data fetch cifar100`); without it run them by themselves, `fedconcord reproduce afedpd_lenet --paper
# --device cuda --cells cifar10_iid,cifar10_dir1,cifar10_dir01`. Run again after an interruption, it goes on. PYTHON
# names the interpreter, OUT the folder; arguments go to every recipe, as in `papers.sh --dry-run`.
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/../src${PYTHONPATH:+:$PYTHONPATH}"
failed=0
for recipe in afedpd_lenet afedpd_resnet18 fedvra_table3 fednova_table1; do
    "${PYTHON:-python}" -m fedconcord reproduce "$recipe" --paper --device cuda --out "${OUT:-runs/papers}" "$@" || failed=1
done
exit $failed
