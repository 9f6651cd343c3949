"""The decode step of torch_decode.py on an XLA device: one program a step, the cache updated in place.

PJRT_DEVICE=INTARSIA python examples/torch_xla_decode.py      # needs torch_xla 2.9: make setup-torch
"""

import os

os.environ.setdefault("PJRT_DEVICE", "INTARSIA")

import torch
import torch_decode
import torch_xla
import torch_xla.debug.metrics as metrics


def main() -> None:
    expected = torch_decode.run(torch_decode.decode, torch.device("cpu"))
    device = torch_xla.device()
    step = torch.compile(torch_decode.decode, backend="openxla", fullgraph=True)
    got = torch_decode.run(step, device).cpu()
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    print(f"openxla on {device}: as eager on the CPU")
    compiled = metrics.metric_data("CompileTime")[0]
    print(
        f"programs compiled in five steps: {compiled}, the step's once, the others put its operands there"
    )


if __name__ == "__main__":
    main()
