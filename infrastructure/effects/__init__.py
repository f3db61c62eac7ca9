"""Effects at work: tasks written with the state change, their runner, and the calls that it makes."""
