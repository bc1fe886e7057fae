"""Token mixers, one file each. Adding one: write the file, add its import line here."""

from mixwise.mixers import attention as attention
from mixwise.mixers import external_attention as external_attention
from mixwise.mixers import feature_attention as feature_attention
from mixwise.mixers import feed_forward as feed_forward
from mixwise.mixers import identity as identity
from mixwise.mixers import linear as linear
from mixwise.mixers import multihead_external_attention as multihead_external_attention
from mixwise.mixers import pool as pool
from mixwise.mixers import random as random
from mixwise.mixers import repmlp as repmlp
from mixwise.mixers import separable_conv as separable_conv
from mixwise.mixers import simple_attention as simple_attention
from mixwise.mixers import spatial_gate as spatial_gate
from mixwise.mixers import token_mlp as token_mlp
from mixwise.mixers.base import MIXERS, Mixer, keyword_options, mixer_class, register

__all__ = ["MIXERS", "Mixer", "keyword_options", "mixer_class", "register"]
