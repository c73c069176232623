"""Rounds as cooperative games, and the rules that share them out."""
