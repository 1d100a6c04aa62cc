"""From what the host holds to what it shows. Pure."""

from __future__ import annotations

from app.host import schedule as s
from app.host import vocabulary as v
from app.host.status import BrakeStatus, ChildState, ChildStatus, MemoryStatus, WaitingStatus, WindowStatus
from engines import Child, LaunchPlan


def child_status(
    scheduled: s.Child, *, plan: LaunchPlan | None, child: Child | None, progress: float | None, stopping: bool
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
        brake=BrakeStatus(cap=scheduled.cap),
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
