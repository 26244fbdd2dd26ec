"""The configuration: what can be configured, and the one reader of acu.yaml and of the ACU_* variables.

document.py reads strict YAML, fields.py checks and describes the fields of sections.py, contradictions.py judges values
against each other, remains.py finds what can be judged beside what is wrong, places.py knows where files lie, and loading.py
composes all of it into one frozen `AcuConfig`.
"""

from acu.config.contradictions import exposure_problems
from acu.config.loading import LoadedConfig, find_file, judge, load, process_environment
from acu.config.places import RESULTS, client_sockets, default_model_cache, default_socket, history_file
from acu.config.remains import hangs
from acu.config.sections import (
    AcuConfig,
    DaemonConfig,
    GpuConfig,
    NetworkConfig,
    NumaConfig,
    TelemetryConfig,
    model_names,
    model_role,
    names_by_key,
    split_address,
)

__all__ = [
    "RESULTS",
    "AcuConfig",
    "DaemonConfig",
    "GpuConfig",
    "LoadedConfig",
    "NetworkConfig",
    "NumaConfig",
    "TelemetryConfig",
    "client_sockets",
    "default_model_cache",
    "default_socket",
    "exposure_problems",
    "find_file",
    "hangs",
    "history_file",
    "judge",
    "load",
    "model_names",
    "model_role",
    "names_by_key",
    "process_environment",
    "split_address",
]
