"""`python -m simreduce`."""

from simreduce.cli import main

if __name__ == "__main__":
    main()
