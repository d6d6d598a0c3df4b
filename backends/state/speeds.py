"""The speeds of devices and links, and the speed predicted from them."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

from backends.state.base import Value
from backends.state.machines import DeviceKind
from backends.state.plans import LayerRange, Objective, Plan


class SpeedSource(StrEnum):
    """The sources of a speed, the least certain first."""

    PRIOR = "prior"
    """Usual for a device of its kind; it never ran here."""
    GIVEN = "given"
    """From a cluster file."""
    MEASURED = "measured"
    """Learnt from passes of earlier runs."""


class DeviceSpeed(Value, frozen=True, kw_only=True):
    """The time that a device takes for its part of a pass.

    ``ms`` has one figure for each kind of work of ``split.cost.Work``. ``covariance``
    is that of these figures, row by row; it makes the error band.
    """

    device: str
    ms: tuple[float, ...]
    covariance: tuple[float, ...]
    source: SpeedSource = SpeedSource.PRIOR
    runs: int = 0
    """Measured runs behind it."""


class LinkSpeed(Value, frozen=True, kw_only=True):
    """The time that data take between head and worker, there and back."""

    worker: str
    rtt_ms: float = 0.0
    rtt_sd_ms: float = 0.0
    ms_per_mb: float = 0.0
    """Inverse of the rate; 0 on one machine."""
    ms_per_mb_sd: float = 0.0
    pass_ms: float = 0.0
    """Besides these, for each device of a pass: copies and the relay."""
    pass_sd_ms: float = 0.0
    trips_per_pass: float = 1.0
    """Waited round trips per device of the worker that holds layers."""
    source: SpeedSource = SpeedSource.PRIOR


class ClusterSpeeds(Value, frozen=True, kw_only=True, dict=True):
    """All that a prediction needs beside the model and the plan."""

    head: DeviceSpeed
    """Sampling and the server itself, whatever devices compute."""
    devices: tuple[DeviceSpeed, ...] = ()
    links: tuple[LinkSpeed, ...] = ()
    rpc_protocol: str = ""
    """Of the head's llama-server; empty: unknown."""
    noise: float = 0.05
    """Part by which two runs of one plan differ (standard deviation)."""
    prompt_noise: float = 0.15
    """The same of reading prompts."""
    residual: float | None = None
    """Part by which the last measured run of the model was slower than predicted."""

    @cached_property
    def of_device(self) -> dict[str, DeviceSpeed]:
        return {speed.device: speed for speed in self.devices}

    @cached_property
    def of_worker(self) -> dict[str, LinkSpeed]:
        return {link.worker: link for link in self.links}

    def link_to(self, worker: str) -> LinkSpeed:
        """The link to a worker; of one that is not known it costs nothing."""
        return self.of_worker.get(worker) or LinkSpeed(worker=worker)


class ForecastPart(Value, frozen=True, kw_only=True):
    """A machine's part of a pass, as the waterfall shows it."""

    name: str
    """A worker's name, or the head's."""
    compute_ms: float
    """Its devices; for the head, sampling and server too."""
    network_ms: float = 0.0
    """Round trips and bytes between head and worker."""
    trips: float = 0.0
    bytes_up: float = 0.0
    bytes_down: float = 0.0
    sd_ms: float = 0.0
    source: SpeedSource = SpeedSource.PRIOR


class Forecast(Value, frozen=True, kw_only=True):
    """The predicted speed of a plan; ``low`` and ``high`` hold 9 of 10 runs."""

    tok_per_s: float
    """Of all active slots together."""
    low: float
    high: float
    first_token_s: float
    first_token_low_s: float
    first_token_high_s: float
    bytes_per_token: float
    trips_per_token: float
    pass_ms: float
    """Of one forward pass while generating."""
    parts: tuple[ForecastPart, ...] = ()
    source: SpeedSource = SpeedSource.PRIOR
    """The least certain one among the parts."""
    depth: int = 0
    """Tokens in the context, assumed."""
    prompt_tokens: int = 0
    """Tokens of the prompt before the first token, assumed."""


class RunPart(Value, frozen=True, kw_only=True):
    """A machine's part of a pass: measured in a run, and predicted before it."""

    name: str
    """A worker's name, or the head's."""
    compute_ms: float
    predicted_compute_ms: float
    network_ms: float = 0.0
    """Without what a lab added."""
    predicted_network_ms: float = 0.0


class LastRun(Value, frozen=True, kw_only=True):
    """The last run of a plan beside what was predicted before it."""

    at: float
    """Unix seconds."""
    parts: tuple[RunPart, ...]
    """The head's part first."""

    @property
    def measured_ms(self) -> float:
        """Of a pass."""
        return sum(part.compute_ms + part.network_ms for part in self.parts)

    @property
    def predicted_ms(self) -> float:
        return sum(
            part.predicted_compute_ms + part.predicted_network_ms for part in self.parts
        )


class Alternative(Value, frozen=True, kw_only=True):
    """Another plan, or another cluster, with its predicted speed."""

    name: str
    """``solo on studio``, ``without nuc``, ``fastest first token``."""
    counts: tuple[int, ...] = ()
    """Layers of the devices in ``devices``; empty if it cannot run."""
    devices: tuple[str, ...] = ()
    head: str = ""
    ctx_size: int = 0
    forecast: Forecast | None = None
    why: str = ""
    """Why it cannot run, or what sets it apart."""
    imagined: bool = False
    """True if it needs links or machines that are not there."""
    by_tensor: bool = False
    """True if each device has a part of every tensor, in place of whole layers."""
    experts: tuple[LayerRange, ...] = ()
    """Layers whose experts are on another device than they are."""
    objectives: tuple[Objective, ...] = ()
    """The aims for which no other plan is better, if all aims were asked for."""
    all_slots_tok_per_s: float | None = None
    """With an answer in every slot; None with one slot."""


class TokenPart(Value, frozen=True, kw_only=True):
    """A part of a token's time, as measured."""

    name: str
    """A worker's name, or the head's."""
    part: str
    """``link`` or ``compute``."""
    ms: float
    share: float
    """Of the whole, from 0 to 1."""


class PlanChange(Value, frozen=True, kw_only=True):
    text: str
    """``2 layers from mini/MTL0 to studio/MTL0``."""
    plan: Plan
    """The plan with it."""
    gain: float
    """In tokens per second, against the measured speed."""
    low: float
    high: float
    """Nine of ten are between these."""


class Bottleneck(Value, frozen=True, kw_only=True):
    """The parts of a token's time, and the one change that helps most."""

    text: str
    """One sentence."""
    parts: tuple[TokenPart, ...] = ()
    """Measured, the longest first; empty before the first answer."""
    pass_ms: float | None = None
    """Measured: the median of the latest passes."""
    tok_per_s: float | None = None
    """Measured: by the same passes."""
    bound: str = ""
    """The limit of the longest part: ``memory bandwidth``."""
    change: PlanChange | None = None
    """None if no change is predicted to help."""


class GivenDevice(Value, frozen=True, kw_only=True):
    name: str
    kind: DeviceKind
    memory_bytes: int
    gb_s: float
    """Bandwidth of its memory."""
    gops_s: float | None = None
    least: int = 0
    """Layers it must hold."""
    most: int | None = None


class GivenMachine(Value, frozen=True, kw_only=True):
    name: str
    devices: tuple[GivenDevice, ...]
    """The CPU first."""


class GivenLink(Value, frozen=True, kw_only=True):
    """The network between two machines of a cluster file."""

    between: tuple[str, str]
    """Two machines; ``*`` stands for all others."""
    rtt_ms: float
    jitter_ms: float = 0.0
    mb_s: float | None = None


class GivenCluster(Value, frozen=True, kw_only=True):
    machines: tuple[GivenMachine, ...]
    links: tuple[GivenLink, ...] = ()
    head: str = ""
    """Empty: the machine that is best."""
