"""Models by name: the house and compact models here, one file a paper beside them."""

from mixwise.models import eamlp as eamlp
from mixwise.models import eanet as eanet
from mixwise.models import ff_only as ff_only
from mixwise.models import gmlp as gmlp
from mixwise.models import gmlp_text as gmlp_text
from mixwise.models import metaformer as metaformer
from mixwise.models import mlp_mixer as mlp_mixer
from mixwise.models import pct as pct
from mixwise.models import poolformer as poolformer
from mixwise.models import repmlp_cifar as repmlp_cifar
from mixwise.models import repmlp_resnet as repmlp_resnet
from mixwise.models import repmlpnet as repmlpnet
from mixwise.models import resmlp as resmlp
from mixwise.models import vit as vit
from mixwise.models.registry import create_model, describe, list_models, model_config, presets, register_preset

__all__ = ["create_model", "describe", "list_models", "model_config", "presets", "register_preset"]
