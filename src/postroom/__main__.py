"""`python -m postroom`: the command line."""

from postroom.cli import main

if __name__ == "__main__":
    main()
