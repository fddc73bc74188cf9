"""Every way headrace stops, one class per exit code.

A message is one line that names the file, what was expected, what was found and the next
command to run. Anything that is not a `HeadraceError` and reaches the top is a bug of ours.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """A stop that the user can do something about.

    Attributes:
        exit_code: the process's exit status, one per subclass.
    """

    exit_code = 1


class ConfigurationError(HeadraceError):
    """A file of the checkout or an option does not say what it must."""

    exit_code = 2


class SourceError(HeadraceError):
    """A pinned upstream cannot be had, does not match its hash, or is unsafe to unpack."""

    exit_code = 3


class SeriesError(HeadraceError):
    """A patch is malformed, misplaced, or does not apply exactly."""

    exit_code = 4


class WheelError(HeadraceError):
    """A wheel did not build."""

    exit_code = 5


class ImageError(HeadraceError):
    """An image, its base, or the daemon that builds it failed."""

    exit_code = 6


class MirrorMovedError(HeadraceError):
    """The Debian mirror no longer offers what the lock names."""

    exit_code = 7


class VerificationError(HeadraceError):
    """A proof is red or void."""

    exit_code = 8


class PublishError(HeadraceError):
    """An image may not be published, or the registry does not hold what was pushed."""

    exit_code = 9


class MachineError(HeadraceError):
    """A tool is missing, the disk is full, the network is away, or another build holds the lock."""

    exit_code = 10


class SuiteFailedError(HeadraceError):
    """A suite ran and found wrong behaviour."""

    exit_code = 11


class SuiteVoidError(HeadraceError):
    """A suite could not prove a case either way, which counts as a failure."""

    exit_code = 12


class EndpointError(HeadraceError):
    """A server that the user named does not answer, or refuses."""

    exit_code = 13


class SettingsError(HeadraceError):
    """Engine settings cannot work, alone or together; one line for each."""

    exit_code = 14


class ModelNameError(HeadraceError):
    """The endpoint serves no model of that name."""

    exit_code = 15


class PromptTooLongError(HeadraceError):
    """A prompt is longer than what the endpoint's model takes."""

    exit_code = 16


class NoCachedTokensError(HeadraceError):
    """The endpoint does not report how many tokens came from a cache."""

    exit_code = 17


class ShardError(HeadraceError):
    """A Valkey that holds a part of the cache cannot be reached or read."""

    exit_code = 18


class KernelModuleError(HeadraceError):
    """FlashInfer's module is not the one that the build recorded."""

    exit_code = 19
