"""What runs inside an image to prove it: standard library, and what every image carries.

`python -m headrace.proof NAME` reads a JSON request on stdin and prints one JSON answer on
stdout: `{"problems": [text, ...], "facts": {...}}`. No problem means that the proof holds;
another exit status than 0 means that it could not run, which proves nothing.
"""
