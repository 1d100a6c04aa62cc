"""From what the host holds to what it shows. Pure."""

from __future__ import annotations

from app.host import schedule as s
from app.host import vocabulary as v
from app.host.model import Model
from app.host.notices import WindowBound
from app.host.status import BrakeStatus, ChildState, ChildStatus, MemoryStatus, WaitingStatus, WindowStatus
from app.host.turn import Running
from engines import Child, LaunchPlan
from engines.memory import check


def child_status(
    scheduled: s.Child,
    *,
    plan: LaunchPlan | None,
    child: Child | None,
    progress: float | None,
    stopping: bool,
    brake: BrakeStatus,
) -> ChildStatus:
    """One child as the tray and the API show it."""
    state = ChildState.STOPPING if stopping else ChildState.READY if child is not None else ChildState.LOADING
    return ChildStatus(
        model=scheduled.model,
        pid=child.pid if child is not None else None,
        port=child.port if child is not None else None,
        state=state,
        slots=scheduled.slots,
        busy=len(scheduled.busy),
        progress=progress if state is ChildState.LOADING else None,
        window=_window(plan, child),
        memory=MemoryStatus(
            predicted=plan.memory.predicted if plan is not None else None,
            measured=child.measured_bytes if child is not None else None,
            bill=dict(plan.memory.bill) if plan is not None else {},
        ),
        brake=brake,
        load_seconds=round(child.load_seconds, 3) if child is not None else None,
        pinned=scheduled.traits.pinned,
    )


def waiting_status(turn: int, model: str, seconds: float, wait: v.Wait | None, *, by_user: bool) -> WaitingStatus:
    """One turn that waits."""
    reason = wait.reason if wait is not None else v.WaitReason.QUEUED
    return WaitingStatus(turn, model, seconds, reason.value, by_user)


def _window(plan: LaunchPlan | None, child: Child | None) -> WindowStatus:
    if plan is None:
        return WindowStatus(None, None, None, None, "model", "not planned yet")
    allocated = child.facts.allocated_window if child is not None else None
    return WindowStatus(
        trained=plan.window.trained,
        planned=plan.window.planned,
        allocated=allocated,
        working=allocated,
        bound_by=plan.window.bound_by,
        reason=plan.window.reason,
    )


def held_bytes(running: Running) -> int:
    """What a child that stays holds of RAM, or is predicted to hold, its mapped weights included."""
    if running.plan is not None and running.plan.memory.on_card:
        return 0  # what lies on a card takes nothing from those beside it
    measured = running.child.measured_bytes if running.child is not None else None
    predicted = running.plan.memory.predicted if running.plan is not None else None
    inside = running.plan is not None and "weights" in running.plan.memory.bill  # MLX reads them into memory of its own
    held = measured if measured is not None else predicted or 0
    return held if inside else held + running.model.facts.weights_bytes


def surplus(running: Running) -> str | None:
    """The sentence for a child that holds more than its plan allows for; None otherwise, or where it is not known."""
    child, plan, model = running.child, running.plan, running.model
    if child is None or plan is None or plan.engine != "cpu":
        return None
    copied = plan.memory.bill.get("repacked", 0)
    return check.surplus(model.name, model.facts, child.facts.allocated_window, child.measured_bytes, copied)


def memory_bound(plan: LaunchPlan | None, model: Model) -> WindowBound | None:
    """The notice for a load whose window memory bounds; None for any other."""
    if plan is None or plan.window.planned is None or plan.window.trained is None:
        return None
    if plan.window.bound_by not in {"memory", "free memory"} or plan.window.planned >= plan.window.trained:
        return None
    return WindowBound(
        model.id, model.name, plan.window.planned, plan.window.trained, plan.window.reason, plan.memory.predicted
    )
