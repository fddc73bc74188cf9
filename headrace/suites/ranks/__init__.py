"""Ranks of one replica: real processes with real LMCache engines, joined by gloo on loopback."""
