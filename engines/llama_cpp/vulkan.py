"""The Vulkan engine: a llama-server on another maker's graphics card, which sizes itself.

Nothing here knows how much memory such a card has or what its driver takes. So the server's own ``--fit`` decides the
window and the layers, the window is read back, and the brake is off.
"""

from __future__ import annotations

from pathlib import Path

from engines.artifact.facts import ModelFacts, ModelKind
from engines.child.environment import planned_environment
from engines.engine import Child, Landed, Law, Progress
from engines.errors import EngineUnavailable, ServerMissing
from engines.llama_cpp import arguments
from engines.llama_cpp.cuda import FIT_LAYERS, FIT_MARGIN
from engines.llama_cpp.server import Launcher
from engines.machine import Machine
from engines.memory.window import EMBEDDING_WINDOW
from engines.plan import LaunchPlan, LaunchSettings, Memory, Window


class VulkanEngine:
    """Plans purely, starts through a launcher."""

    name = "vulkan"

    def __init__(self, launcher: Launcher, config_folder: Path, missing_server: str | None = None) -> None:
        self._launcher = launcher
        self._config_folder = str(config_folder)
        self._missing_server = missing_server or "The machine has no llama-server to plan with."

    def plan(self, model: str, facts: ModelFacts, machine: Machine, settings: LaunchSettings) -> LaunchPlan:
        """What starting ``model`` here would be.

        Raises ``ServerMissing`` where the machine has no llama-server, and ``EngineUnavailable`` where that one names
        no Vulkan device (``machine.other_gpus``).
        """
        if machine.llama_server is None:
            raise ServerMissing(self._missing_server)
        if not machine.other_gpus:
            raise EngineUnavailable(no_device_sentence(machine.llama_server.path))
        window = window_for(facts, settings, machine.other_gpus)
        argv = (
            machine.llama_server.path,
            *arguments.NO_IDLE_SLEEP,
            "-m",
            str(facts.files[0]),
            *(("-c", str(window.planned)) if window.planned is not None else ()),
            "-ngl",
            FIT_LAYERS,
            *FIT_MARGIN,
            "-t",
            str(settings.threads or arguments.threads(machine.physical_cores)),
            *arguments.purpose(facts, window.planned),
            *arguments.always(model),
        )
        return LaunchPlan(
            model=model,
            engine=self.name,
            argv=argv,
            env=planned_environment(machine.environment, self._config_folder),
            window=window,
            memory=Memory(None, on_card=True),
            embedding=facts.kind is not ModelKind.CHAT,
            brake=False,
        )

    def at_load(self, machine: Machine, settings: LaunchSettings) -> LaunchSettings:
        """Nothing to read here; see ``Engine.at_load``."""
        return settings

    async def start(self, plan: LaunchPlan, progress: Progress) -> Child:
        """Start it; see ``Engine.start``. The first load on a card takes longer: its driver compiles the shaders."""
        return await self._launcher.start(plan, progress)

    def landed(self, child: Child, facts: ModelFacts, *, respawned: bool) -> Landed:
        """See ``Engine.landed``."""
        return Landed(Law.NONE)


def window_for(facts: ModelFacts, settings: LaunchSettings, devices: tuple[str, ...]) -> Window:
    """The window to pass; None leaves it to the server. Only what the user set is passed for a chat. An embedding or
    rerank worker always gets one, since its batch has to be as large. Pure."""
    trained, server = facts.trained_window, f"the server sizes the window itself to {' and '.join(devices)}"
    if settings.window is not None:
        if trained is not None and settings.window > trained:
            reason = f"you asked for {settings.window:,} tokens; the model was trained for {trained:,}"
            return Window(trained, trained, "model", reason)
        return Window(settings.window, trained, "user", f"you set it to {settings.window:,} tokens")
    if facts.kind is ModelKind.CHAT or trained is None:
        return Window(None, trained, "model", server)
    if trained > EMBEDDING_WINDOW:
        reason = f"an embedding worker gets at most {EMBEDDING_WINDOW:,} tokens"
        return Window(EMBEDDING_WINDOW, trained, "model", reason)
    return Window(trained, trained, "model", f"the model was trained for {trained:,} tokens")


def no_device_sentence(server: str) -> str:
    """Why there is nothing to run on, and what to do."""
    return (
        f"{server} names no Vulkan device. Install the Vulkan driver of your graphics card (Debian and Ubuntu:"
        ' mesa-vulkan-drivers), name a llama-server built with Vulkan (setting llama_server), or set engine = "cpu".'
    )
