"""The command line: a command for each stage. No other package prints."""
