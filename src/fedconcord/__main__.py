"""`python -m fedconcord` is the command."""

import sys


def command() -> None:
    """The command, for which the current directory is no place of modules: a file there must not stand in for one."""
    if not sys.flags.safe_path:
        sys.path.pop(0)
    from fedconcord.interface.cli import main

    main()


if __name__ == "__main__":
    command()
