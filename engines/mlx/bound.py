"""The window that an MLX child is held to, and the sentence why. Pure."""

from __future__ import annotations

from dataclasses import replace

from engines.memory.mlx_budget import MlxBudget
from engines.plan import LaunchPlan, Window


def window_of(budget: MlxBudget, base: int | None, cap: int | None) -> Window:
    """The bound of a child that holds ``base`` bytes after its load, and what it comes from. Pure."""
    trained, planned = budget.trained, budget.bound(base, cap)
    if planned is not None and planned == budget.limit and planned not in {trained, budget.user}:
        reason = f"a model that embeds or reranks takes at most {planned:,} tokens at once"
        return Window(planned, trained, "model", reason)
    if budget.user is not None:
        if planned is not None and planned < budget.user:
            reason = f"you asked for {budget.user:,} tokens; the model was trained for {planned:,}"
            return Window(planned, trained, "model", reason)
        return Window(planned, trained, "user", f"you set it to {budget.user:,} tokens")
    free = budget.bound(base, None)
    if cap is not None and planned is not None and (free is None or planned < free):
        return Window(planned, trained, "brake", f"lowered to {planned:,} tokens because memory ran short")
    if trained is None:
        return Window(planned, None, "model", "the model does not say for how many tokens it was trained")
    ceiling = budget.ceiling(base)
    if ceiling is None or ceiling >= trained:
        return Window(trained, trained, "model", f"the model was trained for {trained:,} tokens")
    if not budget.exact:
        reason = f"{planned:,} of {trained:,} tokens, counted as if no layer had a sliding window"
        return Window(planned, trained, "model", reason)
    assert base is not None
    reason = f"memory holds {max(0, ceiling):,} of {trained:,} tokens: {budget.sentence(base)}"
    return Window(planned, trained, "memory", reason)


def holding_to(plan: LaunchPlan, enforced: int | None) -> LaunchPlan:
    """The plan of a child that holds to ``enforced`` tokens, whatever it was sent. Pure."""
    if enforced == plan.window.planned:
        return plan
    reason = "the server did not take the window that it was sent"
    return replace(plan, window=Window(enforced, plan.window.trained, "model", reason))
