"""`python -m barnabas`: the command line."""

from barnabas.cli.main import main

if __name__ == "__main__":
    main()
