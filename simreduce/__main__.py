"""`python -m simreduce`, and the console script."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C exits with status 130, during imports too."""
    try:
        from simreduce.app.cli import main as run  # noqa: PLC0415 - an interrupt of it is caught

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
