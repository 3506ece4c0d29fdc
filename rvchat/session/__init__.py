"""One conversation at work: turns it into ids, runs the engine thread, yields events."""
