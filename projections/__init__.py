"""How events are folded: the rules and the engine, in terms of ports."""
