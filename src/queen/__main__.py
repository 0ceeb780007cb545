"""`python -m queen` is the same as `queen`."""

from queen.cli import main

if __name__ == "__main__":
    main()
