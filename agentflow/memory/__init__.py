"""What agents remember from run to run.

    memories       the collections of the data plane that it lies in: written, searched, forgotten
    recollection   pure: memories as the model reads them
    recall         before a run's first step: what of the memory it is reminded of, within a bound of time
    entries        pure: what of a run is worth remembering
    diary          finished runs are written into memories behind the answer, and after a crash too
    agentmemory    all of it, for the agents of a configuration

Nothing here fails a run, nor keeps it waiting for longer than its `recall_ms`.
"""
