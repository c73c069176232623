"""What models are judged by, and how servers aggregate."""
