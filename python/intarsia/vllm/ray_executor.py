"""vLLM's Ray executor, whose ranks meet at Ray's address of a host: vLLM's own store listens at all.

On CPUs there is more to it. Ray counts CPUs as it counts GPUs, so placement is vLLM's: a CPU for each rank. But it gives an actor
no CPU by number, which is what vLLM's workers ask for. vLLM has no setting for another worker: `_worker` stands where the executor
makes its actors.
"""

from typing import Any, ClassVar

import ray
from vllm.distributed.utils import create_tcp_store
from vllm.utils.network_utils import get_distributed_init_method
from vllm.v1.executor import ray_executor_v2
from vllm.v1.executor.ray_executor_v2 import RayExecutorV2, RayWorkerProc

from intarsia import _environment
from intarsia.processes import addresses
from intarsia.vllm import hosts
from intarsia.vllm.replacing import replace


class XlaRayWorkerProc(RayWorkerProc):
    """A rank in a Ray actor."""

    def create_dist_init_method(self) -> str:
        """Where ranks meet."""
        host = ray.util.get_node_ip_address()
        holder = addresses.listening(host, 0)
        port = holder.getsockname()[1]
        # Kept until the ranks have met at it, as vLLM does.
        self._dist_init_store = create_tcp_store(
            host,
            port,
            holder,
            world_size=self._parallel_config.world_size,
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
        )
        return get_distributed_init_method(host, port)

    def initialize_worker(self, *args: Any, **kwargs: Any) -> None:
        """Starts the rank, with its collectives at Ray's address of this host."""
        own = ray.util.get_node_ip_address()
        _environment.listen_at(own, hosts.interface_of(own))
        super().initialize_worker(*args, **kwargs)


class XlaCpuRayWorkerProc(XlaRayWorkerProc):
    """A rank on a CPU."""

    def get_node_and_physical_gpu_ids(self) -> tuple[str, list[int]]:
        """The host, and no GPU."""
        return ray.get_runtime_context().get_node_id(), []

    def initialize_worker(self, *args: Any, **kwargs: Any) -> None:
        """Starts the rank, which has no GPU."""
        kwargs["assigned_physical_gpu_ids"] = None
        super().initialize_worker(*args, **kwargs)


class XlaRayExecutor(RayExecutorV2):
    """vLLM's own, but for its actors."""

    _worker: ClassVar[type[XlaRayWorkerProc]] = XlaRayWorkerProc

    def _init_executor(self) -> None:
        theirs = replace(ray_executor_v2, "RayWorkerProc", self._worker)
        try:
            super()._init_executor()
        finally:
            ray_executor_v2.RayWorkerProc = theirs


class XlaCpuRayExecutor(XlaRayExecutor):
    """Where ranks are on CPUs."""

    _worker = XlaCpuRayWorkerProc

    @staticmethod
    def _get_actor_resource_kwargs() -> dict[str, Any]:
        return {"num_gpus": 0}  # its CPU is in the placement group's bundle
