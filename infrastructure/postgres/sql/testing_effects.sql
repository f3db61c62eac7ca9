SELECT effect, type, data, outcome FROM onefold.effects
