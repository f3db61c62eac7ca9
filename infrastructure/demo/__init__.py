"""The demonstration: a simulated shop, its events delivered badly, a killed worker, and a verdict."""
