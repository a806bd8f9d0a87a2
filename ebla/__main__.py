"""`python -m ebla`: the same as the command `ebla`."""

from ebla.cli import run

run()
