"""`python -m mixwise` is the command `mixwise`."""

from mixwise.cli import main

main()
