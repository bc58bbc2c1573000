"""The simulation: the relay's own code under virtual time, with faults drawn from a seed."""
