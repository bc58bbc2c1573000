"""Torture: real processes, real servers, real faults, and an independent checker."""
