"""The command line: one verb a stage; the only room that prints."""
