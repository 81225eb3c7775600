"""Options: settings that have a short name, as the command and the Python functions take them.

The schema (`settings.settings`, `settings.sections`) states each once. `python docs/generate/option_table.py`
writes `table` from it, which is read without pydantic and torch, and where editors and type checkers find names, types,
defaults and meanings.
"""
