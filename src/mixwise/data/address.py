"""Randomness by address: a seed for each (seed, epoch, picture), so that nothing depends on what was drawn before."""

from hashlib import blake2b

_MASK = (1 << 64) - 1


def address(*parts: int) -> int:
    """A well-mixed 63-bit seed for a few whole numbers (splitmix64, chained); equal parts give equal seeds.

    >>> address(0, 1, 2) == address(0, 1, 2), address(0, 1, 2) == address(0, 2, 1)
    (True, False)
    """
    state = len(parts)
    for part in parts:
        state = (state + 0x9E3779B97F4A7C15 + part) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def text_address(seed: int, text: str) -> bytes:
    """A well-mixed key for a text: sorting by it is a shuffle that depends on nothing but seed and text.

    >>> text_address(0, "a.png") == text_address(0, "a.png"), text_address(0, "a.png") == text_address(1, "a.png")
    (True, False)
    """
    return blake2b(f"{seed}/{text}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
