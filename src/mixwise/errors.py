"""What mixwise raises: one sentence that says what, where, got, allowed and the nearest match."""

import difflib
import re
from collections.abc import Iterable


class MixwiseError(Exception):
    """Something could not be done; the message is one readable sentence. The command line exits with 1."""

    exit_code = 1


class UsageError(MixwiseError, ValueError):
    """The request itself is wrong (a name, an option, a size). The command line exits with 2."""

    exit_code = 2


def unknown(what: str, got: str, allowed: Iterable[str], where: str = "") -> UsageError:
    """A `UsageError` for a name that does not exist.

    >>> str(unknown("mixer", "pol", ["pool", "linear"]))
    "unknown mixer 'pol' (did you mean 'pool'?); allowed: linear, pool"

    Of more names than a person reads, the nearest are listed.
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(got, names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    place = f" in {where}" if where else ""
    listed = ", ".join(names) if names else "nothing"
    if len(names) > 40:
        nearest = difflib.get_close_matches(got, names, n=8, cutoff=0)
        listed = f"{len(names)} names, the nearest {', '.join(nearest)}"
    return UsageError(f"unknown {what} {got!r}{place}{hint}; allowed: {listed}")


def printable(name: str) -> str:
    """Bytes of a file name that are no UTF-8, and control characters, as escapes: it can be printed and saved.

    >>> printable("caf\\udce9\\n.jpg")
    'caf\\\\xe9\\\\n.jpg'
    """
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)
