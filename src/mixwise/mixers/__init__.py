"""Token mixers, one file each. Adding one: write the file, add its import line here."""

from mixwise.mixers import pool as pool
from mixwise.mixers import token_mlp as token_mlp
from mixwise.mixers.base import MIXERS, Mixer, keyword_options, mixer_class, register

__all__ = ["MIXERS", "Mixer", "keyword_options", "mixer_class", "register"]
