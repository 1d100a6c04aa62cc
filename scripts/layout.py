"""Where things lie in a checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARTIFACTS = ROOT / "artifacts"
ENGINES = ARTIFACTS / "llama-cpp"
MODELS = ARTIFACTS / "models"
CLIENT_VENVS = ARTIFACTS / "clients"
CLIENTS = ROOT / "tests" / "clients"
VENV = ROOT / ".venv"
BENCH = ROOT / "scripts" / "bench.py"

DESKTOP_LOCK = ROOT / "requirements-desktop.lock"
TEST_LOCK = ROOT / "requirements-test.lock"
ENGINE_LOCK = ROOT / "requirements-engine.lock"
DEMO_MODEL_LOCK = ROOT / "requirements-demo-model.lock"
LLAMA_SOURCE_LOCK = ROOT / "requirements-llama-source.lock"
