"""The machine and the versions that a measurement comes from, on one line."""

from __future__ import annotations

import platform
from datetime import date
from pathlib import Path

import torch
import triton


def machine() -> str:
    """Processor, GPU if any, and the versions that matter, with today's date."""
    processor = platform.processor() or platform.machine()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        names = [line for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = names[0].partition(":")[2].strip() if names else processor
    parts = [processor]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    parts += [
        f"Python {platform.python_version()}",
        f"torch {torch.__version__}",
        f"Triton {triton.__version__}",
        date.today().isoformat(),
    ]
    return ", ".join(parts)
