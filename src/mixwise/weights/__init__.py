"""Models on disk: the native format here, one file for each foreign format."""

from mixwise.weights import bare as bare
from mixwise.weights import eamlp as eamlp
from mixwise.weights import eanet as eanet
from mixwise.weights import ff_only as ff_only
from mixwise.weights import google_mixer as google_mixer
from mixwise.weights import google_vit as google_vit
from mixwise.weights import lucidrains as lucidrains
from mixwise.weights import metaformer as metaformer
from mixwise.weights import pct as pct
from mixwise.weights import poolformer as poolformer
from mixwise.weights import repmlp as repmlp
from mixwise.weights import repmlp_v1 as repmlp_v1
from mixwise.weights import timm_metaformer as timm_metaformer
from mixwise.weights import timm_mlp as timm_mlp
from mixwise.weights import timm_vit as timm_vit
from mixwise.weights.back import BackConversion, convert_back
from mixwise.weights.convert import Conversion, convert, convert_state
from mixwise.weights.mapping import FORMATS, Format, register_format
from mixwise.weights.native import Header, load_file, read_header, save, weights_hash
from mixwise.weights.pretrained import create_model
from mixwise.weights.resolve import BEST, LAST, info, load, resolve

__all__ = [
    "BEST",
    "FORMATS",
    "LAST",
    "BackConversion",
    "Conversion",
    "Format",
    "Header",
    "convert",
    "convert_back",
    "convert_state",
    "create_model",
    "info",
    "load",
    "load_file",
    "read_header",
    "register_format",
    "resolve",
    "save",
    "weights_hash",
]
