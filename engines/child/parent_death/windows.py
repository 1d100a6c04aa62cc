"""Windows: a Job object that the system closes with us, and that kills its processes when it closes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CREATE_NEW_PROCESS_GROUP = 0x00000200
CREATE_NO_WINDOW = 0x08000000
"""Process creation flags of winbase.h; the second hides the console window."""
PROCESS_SET_QUOTA_AND_TERMINATE = 0x0100 | 0x0001
"""Rights that AssignProcessToJobObject asks for (winnt.h)."""


class KillOnJobClose:
    """One job for all children. ``api`` is pywin32's ``win32job`` and ``win32api``, or a fake of both."""

    def __init__(self, job_api: Any = None, process_api: Any = None) -> None:
        if job_api is None or process_api is None:
            import win32api
            import win32job

            job_api, process_api = win32job, win32api
        self._job_api, self._process_api = job_api, process_api
        self._job = job_api.CreateJobObject(None, "")
        limits = job_api.QueryInformationJobObject(self._job, job_api.JobObjectExtendedLimitInformation)
        limits["BasicLimitInformation"]["LimitFlags"] |= job_api.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
        job_api.SetInformationJobObject(self._job, job_api.JobObjectExtendedLimitInformation, limits)

    def popen_options(self) -> Mapping[str, Any]:
        """No console window, and Ctrl-C in ours is not the child's."""
        return {"creationflags": CREATE_NO_WINDOW | CREATE_NEW_PROCESS_GROUP}

    def adopt(self, pid: int) -> None:
        """Put a child into the job."""
        handle = self._process_api.OpenProcess(PROCESS_SET_QUOTA_AND_TERMINATE, False, pid)
        try:
            self._job_api.AssignProcessToJobObject(self._job, handle)
        finally:
            self._process_api.CloseHandle(handle)
