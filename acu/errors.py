"""The appliance's own errors: everything that ACU raises on purpose comes from `AcuError`.

AcuError
├── ConfigError           the configuration: unknown keys, ill-typed or contradictory values
├── StartRefused          the machine is not as the configuration needs it: the daemon does not start
│   ├── AddressInUse        another process listens on the TCP address
│   └── SocketInUse         another daemon serves the unix socket, or something else lies at its path
├── GpuUnreadable         the driver does not tell what was asked of it about a GPU
├── DaemonUnreachable     a client command found nobody at the socket or address
│   └── DaemonSilent        somebody listens there, and gives no whole answer
├── ApiError              the daemon answered a client command with an error
├── UnknownAnswer         whoever answered a client command does not speak as an ACU does
├── DataError             what a command asked of the data plane could not be done
├── ModelError            the model cache: catalogue, pull, verify, load
│   ├── ModelNotFound       no such name, folder or hub id
│   ├── ModelInUse          a running daemon serves it
│   ├── ModelIncomplete     not in the cache, or its files are not those of its manifest
│   ├── ModelUnreadable     the system does not let this process read the model or the cache
│   ├── ChecksumMismatch    a file's SHA-256 is not the pinned or recorded one
│   ├── NoSpace             the disk (or memory, when preloading) is too small
│   ├── SourceUnreachable   the package index or the hub does not answer, or lacks the model
│   ├── ConversionFailed    a GGUF file could not be turned into safetensors
│   └── UnsafeModel         it would run code: pickles, remote code, paths that leave its folder
"""


class AcuError(Exception):
    """Root of the appliance's errors. The message says what to do."""


class ConfigError(AcuError):
    """The configuration cannot be used. `problems` are all that were found, a line each; the message joins them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class StartRefused(AcuError):
    """The daemon cannot start here and now. Each of `problems` names the field, its value and what to do, in one line."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class AddressInUse(StartRefused):
    """Another process listens on `network.bind_addr`."""


class SocketInUse(StartRefused):
    """The path of `network.unix_socket` is taken, by a live daemon or by something that is no socket."""


class GpuUnreadable(AcuError):
    """NVML did not answer about a GPU: it is lost, or the driver was taken away. The message names the GPU and NVML's reason."""


class DaemonUnreachable(AcuError):
    """Nobody answers where the daemon should be. The message says how to start it."""


class DaemonSilent(DaemonUnreachable):
    """Whoever listens there let the time run out, or hung up."""


class ApiError(AcuError):
    """The daemon refused a request. `status` is HTTP's, `code` the API's word for what is wrong, if it gave one.

    `retry_after_s` (seconds) tells when to ask again, if ever.
    """

    def __init__(
        self, message: str, *, status: int, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class UnknownAnswer(AcuError):
    """The answer to a client command lacks what this version of ACU reads in it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the answer to {path} is not what this acu expects: is it an ACU, and of the same version?")


class DataError(AcuError):
    """The data plane could not do what a command asked of it. The message says what to do."""


class ModelError(AcuError):
    """Something about a model's files."""


class ModelNotFound(ModelError):
    """No catalogue entry, folder or cached hub id has this name."""


class ModelInUse(ModelError):
    """A running daemon serves the model: it is not removed."""


class ModelIncomplete(ModelError):
    """The model is not in the cache, or its files differ from its manifest: pull it again."""


class ModelUnreadable(ModelError):
    """The system does not let this process look at a model or at the cache, and pulling again would not help. Names the path."""


class ChecksumMismatch(ModelError):
    """A file's SHA-256 differs from the pinned or recorded one. Names the file and both sums."""


class NoSpace(ModelError):
    """Less free than needed, on disk or in memory. Names both, in bytes fit for people."""


class SourceUnreachable(ModelError):
    """The source does not answer, or does not have the model."""


class ConversionFailed(ModelError):
    """The GGUF file could not be converted. Carries the converter's last words."""


class UnsafeModel(ModelError):
    """Loading it would run code that came with it."""
