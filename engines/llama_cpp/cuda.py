"""The CUDA engine: a llama-server on one NVIDIA card, its window sized for a full offload.

Who does what: the window is ours, a ``-c`` is never changed by the server; which layers lie on the card is the
server's (``-ngl -1`` is "auto" while its ``--fit`` is on), which measures what is free at that moment. An estimate
that was too bold thereby costs speed, not the child.
"""

from __future__ import annotations

import logging
import ntpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from engines.artifact.facts import ModelFacts, ModelKind
from engines.child.environment import planned_environment
from engines.child.served import ServedChild
from engines.engine import Child, Landed, Law, Progress
from engines.errors import EngineUnavailable, GpuOutOfMemory, ServerMissing
from engines.llama_cpp import arguments
from engines.llama_cpp.output import read_output
from engines.llama_cpp.server import Launcher
from engines.machine import Machine
from engines.memory.grid import floor_of, padded
from engines.memory.window import plan_window
from engines.nvidia.devices import VARIABLE, Devices, choose
from engines.nvidia.landing import landing
from engines.nvidia.nvml import Nvml
from engines.nvidia.preflight import Verdict, preflight
from engines.nvidia.spill import flash_runs
from engines.nvidia.spill_sensor import SpillSensor
from engines.nvidia.window import CONTEXT_BYTES, CardBudget, card_budget, flash_proven
from engines.plan import LaunchPlan, LaunchSettings, Memory, Window

log = logging.getLogger(__name__)

FIT_LAYERS = "-1"
"""The server places as many layers on the card as fit."""
ALL_LAYERS = "-2"
"""All layers, whatever is free: a respawn with a smaller window must not lose layers to what a game left."""
FIT_MARGIN = ("-fitt", "1024")
"""MiB that the server's fit leaves free on the card: as much as our own margin."""
NO_CUDA = "this llama-server has no CUDA code"
"""The other flavour, found as a fallback: it runs on the processor, for whose memory this engine does not size."""
BUS_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""Makes the numbers in a user's list of several cards count as NVML counts."""


class CudaEngine:
    """Plans purely, starts through a launcher."""

    name = "cuda"

    def __init__(
        self,
        launcher: Launcher,
        config_folder: Path,
        missing_server: str | None = None,
        nvml: Nvml | None = None,
        spill: SpillSensor | None = None,
    ) -> None:
        self._launcher = launcher
        self._config_folder = str(config_folder)
        self._missing_server = missing_server or "The machine has no llama-server to plan with."
        self._nvml = nvml or Nvml.of_this_system()
        self._spill = spill

    def preflight(self, machine: Machine) -> Verdict | None:
        """Why the cards that a child would see will likely not run a model; None where nothing speaks against it."""
        return preflight(devices_of(machine).gpus, machine.driver_cuda)

    def at_load(self, machine: Machine, settings: LaunchSettings) -> LaunchSettings:
        """What is free now on the card that a child would be sized for; never asked for a respawn."""
        gpu = devices_of(machine).gpu
        if gpu is None or settings.respawn:
            return settings
        memory = self._nvml.memory(gpu.uuid)
        if memory.value is None:
            log.warning("%s does not tell its memory (%s): the server sizes the window", gpu.name, memory.reason)
            return replace(settings, vram_unreadable=True)
        return replace(settings, free_vram_bytes=memory.value.free)

    def plan(self, model: str, facts: ModelFacts, machine: Machine, settings: LaunchSettings) -> LaunchPlan:
        """What starting ``model`` here would be.

        Raises ``ServerMissing`` where the machine has no llama-server, ``EngineUnavailable`` where it has no card.
        """
        if machine.llama_server is None:
            raise ServerMissing(self._missing_server)
        if not machine.nvidia_gpus:
            raise EngineUnavailable(no_card_sentence(machine.gpu_problem))
        devices = devices_of(machine)
        if machine.llama_server.flavour != "cuda":
            devices = replace(devices, problem=NO_CUDA)
        budget = _budget(facts, devices, settings)
        window, sized = _window(facts, devices, settings, budget)
        layers = ALL_LAYERS if settings.respawn else FIT_LAYERS
        retried = sized and not settings.respawn and settings.window is None

        def launch(window: Window, retry: LaunchPlan | None = None) -> LaunchPlan:
            return LaunchPlan(
                model=model,
                engine=self.name,
                argv=_argv(model, facts, machine, window.planned, layers=layers, threads=settings.threads),
                env=_environment(machine, devices, self._config_folder),
                window=window,
                memory=_predict(facts, window.planned, budget),
                embedding=facts.kind is not ModelKind.CHAT,
                brake=sized,
                device=devices.gpu.uuid if devices.gpu is not None else None,
                retry=retry,
            )

        return launch(window, launch(_after_out_of_memory(window)) if retried else None)

    async def start(self, plan: LaunchPlan, progress: Progress) -> Child:
        """Start it; see ``Engine.start``. A sized load that the card cannot hold is tried once more at the floor:
        the child's own plan says so."""
        try:
            child = await self._launcher.start(plan, progress)
        except GpuOutOfMemory as error:
            if plan.retry is None:
                raise
            log.warning(
                "%s does not fit the card with a window of %s tokens, or the system had no memory left for its pinned"
                " buffers: one more try with %s. The server said: %s",
                plan.model,
                plan.window.planned,
                plan.retry.window.planned,
                error.tail.splitlines()[-1] if error.tail else "nothing",
            )
            plan = plan.retry
            child = await self._launcher.start(plan, progress)
        return child

    def landed(self, child: Child, facts: ModelFacts, *, respawned: bool) -> Landed:
        """Where the layers went, what the child holds on its card, and whether a spill may shrink its window."""
        plan, window = child.plan, child.facts.allocated_window
        output = read_output(child.tail)
        vram, held = None, None
        if self._spill is not None and window is not None:
            flash = flash_runs(output, proven=flash_proven(facts))
            vram = self._spill.stamp(child.pid, window, flash=flash)
            held = vram.loaded.dedicated if vram.loaded is not None else None
        elif plan.device is not None:
            held = self._nvml.process_bytes(plan.device, child.pid).value
        assert isinstance(child, ServedChild)
        child.measured_bytes = held
        if (lost := flash_lost(plan, child.tail)) is not None:
            log.warning("%s", lost)
        found = landing(
            plan.model, facts, output, window, vram=vram, nvml_bytes=held if vram is None else None, respawned=respawned
        )
        for level, sentence in found.says:
            log.log(level, "%s", sentence)
        sensor = self._spill
        if not plan.brake or not found.placement.full or sensor is None or vram is None:
            return Landed(Law.NONE)
        return Landed(Law.SPILL, lambda: sensor.read(vram, plan.model))


def no_card_sentence(problem: str) -> str:
    """Why there is nothing to run on, and what to do."""
    why = f" ({problem})" if problem else ""
    return f'No NVIDIA card was found{why}. Install the driver of the card, or set engine = "auto".'


def devices_of(machine: Machine) -> Devices:
    """What a child on this machine may see."""
    return choose(machine.gpus, machine.environment.get(VARIABLE))


def flash_lost(plan: LaunchPlan, output: str) -> str | None:
    """The sentence for a child without the Flash Attention that its window was sized with; None otherwise. Pure."""
    budget = plan.memory.budget
    if not plan.brake or not isinstance(budget, CardBudget) or not budget.flash:
        return None
    if read_output(output).flash_attention is not False:
        return None
    return (
        f"{plan.model} runs without Flash Attention, and its window of {plan.window.planned} tokens was sized with it:"
        " the card may run out of memory during a long conversation. Set a smaller window."
    )


def _budget(facts: ModelFacts, devices: Devices, settings: LaunchSettings) -> CardBudget | None:
    """None: there is no one card to size for, or it does not tell its memory."""
    gpu = devices.gpu
    if gpu is None or gpu.total_bytes is None:
        return None
    if settings.respawn:  # what a game left free since does not count
        return card_budget(facts, total=gpu.total_bytes, free=None)
    if settings.vram_unreadable:
        return None
    return card_budget(
        facts, total=gpu.total_bytes, free=settings.free_vram_bytes, override=settings.vram_override_bytes
    )


def _window(
    facts: ModelFacts, devices: Devices, settings: LaunchSettings, budget: CardBudget | None
) -> tuple[Window, bool]:
    """The window, and whether the brake may act on the child: not where the card does not hold all of it."""
    if budget is None:
        problem = devices.problem or "the graphics card does not tell its memory"
        pinned = _pinned(facts, settings, f"{problem}, so it is not held against the card")
        left = f"{problem}, so the server sizes the window itself"
        return pinned or Window(None, facts.trained_window, "model", left), pinned is not None and not devices.problem
    window = plan_window(facts, settings, budget)
    if settings.window is not None:
        return window, True
    if settings.respawn:
        return _again(window, settings), True
    if window.planned is None or budget.holds is None:
        return window, False
    if padded(window.planned) > budget.holds:
        reason = f"{window.reason}; part of the model runs on the processor"
        return replace(window, reason=reason), False
    return window, True


def _pinned(facts: ModelFacts, settings: LaunchSettings, remark: str) -> Window | None:
    """The user's own window where there is no budget; at most the trained one."""
    if settings.window is None:
        return None
    trained = facts.trained_window
    if trained is not None and settings.window > trained:
        reason = f"you asked for {settings.window:,} tokens; the model was trained for {trained:,}; {remark}"
        return Window(trained, trained, "model", reason)
    return Window(settings.window, trained, "user", f"you set it to {settings.window:,} tokens; {remark}")


def _again(window: Window, settings: LaunchSettings) -> Window:
    """The window that the child had, folded with the cap."""
    live = settings.live_window
    if live is None:
        return window
    if settings.cap is not None and settings.cap < live:
        reason = f"lowered to {settings.cap:,} tokens because memory ran short"
        return Window(settings.cap, window.trained, "brake", reason)
    return Window(live, window.trained, window.bound_by, f"{live:,} tokens, as before")


def _after_out_of_memory(window: Window) -> Window:
    assert window.planned is not None  # it was sized
    floor = floor_of(window.planned)
    reason = f"the card ran out of memory at {window.planned:,} tokens: this load gets {floor:,}"
    return Window(floor, window.trained, "memory", reason)


def _predict(facts: ModelFacts, window: int | None, budget: CardBudget | None) -> Memory:
    """Bytes on the card, all layers there: KV cache and compute buffer, the weights, the CUDA context."""
    spent = budget.spent_on(facts, window) if budget is not None else None
    if spent is None or spent.kv is None or spent.compute is None:
        return Memory(None, budget=spent, on_card=True)
    bill = {
        "kv": spent.kv,
        "compute": spent.compute,
        "weights": facts.weights_bytes,
        "projector": facts.projector_bytes,
        "cuda_context": CONTEXT_BYTES,
    }
    return Memory(sum(bill.values()), bill, spent, on_card=True)


def _argv(
    model: str, facts: ModelFacts, machine: Machine, window: int | None, *, layers: str, threads: int | None
) -> tuple[str, ...]:
    assert machine.llama_server is not None
    return (
        machine.llama_server.path,
        *arguments.NO_IDLE_SLEEP,
        "-m",
        str(facts.files[0]),
        *(("-c", str(window)) if window is not None else ()),
        "-ngl",
        layers,
        *FIT_MARGIN,
        "-t",
        str(threads or arguments.threads(machine.physical_cores)),
        *arguments.purpose(facts, window),
        *arguments.always(model),
    )


def _environment(machine: Machine, devices: Devices, config_folder: str) -> dict[str, str]:
    inherited = {name: value for name, value in machine.environment.items() if name != VARIABLE}
    if devices.value is not None:
        inherited[VARIABLE] = devices.value
    if len(devices.gpus) > 1:
        inherited[BUS_ORDER[0]] = BUS_ORDER[1]
    if machine.system == "Windows" and inherited.get("CUDA_PATH"):
        inherited["PATH"] = _with_toolkit(inherited)
    return planned_environment(inherited, config_folder)


def _with_toolkit(inherited: Mapping[str, str]) -> str:
    """The toolkit's DLLs before all else: in ``bin``, from CUDA 13 on in ``bin\\x64``."""
    programs = ntpath.join(inherited["CUDA_PATH"], "bin")
    return ";".join(filter(None, (programs, ntpath.join(programs, "x64"), inherited.get("PATH"))))
