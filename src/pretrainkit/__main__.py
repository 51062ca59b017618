"""`python -m pretrainkit` is `pretrainkit`."""

from pretrainkit.cli.start import main

if __name__ == "__main__":
    main()
