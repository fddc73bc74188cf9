"""Codes hidden in long prompts, and proof of which cache tier each answer came from.

A cache that returns wrong bytes answers fluently, with HTTP 200 and empty logs. Here each prompt
is answered cold, from L1, from L2 after a restart, and cold again. An answer counts only if the
endpoint's usage and the servers' own counters prove that it came from where it should have.
"""
