"""Records and small real model files for the tests, each with only what matters given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from app.library.records import ModelRecord, capabilities
from engines.artifact.facts import ModelKind
from tests.fixtures.facts import facts

WIDTH = 32


def record(
    model: str,
    *,
    kind: ModelKind = ModelKind.CHAT,
    quant: str | None = None,
    size: int = 1000,
    broken: str | None = None,
    **changes: Any,
) -> ModelRecord:
    """A record of this id, whole unless ``broken`` says why not."""
    known = None if broken else facts(kind=kind, quantisation=quant, weights_bytes=size)
    values: dict[str, Any] = {
        "name": model,
        "path": Path(f"/models/{model}.gguf"),
        "stem": model,
        "capabilities": capabilities(known) if known else (),
        **changes,
    }
    return ModelRecord(id=model, size_bytes=size, facts=known, broken=broken, **values)


def write_model(
    path: Path,
    *,
    name: str = "Tiny",
    file_type: int = gguf.LlamaFileType.MOSTLY_Q4_K_M,
    template: str | None = None,
    pooling: gguf.PoolingType | None = None,
    part: int = 0,
    parts: int = 1,
) -> None:
    """A GGUF with a whole header and one small tensor; one part of a split where there are more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    if parts > 1:
        writer.add_uint16("split.no", part)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", parts)
    if part == 0:
        writer.add_name(name)
        writer.add_file_type(file_type)
        writer.add_context_length(4096)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(1)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        if template is not None:
            writer.add_chat_template(template)
        if pooling is not None:
            writer.add_pooling_type(pooling)
    writer.add_tensor(f"blk.{part}.attn_q.weight", np.zeros((WIDTH, WIDTH), dtype=np.float16))
    _finish(writer)


def write_projector(path: Path) -> None:
    """A GGUF that is the projector of such a model: it sees images."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_uint32("clip.vision.projection_dim", WIDTH)
    writer.add_tensor("mm.0.weight", np.zeros((WIDTH, WIDTH), dtype=np.float16))
    _finish(writer)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
