"""headrace: a patched serving distribution for long-context prefill on NVIDIA B300."""

__version__ = "0.1.0"
