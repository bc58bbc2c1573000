"""Three modules on the bus: orders, billing and shipping."""
