"""The `switchyard` command. `main` parses arguments and prints; what a command does is in the other modules."""
