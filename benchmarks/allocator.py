"""What PyTorch's allocator gives out on a CPU while a job runs."""

import gc
from collections.abc import Callable

import torch
from torch._C._profiler import _EventType


def peak_on_cpu(job: Callable[[], object]) -> int:
    """Peak of the bytes that the allocator gave out and had not yet back, from the start of a job."""
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        job()
    assert profile.profiler is not None
    events, changes = list(profile.profiler.kineto_results.experimental_event_tree()), []
    while events:
        event = events.pop()
        events += event.children
        if event.tag == _EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
    held = peak = 0
    for _, change in sorted(changes):
        held += change
        peak = max(peak, held)
    return peak
