"""`python -m mixwise` is the command `mixwise`."""

from mixwise.cli import main

if __name__ == "__main__":
    main()
