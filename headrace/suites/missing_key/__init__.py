"""The missing-key suite: after any reply, the next command on the same connection works.

It drives the installed LMCache (the compiled RESP client, its Python client, and the connector
behind a RemoteBackend) against real and scripted servers, and holds every wait to a deadline.
"""
