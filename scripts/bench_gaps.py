"""How long the application's loop is away from its next event, while four streams run flat out and a model loads."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from bench_subject import FAST_MODEL, fast_or_real
from layout import MODELS, ROOT

STREAMS = 4
STREAM_CHUNKS = 100_000_000
"""Without end: the streams are broken off when all is measured."""
SAMPLE_SECONDS = 0.005
LOADS = 3
CLIENT = """
import sys
sys.path.insert(0, {scripts!r})
from bench_subject import Target, stream
print(stream(Target({port}), {model!r}, {chunks}).events)
"""


async def measure(model: str) -> list[float]:
    """Lateness of a timer, in seconds, one a sample."""
    sys.path.insert(0, str(ROOT))
    from app.application import Application
    from app.survey import Options

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        models = Path(folder) / "models"
        models.mkdir()
        (models / f"{FAST_MODEL}.gguf").hardlink_to(MODELS / f"{model}.gguf")
        settings = f'llama_server = "{fast_or_real(Path(folder))}"\nmax_models = 2\n'
        (home / "settings.toml").write_text(settings, encoding="utf-8")
        async with await Application.open(Options(home, (models, MODELS))) as app:
            port = int(str(app.ready_facts()["port"]))
            code = CLIENT.format(scripts=str(ROOT / "scripts"), port=port, model=FAST_MODEL, chunks=STREAM_CHUNKS)
            clients = [
                await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.DEVNULL)
                for _ in range(STREAMS)
            ]
            while sum(child.busy for child in app.host.status().children) < STREAMS:
                await asyncio.sleep(SAMPLE_SECONDS)
            late: list[float] = []
            sampling = asyncio.create_task(_sample(late))
            for _ in range(LOADS):
                await _load_once(app, model)
            sampling.cancel()
            for client in clients:
                client.kill()
                await client.wait()
    return late


async def _sample(late: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + SAMPLE_SECONDS
        await asyncio.sleep(SAMPLE_SECONDS)
        late.append(loop.time() - due)


async def _load_once(app: object, model: str) -> None:
    """Load the model beside the streams and have it gone again."""
    from app.application import Application
    from app.host.model import Model

    assert isinstance(app, Application)
    record = app.library.resolve(model, loaded=(), default=None)
    assert record.facts is not None
    loading = asyncio.create_task(app.host.load(Model(record.id, record.name, record.facts)))
    while not any(c.model == record.id and c.state == "ready" for c in app.host.status().children):
        await asyncio.sleep(SAMPLE_SECONDS)
    loading.cancel()
    app.host.unload(record.id)
    while any(c.model == record.id for c in app.host.status().children):
        await asyncio.sleep(SAMPLE_SECONDS)
