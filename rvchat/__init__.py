"""rvchat: talk to Gemma 4 on your own machine, in a terminal."""
