"""Suites that prove an image: run from a checkout, inside the image, or against a live endpoint."""
