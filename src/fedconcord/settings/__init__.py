"""The settings of a job: every key with its meaning, merged from defaults, a file, options and --set, and checked.

A later source wins over an earlier one. Two keys that exclude each other (`local.epochs` and `local.steps`) may not
come from one source; across sources the later one replaces the other.

Names are imported when they are first used, so that a wrong key or value is refused without torch.
"""

from typing import TYPE_CHECKING

from fedconcord.basis.demand import on_demand

if TYPE_CHECKING:
    from fedconcord.settings.job import advise, build, refuse, team_of
    from fedconcord.settings.judging import evaluation, held, judged, looks
    from fedconcord.settings.methods import local_for, read_method, runs, single, with_lr
    from fedconcord.settings.methods import text_of as canonical_text
    from fedconcord.settings.objects import named, objects_of, unchanged, words
    from fedconcord.settings.own import dataset_of, folder_name, kind_of, metrics_note, notes
    from fedconcord.settings.parts import REGISTRIES, part
    from fedconcord.settings.privacy import budget_of, unprotected
    from fedconcord.settings.privacy import note as privacy_note
    from fedconcord.settings.problem import device_of, divided, first_problem, forget_problem, problem_of
    from fedconcord.settings.resolve import as_toml, check_distinct, resolve_compare, resolve_run
    from fedconcord.settings.sections import LocalSettings
    from fedconcord.settings.settings import DEFAULT_MODEL, DEFAULT_PARTITION, RIVALS, Config
    from fedconcord.settings.sources import (
        Source,
        default_text,
        from_file,
        from_nested,
        from_options,
        keys,
        merge,
        prepare,
        searched,
        seed_list,
        shaped,
        toml_value,
        values_text,
    )

__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_PARTITION",
    "REGISTRIES",
    "RIVALS",
    "Config",
    "LocalSettings",
    "Source",
    "advise",
    "as_toml",
    "budget_of",
    "build",
    "canonical_text",
    "check_distinct",
    "dataset_of",
    "default_text",
    "device_of",
    "divided",
    "evaluation",
    "first_problem",
    "folder_name",
    "forget_problem",
    "from_file",
    "from_nested",
    "from_options",
    "held",
    "judged",
    "keys",
    "kind_of",
    "local_for",
    "looks",
    "merge",
    "metrics_note",
    "named",
    "notes",
    "objects_of",
    "part",
    "prepare",
    "privacy_note",
    "problem_of",
    "read_method",
    "refuse",
    "resolve_compare",
    "resolve_run",
    "runs",
    "searched",
    "seed_list",
    "shaped",
    "single",
    "team_of",
    "toml_value default_text keys searched values_text",
    "unchanged",
    "unprotected",
    "values_text",
    "with_lr",
    "words",
]

if not TYPE_CHECKING:  # a type checker would take every misspelt name for something that this function may return
    __getattr__ = on_demand(
        globals(),
        {
            "fedconcord.settings.job": "advise build refuse team_of",
            "fedconcord.settings.judging": "evaluation held judged looks",
            "fedconcord.settings.methods": "local_for read_method runs single with_lr canonical_text=text_of",
            "fedconcord.settings.objects": "named objects_of unchanged words",
            "fedconcord.settings.own": "dataset_of folder_name kind_of metrics_note notes",
            "fedconcord.settings.parts": "REGISTRIES part",
            "fedconcord.settings.privacy": "budget_of unprotected privacy_note=note",
            "fedconcord.settings.problem": "device_of divided first_problem forget_problem problem_of",
            "fedconcord.settings.resolve": "as_toml check_distinct resolve_compare resolve_run",
            "fedconcord.settings.sections": "LocalSettings",
            "fedconcord.settings.settings": "DEFAULT_MODEL DEFAULT_PARTITION RIVALS Config",
            "fedconcord.settings.sources": "Source from_file from_nested from_options merge prepare seed_list shaped "
            "toml_value default_text keys searched values_text",
        },
    )
