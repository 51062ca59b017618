"""`python -m pretrainkit` is `pretrainkit`."""

from pretrainkit.cli.main import main

if __name__ == "__main__":
    main()
