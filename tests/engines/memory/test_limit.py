"""The limit of our own cgroup, and how a snapshot of a machine carries it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from engines.machine import Machine
from engines.memory.limit import limit_of, memory_limit

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max\n", None),
        ("2147483648\n", 2147483648),
        ("9223372036854771712\n", None),
        ("", None),
        ("-1\n", None),
    ],
)
def test_what_the_file_says(text: str, limit: int | None) -> None:
    assert limit_of(text) == limit


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")
@pytest.mark.parametrize(
    ("files", "limit"),
    [
        (
            {
                "proc/self/cgroup": "0::/app.slice/x\n",
                "proc/self/mountinfo": V2_MOUNT,
                "sys/fs/cgroup/app.slice/x/memory.max": "4294967296\n",
                "sys/fs/cgroup/app.slice/memory.max": "1\n",
            },
            4 << 30,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "proc/self/mountinfo": V2_MOUNT,
                "sys/fs/cgroup/memory.max": "max\n",
            },
            None,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/box\n0::/\n",
                "proc/self/mountinfo": V1_MOUNT + V2_MOUNT,
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "3221225472\n",
                "sys/fs/cgroup/memory.max": "1\n",
            },
            3 << 30,
        ),
        ({"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNT}, None),
        ({}, None),
    ],
)
def test_our_own_group_counts_and_no_other(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    assert memory_limit(tree(tmp_path, files)) == limit


def test_a_snapshot_carries_the_limit_and_the_features() -> None:
    machine = Machine("Linux", "x86_64", 1 << 34, 4, memory_limit_bytes=1 << 30, cpu_features=("avx2",))
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"memory_limit_bytes": "2 GiB"}, "machine.memory_limit_bytes"),
        ({"memory_limit_bytes": 0}, "machine.memory_limit_bytes"),
        ({"cpu_features": "avx2"}, "machine.cpu_features"),
        ({"cpu_features": [1]}, "machine.cpu_features"),
    ],
)
def test_a_bad_one_names_its_key(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Machine.from_json({**Machine("Linux", "x86_64", 1, 1).to_json(), **change})


def test_a_snapshot_of_an_older_version_has_neither() -> None:
    old = Machine("Linux", "x86_64", 1, 1).to_json()
    del old["memory_limit_bytes"], old["cpu_features"]
    assert Machine.from_json(old) == Machine("Linux", "x86_64", 1, 1)
