"""What agents remember from run to run.

    memories       the collections of the data plane that it lies in: written, searched, forgotten
    places         which collections these are, and of which embedding model their vectors
    rows           pure: what is remembered as rows, and back
    vectors        what the embedding model makes of texts
    renewal        vectors are made anew for another embedding model
    named          notes that are kept under names, and read back exactly
    recollection   pure: memories as the model reads them
    recall         before a run's first step: what of the memory it is reminded of, within a bound of time
    entries        pure: what of a run is worth remembering
    diary          finished runs are written into memories behind the answer, and after a crash too
    agentmemory    all of it, for the agents of a configuration

Nothing here fails a run, nor keeps it waiting for longer than its `recall_ms`.
"""
