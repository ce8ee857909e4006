"""The training worker's end of `rollout.name=vllm` on a CPU: verl's own, but a failed weight sync ends the run.

verl's sender waits for the receiver's acknowledgement without a time-out, and looks at the receiver's result only
afterwards. A receiver that raises never acknowledges: the sender waits for ever and the cause is never shown.
"""

from __future__ import annotations

import time
from typing import Any

import ray
import zmq
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

POLL_MILLISECONDS = 500
GRACE_MILLISECONDS = 5000  # for an acknowledgement that is on its way when the receiver returns
TIMEOUT_SECONDS = 600.0  # without any sign of life from the receiver


class WatchedSocket:
    """The part of a ZMQ socket that verl's sender uses; before each wait it looks after the receiver.

    Raises what the receiver raised, or TimeoutError.
    """

    def __init__(self, socket: zmq.Socket, receiver: ray.ObjectRef, timeout: float = TIMEOUT_SECONDS) -> None:
        self._socket = socket
        self._receiver = receiver
        self._timeout = timeout

    def send_pyobj(self, message: Any) -> None:
        self._wait_for(zmq.POLLOUT)
        self._socket.send_pyobj(message)

    def recv(self) -> bytes:
        self._wait_for(zmq.POLLIN)
        return self._socket.recv()

    def close(self) -> None:
        self._socket.close(linger=0)

    def _wait_for(self, event: int) -> None:
        deadline = time.monotonic() + self._timeout
        while not self._socket.poll(POLL_MILLISECONDS, event):
            finished, _ = ray.wait([self._receiver], timeout=0)
            if finished:
                ray.get(self._receiver)  # raises the receiver's error
                if not self._socket.poll(GRACE_MILLISECONDS, event):
                    raise RuntimeError("vLLM ended its weight update before it had received all weights")
            if time.monotonic() > deadline:
                raise TimeoutError(f"vLLM did not take the next weights within {self._timeout:.0f} s")


class WatchingWeightSender(BucketedWeightSender):
    """verl's sender on a `WatchedSocket`."""

    socket: Any

    def __init__(self, receiver: ray.ObjectRef, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._receiver = receiver

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket = WatchedSocket(self.socket, self._receiver)


class CPUvLLMServerAdapter(ServerAdapter):
    """Sends full weights through shared memory; raises ValueError for model parallelism and for weight deltas."""

    async def update_weights(  # type: ignore[override]  # the order of arguments of verl's own vLLM adapter
        self, weights: Any, global_steps: int | None = None, wire_format: str = "named_tensors", **kwargs: Any
    ) -> None:
        if wire_format != "named_tensors":
            raise ValueError(f"vLLM on the CPU needs wire_format=named_tensors, got {wire_format}")
        receiver = await self._execute_method(
            "update_weights_from_ipc", non_block=True, kwargs={**kwargs, "use_shm": True}
        )
        if receiver is None:
            raise ValueError("vLLM on the CPU needs actor_rollout_ref.rollout.tensor_model_parallel_size=1")
        sender = WatchingWeightSender(
            receiver,
            zmq_handle=self.zmq_handle,
            bucket_size_mb=self.config.checkpoint_engine.update_weights_bucket_megabytes,
            use_shm=True,
        )
        await sender.async_send_weights(weights)
        await receiver
        await self.server_handle.clear_kv_cache.remote()
        if global_steps is not None:
            await self.server_handle.set_global_steps.remote(global_steps)
