"""The suites' private Valkey, under the name that tests import."""

from headrace.suites.valkey_server import ValkeyServer

__all__ = ["ValkeyServer"]
