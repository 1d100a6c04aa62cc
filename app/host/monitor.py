"""Lets time pass for the schedule: waits are bounded, doors close, unused children go."""

from __future__ import annotations

import asyncio

from app.host.host import Host

BUSY_SECONDS = 1.0
IDLE_SECONDS = 5.0
"""Seldom while nothing happens: a tray application should not wake the processor."""


async def watch(host: Host) -> None:
    """Tick until cancelled. A child's death needs no looking: the host hears of it at once."""
    while True:
        await asyncio.sleep(BUSY_SECONDS if host.busy else min(IDLE_SECONDS, host.periods.idle))
        host.tick()
        await host.look_at_idle_children()
