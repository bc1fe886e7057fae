"""The command line: one function a verb; each parses, calls one library function, and prints.

Nothing here imports torch before a verb runs, so `mixwise --help` answers at once.
"""

import os
import sys

from mixwise.cli import check as check
from mixwise.cli import data as data
from mixwise.cli import training as training
from mixwise.cli import using as using
from mixwise.cli import weights as weights
from mixwise.cli.shared import WIDE, app, err, escape, out
from mixwise.errors import MixwiseError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; errors become one sentence and an exit code: 2 for usage, 1 for failure."""
    # A name that the terminal or the file behind the pipe cannot hold is written as an escape, as on standard error.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = WIDE
    try:
        app()
    except MixwiseError as error:
        err.print(f"[red]error:[/] {escape(str(error))}", highlight=False)
        raise SystemExit(error.exit_code) from None
    except (OSError, UnicodeDecodeError) as error:
        err.print(f"[red]error:[/] {escape(str(error))}", highlight=False)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        err.print("interrupted", highlight=False)
        raise SystemExit(130) from None
