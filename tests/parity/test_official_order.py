"""RepMLPNet blocks with several windows: by default the correct result, the authors' by name, in both forms."""

import pytest
import torch

from parity.builders.repmlp import block
from parity.case import as_tensors
from parity.test_parity import VECTORS, error

MIXED = [v for v in VECTORS if v.key == ("repmlpnet", "RepMLPBlock") and "_s_lt_c_" in v.path.stem]


@pytest.mark.skipif(not MIXED, reason="no golden vectors")
@pytest.mark.parametrize("vector", MIXED, ids=lambda v: v.path.stem)
@pytest.mark.parametrize(
    ("order", "trained", "converted"),
    [("window", "output_unmixed", "output_unmixed"), ("official", "output", "output_deploy")],
)
def test_both_orders_in_both_forms(vector, order, trained, converted):
    case, arrays, tolerance = block(vector, order), vector.arrays(), vector.meta["tolerance_max_abs"]
    x = torch.from_numpy(arrays["input"])
    wanted, wanted_converted = (torch.from_numpy(arrays[name]) for name in (trained, converted))
    module = case.loaded(as_tensors(arrays, "state/"))
    with torch.no_grad():
        assert error(case.run(module, x), wanted) <= tolerance
        assert error(case.run(module.reparameterize(), x), wanted) <= tolerance
        deploy = case.loaded_deploy(as_tensors(arrays, "state_deploy/"))
        assert error(case.run(deploy, x), wanted_converted) <= tolerance
    other = arrays["output" if order == "window" else "output_unmixed"]
    assert error(torch.from_numpy(other), wanted) > 100 * tolerance
