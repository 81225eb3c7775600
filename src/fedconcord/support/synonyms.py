"""What others call the things that have a name here: a mistaken word -> the names that it may stand for, in order.

One table for options, settings, values and names of every registry: whichever of the names is known where the word was
written is the one that was meant.
"""

from __future__ import annotations

from collections.abc import Mapping

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    word: tuple(names.split())
    for words, names in {
        "client num_clients n_clients total_clients devices": "clients",
        "fraction fraction_fit participation participants sample_clients clients_per_round": "cohort",
        "round num_rounds n_rounds global_rounds communication_rounds iterations": "rounds",
        "epoch local_epochs num_epochs": "epochs",
        "local_steps num_steps": "steps",
        "batch batchsize bs": "batch_size",
        "learning_rate step_size stepsize eta client_lr local_lr": "lr",
        "wd decay l2": "weight_decay",
        "step_decay": "step_schedule",
        "dataset datasets": "data",
        "split distribution heterogeneity": "partition",
        "net network architecture": "model",
        "algorithm algo strategy": "method methods",
        "random_seed random_state": "seed seeds",
        "gpu": "device cuda",
        "cuda": "device",
        "amp fp16 half": "precision",
        "compression compressor": "upload",
        "aggregator aggregation robust": "aggregate",
        "attack attacker byzantine malicious": "hostile",
        "server_optimizer server_optimiser": "server",
        "output output_dir out_dir": "out",
        "logger wandb tensorboard": "track",
        "workers processes parallel": "jobs",
        "f1 f1_score": "macro_f1",
        "acc": "accuracy",
        "auc roc_auc": "auroc",
        "mse": "rmse",
        "centralised centralized": "pooled",
    }.items()
    for word in words.split()
}
