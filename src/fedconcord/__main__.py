"""`python -m fedconcord` is the command."""

from fedconcord.cli import main

if __name__ == "__main__":
    main()
