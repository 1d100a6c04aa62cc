"""The Linux sensor over trees of files, as systems with no, old, new and mixed cgroups have them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.memory.pressure import Level, for_this_system
from engines.memory.pressure.cgroup import Place, own_group
from engines.memory.pressure.linux import Files, GroupFiles, LinuxSensor, left, number, reading_of, table
from tests.engines.memory.test_pressure_levels import CALM, CRITICAL, WARNING, psi

GIB = 1 << 30
PAGE = 4096
V1_MOUNT = "35 31 0:32 {root} {at} rw,relatime - cgroup cgroup rw,memory"
V2_MOUNT = "41 31 0:38 {root} {at} rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_NONE = "9223372036854771712"
"""How version 1 writes that there is no limit."""
HYBRID = "\n".join(
    (
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu",
        V1_MOUNT.format(root="/", at="/sys/fs/cgroup/memory"),
        V2_MOUNT.format(root="/", at="/sys/fs/cgroup/unified"),
    )
)


@pytest.mark.parametrize(
    ("cgroups", "mounts", "place"),
    [
        ("0::/user.slice/app.scope\n", V2_MOUNT, Place(2, "/sys/fs/cgroup/user.slice/app.scope")),
        ("0::/\n", V2_MOUNT, Place(2, "/sys/fs/cgroup")),
        ("4:memory:/box/a\n0::/\n", HYBRID, Place(1, "/sys/fs/cgroup/memory/box/a")),
        ("5:cpu,memory:/a\n", V1_MOUNT, Place(1, "/sys/fs/cgroup/a")),
        ("3:cpu:/a\n0::/b\n", HYBRID, Place(2, "/sys/fs/cgroup/unified/b")),
        ("4:memory:/a\n0::/a\n", V2_MOUNT, None),
        ("0::/../outside\n", V2_MOUNT, None),
        ("0::/a\n", "", None),
        ("", V2_MOUNT, None),
        (None, None, None),
        ("nonsense\n::\n0:\n", "also - nonsense\n - \n", None),
    ],
)
def test_where_our_own_group_is(cgroups: str | None, mounts: str | None, place: Place | None) -> None:
    at = None if mounts is None else mounts.format(root="/", at="/sys/fs/cgroup")
    assert own_group(cgroups, at) == place


@pytest.mark.parametrize(
    ("root", "path", "folder"),
    [
        ("/docker/abc", "/docker/abc", "/sys/fs/cgroup"),
        ("/docker/abc", "/docker/abc/below", "/sys/fs/cgroup/below"),
        ("/docker/abc", "/docker/abcdef", None),
        ("/docker/abc", "/", None),
        ("/a\\040b", "/a b/c", "/sys/fs/cgroup/c"),
    ],
)
def test_a_container_mounts_only_its_own_part(root: str, path: str, folder: str | None) -> None:
    place = own_group(f"4:memory:{path}\n", V1_MOUNT.format(root=root, at="/sys/fs/cgroup"))
    assert (None if place is None else place.folder) == folder


@given(st.text(), st.text())
def test_any_texts_have_a_group_or_none(cgroups: str, mounts: str) -> None:
    assert own_group(cgroups, mounts) is None or mounts


@given(st.text())
def test_any_text_is_a_table_and_a_number_or_none(text: str) -> None:
    assert all(value >= 0 for value in table(text).values())
    assert (number(text) or 0) >= 0


@pytest.mark.parametrize(
    ("usage", "reclaimable", "free"),
    [(0, 0, 100), (60, 20, 60), (100, 30, 30), (120, 0, 0), (10, 50, 100), (None, 5, None)],
)
def test_what_a_group_of_a_hundred_may_still_take(usage: int | None, reclaimable: int, free: int | None) -> None:
    assert left(100, usage, reclaimable) == free


def files(
    *, available: int = 12 * GIB, stall: str | None = None, vmstat: str | None = "pswpin 1\npswpout 10\n", **group: str
) -> Files:
    """A machine of 16 GiB; with ``group``, a version 2 group (version 1 with ``v1``)."""
    version = int(group.pop("version", "2"))
    texts = {name: group.get(name) for name in ("limit", "usage", "stat", "stall_of_group")}
    return Files(
        f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n",
        vmstat,
        stall,
        GroupFiles(version, texts["limit"], texts["usage"], texts["stat"], texts["stall_of_group"]) if group else None,
    )


V1_STAT = f"inactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file {GIB // 2}\ntotal_rss 7\n"
V2_STAT = f"anon 5\nfile 9\ninactive_file {GIB}\nactive_file {GIB // 4}\nslab_reclaimable {GIB // 4}\npswpout 3\n"
TABLE = [
    ("a calm desktop", files(stall=psi("0.00", "0.00")), CALM, 12 * GIB, 16 * GIB, 10),
    ("some wait", files(stall=psi("12.00", "3.00")), WARNING, 12 * GIB, 16 * GIB, 10),
    ("all wait", files(stall=psi("40.00", "20.00")), CRITICAL, 12 * GIB, 16 * GIB, 10),
    ("no PSI, room", files(), CALM, 12 * GIB, 16 * GIB, 10),
    ("no PSI, 7 %", files(available=int(1.12 * GIB)), WARNING, int(1.12 * GIB) // 1024 * 1024, 16 * GIB, 10),
    ("calm PSI, 3 %", files(stall=psi("0.00", "0.00"), available=GIB // 2), CRITICAL, GIB // 2, 16 * GIB, 10),
    ("no counter", files(vmstat=None), CALM, 12 * GIB, 16 * GIB, None),
    ("nothing", Files(None, None, None, None), None, None, None, None),
    ("only PSI", Files(None, None, psi("11.00", "0.00"), None), WARNING, None, None, None),
    ("a group without a limit", files(limit="max\n", usage="5", stat=V2_STAT), CALM, 12 * GIB, 16 * GIB, 10),
    ("version 1 without", files(version="1", limit=V1_NONE, usage="5", stat=V1_STAT), CALM, 12 * GIB, 16 * GIB, 10),
    (
        "an unlimited group's own PSI does not count",
        files(limit="max", usage="5", stat=V2_STAT, stall_of_group=psi("50.00", "50.00"), stall=psi("0.00", "0.00")),
        CALM,
        12 * GIB,
        16 * GIB,
        10,
    ),
    (
        "version 1: the limit, the system's PSI and paging",
        files(version="1", limit=str(4 * GIB), usage=str(4 * GIB), stat=V1_STAT, stall=psi("11.00", "0.00")),
        WARNING,
        3 * GIB // 2,
        4 * GIB,
        10,
    ),
    (
        "version 2: all of its own",
        files(
            limit=f"{4 * GIB}\n",
            usage=f"{2 * GIB}\n",
            stat=V2_STAT,
            stall_of_group=psi("0.00", "0.00"),
            stall=psi("90.00", "90.00"),
        ),
        CALM,
        7 * GIB // 2,
        4 * GIB,
        3,
    ),
    (
        "version 2: its own PSI while the system is calm",
        files(
            limit=str(4 * GIB),
            usage=str(GIB),
            stat="",
            stall_of_group=psi("20.00", "15.00"),
            stall=psi("0.00", "0.00"),
        ),
        CRITICAL,
        3 * GIB,
        4 * GIB,
        10,
    ),
    ("version 2: full", files(limit=str(4 * GIB), usage=str(4 * GIB), stat=""), CRITICAL, 0, 4 * GIB, 10),
    (
        "the machine has less than the group may take",
        files(available=GIB, limit=str(8 * GIB), usage="0", stat=""),
        CALM,
        GIB,
        8 * GIB,
        10,
    ),
    (
        "the group's usage is unreadable: PSI alone",
        files(limit=str(4 * GIB), stat="", stall=psi("0.00", "0.00")),
        CALM,
        None,
        4 * GIB,
        10,
    ),
    ("and no PSI", files(limit=str(4 * GIB), stat=""), None, None, 4 * GIB, 10),
]


@pytest.mark.parametrize(
    ("texts", "level", "available", "total", "pages"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_a_reading(
    texts: Files, level: Level | None, available: int | None, total: int | None, pages: int | None
) -> None:
    found = reading_of(texts, PAGE)
    assert (found.level, found.available_bytes, found.total_bytes) == (level, available, total)
    assert found.paged_out_bytes == (None if pages is None else pages * PAGE)


def test_the_detail_names_what_is_unreadable() -> None:
    assert reading_of(Files(None, None, None, None), PAGE).detail == (
        "PSI is unreadable; available RAM is unreadable; paging is unreadable (vmstat)"
    )
    limit = reading_of(files(version="1", limit=str(4 * GIB), usage="0", stat=V1_STAT), PAGE)
    assert limit.detail.endswith("4,096 of 4,096 MiB available in our cgroup v1; 10 pages out (system)")


def plant(root: Path, tree: dict[str, str]) -> Path:
    for path, text in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "mounts", "group"),
    [
        (
            "0::/box\n",
            V2_MOUNT.format(root="/", at="/sys/fs/cgroup"),
            {
                "sys/fs/cgroup/box/memory.max": "1073741824\n",
                "sys/fs/cgroup/box/memory.current": "1063741824\n",
                "sys/fs/cgroup/box/memory.stat": "inactive_file 0\npswpout 2\n",
                "sys/fs/cgroup/box/memory.pressure": psi("0.00", "0.00"),
            },
        ),
        (
            "4:memory:/box\n",
            HYBRID,
            {
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1073741824\n",
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "1063741824\n",
                "sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 0\n",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_the_sensor_follows_the_mounts_to_the_files(
    tmp_path: Path, cgroup: str, mounts: str, group: dict[str, str]
) -> None:
    machine = {
        "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n",
        "proc/vmstat": "pswpout 2\n",
        "proc/self/cgroup": cgroup,
        "proc/self/mountinfo": mounts,
    }
    found = LinuxSensor(plant(tmp_path, machine | group), PAGE).read()
    assert (found.level, found.available_bytes, found.total_bytes) == (CRITICAL, 10_000_000, GIB)
    assert found.paged_out_bytes == 2 * PAGE


def test_a_system_without_any_of_the_files_reads_as_nothing(tmp_path: Path) -> None:
    found = LinuxSensor(tmp_path).read()
    assert (found.level, found.paged_out_bytes, found.available_bytes, found.total_bytes) == (None,) * 4


@pytest.mark.skipif(sys.platform != "linux", reason="reads the real /proc")
def test_this_machine_is_read() -> None:
    found = for_this_system().read()
    assert found.level in list(Level)
    assert found.paged_out_bytes is not None
    assert found.available_bytes is not None
    assert found.total_bytes is not None
    assert 0 < found.available_bytes <= found.total_bytes
    forced = for_this_system("warning").read()
    assert (forced.level, forced.total_bytes) == (Level.WARNING, found.total_bytes)
    assert for_this_system("vram-critical").read().detail.startswith("stalled")
