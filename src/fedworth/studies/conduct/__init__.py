"""Conduct: federations with a client that copies, cheats or has noisy data, and whether findings name it."""
