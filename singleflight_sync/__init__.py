"""Distributed single-flight on Redis: one caller computes, all others get the same outcome."""

__version__ = "0.1.0"
