"""Torture: real processes, real servers, real faults, and a checker that believes nobody."""
